"""Key/value cache addressed by position: every row has a length of its own, nobody stores it.

Legend: L layers, B rows, S capacity in positions, T tokens of a forward, J key/value heads,
E head width, N prefixes.

A row's keys and values for position s stand at `[:, row, :, s]`. Rejected tokens are simply
written over later; nothing is trimmed. All functions return a new `KVCache` that XLA builds in
place where the old one is donated or carried through a loop.

Heads come before positions because attention is one matrix product per row and head: with the two
exchanged XLA transposes what it reads, and attention takes 1.5 times as long on a CPU.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from models.config import ModelConfig


class KVCache(NamedTuple):
    """Keys and values of all layers, `[L, B, J, S, E]` each."""

    key_LBJSE: jax.Array
    value_LBJSE: jax.Array


def init_cache(config: ModelConfig, rows: int, capacity: int, dtype: DTypeLike) -> KVCache:
    """A cache of zeros for `rows` rows of `capacity` positions."""
    shape = (
        config.num_hidden_layers,
        rows,
        config.num_key_value_heads,
        capacity,
        config.head_dim,
    )
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))


def write(
    cache: KVCache,
    layer: jax.Array,
    position_B: jax.Array,
    key_BJTE: jax.Array,
    value_BJTE: jax.Array,
) -> KVCache:
    """Stores row b's token t at position `position_B[b] + t` of one layer.

    Positions past the capacity are dropped.
    """
    B, J, T, _ = key_BJTE.shape
    row_B11 = jnp.arange(B)[:, None, None]
    head_1J1 = jnp.arange(J)[None, :, None]
    step_11T = jnp.arange(T, dtype=position_B.dtype)[None, None, :]
    slot_B1T = position_B[:, None, None] + step_11T

    def put(all_LBJSE: jax.Array, new_BJTE: jax.Array) -> jax.Array:
        at = all_LBJSE.at[layer, row_B11, head_1J1, slot_B1T]
        return at.set(new_BJTE.astype(all_LBJSE.dtype), mode="drop", unique_indices=True)

    return KVCache(put(cache.key_LBJSE, key_BJTE), put(cache.value_LBJSE, value_BJTE))


def read(
    cache: KVCache, layer: jax.Array, end_B: jax.Array, live: int
) -> tuple[jax.Array, jax.Array]:
    """Keys and values `[B, J, live, E]` of one layer at positions `0 .. live - 1`.

    Values at or past `end_B[b]` read as zero: the attention mask gives them weight zero, but zero
    times a stray infinity or NaN would not vanish. Stray keys are masked after their score.
    """

    def get(all_LBJSE: jax.Array) -> jax.Array:
        _, B, J, _, E = all_LBJSE.shape
        return jax.lax.dynamic_slice(all_LBJSE, (layer, 0, 0, 0, 0), (1, B, J, live, E))[0]

    held_BS = jnp.arange(live, dtype=end_B.dtype)[None, :] < end_B[:, None]
    value_BJSE = get(cache.value_LBJSE)
    zero = jnp.zeros((), value_BJSE.dtype)
    return get(cache.key_LBJSE), jnp.where(held_BS[:, None, :, None], value_BJSE, zero)


def insert(cache: KVCache, prefixes: KVCache, source_N: jax.Array, slot_N: jax.Array) -> KVCache:
    """Copies row `source_N[i]` of `prefixes` into row `slot_N[i]` of `cache`, for every i.

    Entries with `slot_N[i]` equal to the number of rows are dropped. Where the prefixes have a
    smaller capacity, the rest of the row keeps what it held.
    """
    width = prefixes.key_LBJSE.shape[3]

    def put(all_LBJSE: jax.Array, prefix_LNJSE: jax.Array) -> jax.Array:
        copied = prefix_LNJSE[:, source_N].astype(all_LBJSE.dtype)
        return all_LBJSE.at[:, slot_N, :, :width].set(copied, mode="drop")

    return KVCache(
        put(cache.key_LBJSE, prefixes.key_LBJSE), put(cache.value_LBJSE, prefixes.value_LBJSE)
    )
