"""Checks of what comes in from outside the host core."""

import numpy as np
from numpy.typing import ArrayLike

from ngramrl_jax.types import Int32Array

_INT32_MAX = np.iinfo(np.int32).max


def as_token_ids(name: str, tokens: ArrayLike) -> Int32Array:
    """A fresh int32 copy of one text: writeable and contiguous, as the kernels were compiled for.

    Args:
        name: What the caller calls the argument.
        tokens: Whole numbers from 0 to 2**31 - 1, at least one.

    Raises:
        ValueError: Another shape, type or range, or no token at all.
    """
    given = np.asarray(tokens)
    if given.ndim != 1 or given.size == 0 or given.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: found {given.dtype} of shape {given.shape}, "
            "allowed: one dimension of integers, at least one"
        )
    low, high = int(given.min()), int(given.max())
    if low < 0 or high > _INT32_MAX:
        raise ValueError(f"{name}: found ids {low} to {high}, allowed: 0 to {_INT32_MAX}")
    return np.array(given, np.int32)


def as_id(name: str, value: int) -> int:
    """The value itself.

    Raises:
        ValueError: It is below 0 or no int32.
    """
    if not 0 <= value <= _INT32_MAX:
        raise ValueError(f"{name}: found {value}, allowed: 0 to {_INT32_MAX}")
    return value


def at_least(name: str, value: int, least: int) -> int:
    """The value itself.

    Raises:
        ValueError: It is below `least`.
    """
    if value < least:
        raise ValueError(f"{name}: found {value}, allowed: {least} or more")
    return value


def as_rows(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Int32Array:
    """A fresh int32 copy of per-row numbers; `shape` may hold -1 for any size.

    Raises:
        ValueError: Another shape, or not integers.
    """
    given = np.asarray(values)
    fits = given.ndim == len(shape) and all(
        want in (-1, found) for want, found in zip(shape, given.shape, strict=True)
    )
    if not fits or given.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: found {given.dtype} of shape {given.shape}, "
            f"allowed: integers of shape {shape}"
        )
    return np.array(given, np.int32, order="C")
