"""Rollouts: the pure jitted round and the host engine around it."""
