"""Qwen3 in Flax NNX. Never imports ngramrl_jax."""
