"""What the device knows about the rows being decoded.

Legend: B rows, S cache capacity.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ngramrl_jax.protocols import Policy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """One row a slot; donated to every round, which returns its successor.

    A row is its own: rows differ in length from the first round on, and nothing is padded or
    realigned. A rejected draft token needs no undoing: `length_B` does not move past it, so its
    keys and values are overwritten before they could ever be attended.

    Attributes:
        length_B: int32, committed tokens, prompt included. The next token to be sampled stands
            at this position; the cache holds the positions before `length_B - 1`.
        last_B: int32, the last committed token, which the next round runs through the model.
        room_B: int32, response tokens that may still be committed; 0 for a row that is finished
            or empty (a stop token takes all the room).
        key_data_BW: uint32 `[B, 2]`, the data of each row's key; the noise of position t is
            `fold_in(key, t)`. Data, because typed keys cost 50 µs a dispatch to unflatten.
        cache: The policy's cache of B rows, opaque here.
        forced_BS: int32, recorded tokens by position, -1 where there is none; None where nothing
            is replayed.
    """

    length_B: jax.Array
    last_B: jax.Array
    room_B: jax.Array
    key_data_BW: jax.Array
    cache: Any
    forced_BS: jax.Array | None = None


def empty_state(policy: Policy, rows: int, capacity: int, *, forced: bool = False) -> DecodeState:
    """All slots idle, with a cache of `capacity` positions each, recorded tokens if `forced`."""
    return DecodeState(
        length_B=jnp.ones(rows, jnp.int32),
        last_B=jnp.zeros(rows, jnp.int32),
        room_B=jnp.zeros(rows, jnp.int32),
        key_data_BW=jnp.zeros((rows, 2), jnp.uint32),
        cache=policy.init_cache(rows, capacity),
        forced_BS=jnp.full((rows, capacity), -1, jnp.int32) if forced else None,
    )


def forced_tokens(state: DecodeState, count: int) -> jax.Array:
    """The next `count` recorded tokens of every row, int32 `[B, count]`; -1 where there is none.

    `[B, 0]` of a state without recorded tokens.
    """
    if state.forced_BS is None:
        return jnp.zeros((len(state.length_B), 0), jnp.int32)
    offset_1T = jnp.arange(count, dtype=jnp.int32)[None]
    return jnp.take_along_axis(
        state.forced_BS, state.length_B[:, None] + offset_1T, axis=1, mode="fill", fill_value=-1
    )
