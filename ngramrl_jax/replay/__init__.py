"""Drafters compared offline: recorded rollouts run through each, as the engine would run them.

Never imports jax.
"""
