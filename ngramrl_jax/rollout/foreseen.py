"""The round that picks its own drafts: dispatched before the host knows how the last one ended.

Legend: B rows, K draft budget.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ngramrl_jax.rollout.state import DecodeState
from ngramrl_jax.rollout.table import choose, unpack_table

_Carry = tuple[jax.Array, DecodeState, Any]  # whether it is over, the state, the packed result


def foreseen_round(
    work: Callable[[DecodeState, jax.Array], tuple[DecodeState, jax.Array]],
    state: DecodeState,
    table_BX: jax.Array,
    *,
    draft_tokens: int,
) -> tuple[DecodeState, jax.Array]:
    """A speculative round with the drafts that the table holds for the rows as they are now.

    Args:
        work: The round itself: the state and packed drafts to the next state and the packed
            outcome, as `round.speculative_round`.
        state: Donated by the caller.
        table_BX: int32, from `table.pack_table`.
        draft_tokens: Static K.

    Returns:
        The next state and the packed `RoundResult`. A round that is not worth running, see
        `table.Choice`, changes nothing and commits nothing, not even to rows that have room: that
        is how it is told from one that ran.
    """
    table = unpack_table(table_BX, draft_tokens)
    choice = choose(table, state.length_B, state.last_B, state.room_B, state.key_data_BW, jnp)
    drafts_BX = jnp.concatenate([choice.drafted_B[:, None], choice.draft_BK], axis=1)

    def run(carry: _Carry) -> _Carry:
        _, state, _ = carry
        return jnp.asarray(True), *work(state, drafts_BX)

    nothing = jax.eval_shape(lambda state: run((choice.skipped, state, None))[2], state)
    # A loop of one turn or none, not a `cond`: that would copy the cache, which no branch owns.
    start = choice.skipped, state, jnp.zeros(nothing.shape, nothing.dtype)
    _, state, packed = jax.lax.while_loop(lambda carry: ~carry[0], run, start)
    return state, packed
