"""Model shapes with random weights: under forced replay their tokens do not matter."""

from dataclasses import replace

import jax
import jax.numpy as jnp

from models.config import PRESETS, ModelConfig
from models.policy import Params, Qwen3Policy

SHAPES = {
    **PRESETS,
    "tiny": replace(PRESETS["tiny"], vocab_size=4096),
    "135m": PRESETS["smollm2_135m"],
}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


def shape(name: str) -> ModelConfig:
    """The configuration of that name; raises ValueError for another one."""
    if name not in SHAPES:
        raise ValueError(f"shape: found {name}, allowed: {', '.join(SHAPES)}")
    return SHAPES[name]


def random_model(name: str, dtype: str) -> tuple[Qwen3Policy, Params]:
    """A policy of that shape, and weights drawn where they will stay.

    Raises:
        ValueError: Unknown shape or dtype.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype: found {dtype}, allowed: {', '.join(DTYPES)}")
    policy = Qwen3Policy(shape(name), DTYPES[dtype])
    init = jax.jit(lambda key: policy.init_params(key, DTYPES[dtype]))
    return policy, init(jax.random.key(0))
