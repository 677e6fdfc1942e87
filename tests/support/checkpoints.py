"""Small states to be saved, and ways to damage what was saved."""

import jax.numpy as jnp
import numpy as np

from train.learner import TrainState


def state(value):
    params = {"w": jnp.full((64, 64), float(value)), "b": jnp.arange(5.0) + value}
    return TrainState(params, {"m": jnp.zeros(3) + value}, jnp.asarray(value, jnp.int32))


def history(value):
    return {"tokens": np.full(3, value, np.int32)}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - max(2, len(content) // 8)])


def largest(folder):
    return max((f for f in folder.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
