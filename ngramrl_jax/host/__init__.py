"""The host core: drafting in NumPy and Numba. Never imports jax."""
