"""What the device knows about the rows being decoded.

Legend: B rows.
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
    """

    length_B: jax.Array
    last_B: jax.Array
    room_B: jax.Array
    key_data_BW: jax.Array
    cache: Any


def empty_state(policy: Policy, rows: int, capacity: int) -> DecodeState:
    """All slots idle, with a cache of `capacity` positions each."""
    return DecodeState(
        length_B=jnp.ones(rows, jnp.int32),
        last_B=jnp.zeros(rows, jnp.int32),
        room_B=jnp.zeros(rows, jnp.int32),
        key_data_BW=jnp.zeros((rows, 2), jnp.uint32),
        cache=policy.init_cache(rows, capacity),
    )
