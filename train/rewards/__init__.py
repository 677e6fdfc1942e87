"""Rewards, computed in worker processes with hard limits."""
