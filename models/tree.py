"""Draft trees in the model: who sees whom, and the way that is kept, made consecutive.

Legend: L layers, B rows, T tokens of a forward, S cache places, J key/value heads, E head width.
"""

import jax
import jax.numpy as jnp

from models.cache import KVCache


def tree_mask(sees_BTT: jax.Array, position_B: jax.Array, live: int) -> jax.Array:
    """Which places each token of a tree sees, bool `[B, T, live]`.

    All places before the root's, and of the tree's own, which begin there, those on the way to it.

    Args:
        sees_BTT: bool, what each token sees of its tree.
        position_B: int32, the place of each row's root.
        live: How many places are looked at.
    """
    B, T, _ = sees_BTT.shape
    before_BS = jnp.arange(live, dtype=jnp.int32)[None] < position_B[:, None]
    token_T = jnp.arange(T, dtype=jnp.int32)
    row_B11 = jnp.arange(B)[:, None, None]
    place_B1T = position_B[:, None, None] + token_T[None, None]
    mask_BTS = jnp.broadcast_to(before_BS[:, None], (B, T, live))
    at = mask_BTS.at[row_B11, token_T[None, :, None], place_B1T]
    return at.set(sees_BTT, mode="drop", unique_indices=True)


def keep_path(
    cache: KVCache, position_B: jax.Array, path_BT: jax.Array, count_B: jax.Array
) -> KVCache:
    """Moves place `position_B[b] + path_BT[b, i]` to `position_B[b] + i`, for i < `count_B[b]`.

    All are read before one is written, so places may overlap.
    """
    B, T = path_BT.shape
    row_B1 = jnp.arange(B)[:, None]
    step_1T = jnp.arange(T, dtype=jnp.int32)[None]
    source_BT = position_B[:, None] + path_BT
    capacity = cache.key_LBJSE.shape[3]
    target_BT = jnp.where(step_1T < count_B[:, None], position_B[:, None] + step_1T, capacity)

    def move(all_LBJSE: jax.Array) -> jax.Array:
        kept = all_LBJSE.at[:, row_B1, :, source_BT].get(mode="clip")
        return all_LBJSE.at[:, row_B1, :, target_BT].set(kept, mode="drop")

    return KVCache(move(cache.key_LBJSE), move(cache.value_LBJSE))
