"""How a row begins: the prompt is run once per group, then copied into its siblings' slots.

The prefill stores all prompt tokens but the last; that one is the row's first "last committed
token", so that the first response token comes out of an ordinary round and may be drafted.

Legend: B rows, N rows admitted at once, P prompt tokens in a length bucket, C tokens of a chunk,
V vocabulary.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ngramrl_jax.protocols import Params, Policy
from ngramrl_jax.rollout.state import DecodeState
from ngramrl_jax.types import Int32Array, RolloutRequest
from ngramrl_jax.verify.keyed import row_keys

ROW_COLUMNS = 10
PREFILL_CHUNK = 512  # prompt tokens of one forward


def admission_row(
    slot: int, entry: int, request: RolloutRequest, seed: int, step: int
) -> Int32Array:
    """Host side: what the device must know to start `request` in `slot`, one line of a table."""
    return np.asarray(
        [
            slot,
            entry,
            len(request.prompt_P),
            request.prompt_P[-1],
            request.max_new_tokens,
            seed,
            step,
            request.prompt_id,
            request.sibling,
            request.attempt,
        ],
        np.int32,
    )


def prefill(
    policy: Policy, params: Params, prefixes: Any, tokens_P: jax.Array, entry: jax.Array
) -> Any:
    """Runs one prompt and stores it as row `entry` of the prefix cache.

    A long prompt goes through the model in chunks: the scores of attention are then chunk x prompt,
    not prompt x prompt, and the model is compiled for a chunk.

    Args:
        policy: The target model.
        params: Its parameters.
        prefixes: A cache whose rows are prompts; donated by the caller.
        tokens_P: int32 prompt ids, padded on the right with anything.
        entry: int32 scalar, the row of `prefixes` to be replaced.

    Returns:
        The prefix cache with the new row.
    """
    length = tokens_P.shape[0]
    row_B = jnp.zeros(1, jnp.int32)

    def run(cache: Any, tokens_C: jax.Array, start: jax.Array) -> Any:
        _, cache = policy.forward(params, tokens_C[None], start[None], cache, live=length)
        return cache

    def step(carry: tuple, tokens_C: jax.Array) -> tuple[tuple, None]:
        cache, start = carry
        return (run(cache, tokens_C, start), start + PREFILL_CHUNK), None

    # What does not fill a chunk comes first, so that all the others are alike.
    first = length % PREFILL_CHUNK
    cache = policy.init_cache(1, length)
    if first:
        cache = run(cache, tokens_P[:first], jnp.zeros((), jnp.int32))
    if length > first:
        chunks_NC = tokens_P[first:].reshape(-1, PREFILL_CHUNK)
        (cache, _), _ = jax.lax.scan(step, (cache, jnp.asarray(first, jnp.int32)), chunks_NC)
    return policy.insert(prefixes, cache, row_B, entry[None])


def admit(policy: Policy, state: DecodeState, prefixes: Any, rows_NX: jax.Array) -> DecodeState:
    """Starts new rows in idle slots.

    Args:
        policy: The target model.
        state: Donated by the caller.
        prefixes: The prefix cache.
        rows_NX: int32 `[N, ROW_COLUMNS]`, one `admission_row` a line, and behind it the recorded
            tokens by position where the state holds such. Lines with slot B are ignored.

    Returns:
        The state with the new rows.
    """
    head_NX, forced_NS = rows_NX[:, :ROW_COLUMNS], rows_NX[:, ROW_COLUMNS:]
    slot_N, entry_N, length_N, last_N, room_N, seed_N, step_N, *identity = head_NX.T
    # Seed and step are the same on every line: a table of their own would be one more copy.
    data_NW = jax.random.key_data(row_keys(seed_N[0], step_N[0], *identity))
    if state.forced_BS is not None:
        state = replace(state, forced_BS=state.forced_BS.at[slot_N].set(forced_NS, mode="drop"))
    return replace(
        state,
        length_B=state.length_B.at[slot_N].set(length_N, mode="drop"),
        last_B=state.last_B.at[slot_N].set(last_N, mode="drop"),
        room_B=state.room_B.at[slot_N].set(room_N, mode="drop"),
        key_data_BW=state.key_data_BW.at[slot_N].set(data_NW, mode="drop"),
        cache=policy.insert(state.cache, prefixes, entry_N, slot_N),
    )
