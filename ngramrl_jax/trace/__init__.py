"""Rollout traces: every step's rollouts on disk, written beside the run and read while it goes on.

Never imports jax.
"""
