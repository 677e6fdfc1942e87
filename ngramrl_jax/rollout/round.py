"""The jitted rounds: pure functions from state and drafts to the next state and the outcome.

Plain decoding is the speculative round with an empty draft, several of them in one dispatch, so
the two differ in their drafts and in nothing else.

Legend: B rows, K draft budget, T = K + 1 tokens of a forward, N plain rounds of a dispatch,
V vocabulary, R best tokens of a position.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from ngramrl_jax.protocols import Cache, Params, Policy
from ngramrl_jax.rollout.slices import map_rows
from ngramrl_jax.rollout.state import DecodeState, forced_tokens
from ngramrl_jax.rollout.wire import pack_result, unpack_drafts
from ngramrl_jax.types import Sampling
from ngramrl_jax.verify.adjust import adjusted_log_probs, best
from ngramrl_jax.verify.coupled import verify_coupled
from ngramrl_jax.verify.forced import verify_forced
from ngramrl_jax.verify.keyed import gumbel, position_keys, wrap_key_data
from ngramrl_jax.verify.rejection import verify_rejection
from ngramrl_jax.verify.verdict import Verdict

VerifierName = Literal["coupled", "rejection", "forced"]
DraftShape = Literal["chain", "tree"]


@dataclass(frozen=True)
class DecodeRule:
    """What decides which tokens are committed; static, so each rule compiles its own rounds.

    Attributes:
        sampling: Makes the adjusted distribution.
        stop_ids: Ids that end a response; the stop token itself is committed.
        verifier: "coupled" gives plain decoding's tokens for equal keys; "rejection" gives the
            same distribution by the ratio test; "forced" commits recorded tokens, see
            `ngramrl_jax.rollout.forced`.
        best_tokens: R, how many of the target's most likely tokens come back of each position.
        draft_shape: "chain", or "tree" for `tree_round`.
    """

    sampling: Sampling
    stop_ids: tuple[int, ...]
    verifier: VerifierName = "coupled"
    best_tokens: int = 0
    draft_shape: DraftShape = "chain"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Commit:
    """The tokens of one round after cutting at stop and room; fields as in `RoundResult`."""

    count_B: jax.Array
    kept_B: jax.Array
    stopped_B: jax.Array
    tokens_BT: jax.Array
    logp_BT: jax.Array
    best_BTR: jax.Array
    best_logp_BTR: jax.Array


def speculative_round(
    policy: Policy,
    rule: DecodeRule,
    params: Params,
    state: DecodeState,
    drafts_BX: jax.Array,
    *,
    live: int,
) -> tuple[DecodeState, jax.Array]:
    """Verifies one draft a row with one target forward.

    Args:
        policy: The target model.
        rule: Sampling, stop ids and verifier.
        params: Parameters of the policy.
        state: Donated by the caller.
        drafts_BX: int32 `[B, 1 + K]` from `wire.pack_drafts`.
        live: Static bound on the positions to be attended, see `Policy.forward`.

    Returns:
        The next state and the packed `RoundResult`.
    """
    draft_BK, length_B = unpack_drafts(drafts_BX)
    state, commit = _round(policy, rule, params, state, draft_BK, length_B, live)
    return state, pack(commit)


def plain_rounds(
    policy: Policy,
    rule: DecodeRule,
    params: Params,
    state: DecodeState,
    leave_at: jax.Array,
    most: jax.Array,
    *,
    live: int,
    rounds: int,
) -> tuple[DecodeState, jax.Array]:
    """Decodes up to `most` tokens a row without the host.

    The loop ends when every row is idle, or as soon as `leave_at` slots have fallen free, for
    which somebody waits.

    Args:
        policy: The target model.
        rule: Sampling, stop ids and verifier.
        params: Parameters of the policy.
        state: Donated by the caller.
        leave_at: int32 scalar, at least 1; more than the rows never ends a loop.
        most: int32 scalar, rounds at most; those beyond N are not run.
        live: Static bound on the positions to be attended.
        rounds: Static N.

    Returns:
        The next state and the packed `RoundResult` with N token columns.
    """
    rows = state.length_B.shape[0]
    no_draft_BK = jnp.zeros((rows, 0), jnp.int32)
    no_length_B = jnp.zeros(rows, jnp.int32)
    started_B = state.room_B > 0
    blank = Commit(
        count_B=no_length_B,
        kept_B=no_length_B,
        stopped_B=jnp.zeros(rows, bool),
        tokens_BT=jnp.zeros((rows, rounds), jnp.int32),
        logp_BT=jnp.zeros((rows, rounds), jnp.float32),
        best_BTR=jnp.zeros((rows, rounds, rule.best_tokens), jnp.int32),
        best_logp_BTR=jnp.zeros((rows, rounds, rule.best_tokens), jnp.float32),
    )

    def unfinished(carry: tuple) -> jax.Array:
        n, state, _ = carry
        running_B = state.room_B > 0
        freed = jnp.sum(started_B & ~running_B, dtype=jnp.int32)
        return (n < jnp.minimum(most, rounds)) & jnp.any(running_B) & (freed < leave_at)

    def body(carry: tuple) -> tuple:
        n, state, total = carry
        state, commit = _round(policy, rule, params, state, no_draft_BK, no_length_B, live)
        return n + 1, state, _append(total, commit, n)

    start = (jnp.zeros((), jnp.int32), state, blank)
    _, state, total = jax.lax.while_loop(unfinished, body, start)
    return state, pack(total)


def _append(total: Commit, commit: Commit, n: jax.Array) -> Commit:
    """The commits of a plain dispatch so far and those of its round n."""
    columns = {
        name: jax.lax.dynamic_update_slice_in_dim(
            getattr(total, name), getattr(commit, name), n, axis=1
        )
        for name in ("tokens_BT", "logp_BT", "best_BTR", "best_logp_BTR")
    }
    return replace(
        total,
        count_B=total.count_B + commit.count_B,
        stopped_B=total.stopped_B | commit.stopped_B,
        **columns,
    )


def _round(
    policy: Policy,
    rule: DecodeRule,
    params: Params,
    state: DecodeState,
    draft_BK: jax.Array,
    draft_length_B: jax.Array,
    live: int,
) -> tuple[DecodeState, Commit]:
    position_B = state.length_B - 1
    # An id outside the vocabulary is rejected anyway, but must not reach the embedding.
    known_BK = jnp.clip(draft_BK, 0, policy.vocab_size - 1)
    tokens_BT = jnp.concatenate([state.last_B[:, None], known_BK], axis=1)
    logits_BTV, cache = policy.forward(params, tokens_BT, position_B, state.cache, live=live)
    verdict, best_logp_BTR, best_BTR = map_rows(
        partial(_verify, rule),
        logits_BTV,
        draft_BK,
        draft_length_B,
        state.key_data_BW,
        state.length_B,
        forced_tokens(state, tokens_BT.shape[1]),
        elements_per_row=logits_BTV[0].size,
    )
    commit = cut(verdict, best_BTR, best_logp_BTR, state.room_B, rule.stop_ids)
    cache = policy.commit(cache, position_B, commit.count_B)
    return advance(state, commit, cache), commit


def advance(state: DecodeState, commit: Commit, cache: Cache) -> DecodeState:
    """The state after a round, given the cache that holds what was committed."""
    last_B = jnp.take_along_axis(
        commit.tokens_BT, jnp.maximum(commit.count_B - 1, 0)[:, None], axis=1
    )[:, 0]
    return replace(
        state,
        length_B=state.length_B + commit.count_B,
        last_B=jnp.where(commit.count_B > 0, last_B, state.last_B),
        room_B=jnp.where(commit.stopped_B, 0, state.room_B - commit.count_B),
        cache=cache,
    )


def _verify(
    rule: DecodeRule,
    logits_BTV: jax.Array,
    draft_BK: jax.Array,
    draft_length_B: jax.Array,
    key_data_BW: jax.Array,
    length_B: jax.Array,
    said_BT: jax.Array,
) -> tuple[Verdict, jax.Array, jax.Array]:
    """What is made of the logits of some rows: verdict, best log-probabilities, best ids."""
    logp_BTV = adjusted_log_probs(logits_BTV, rule.sampling)
    key_BT = position_keys(wrap_key_data(key_data_BW), length_B, logp_BTV.shape[1])
    if rule.verifier == "rejection":
        verdict = verify_rejection(logp_BTV, draft_BK, draft_length_B, key_BT, None)
        return verdict, *best(logp_BTV, rule.best_tokens)
    greedy = rule.sampling.greedy  # a single point needs no noise
    noise_BTV = jnp.zeros_like(logp_BTV) if greedy else gumbel(key_BT, logp_BTV.shape[-1])
    if rule.verifier == "forced":
        verdict = verify_forced(logp_BTV, draft_BK, draft_length_B, noise_BTV, said_BT)
    else:
        verdict = verify_coupled(logp_BTV, draft_BK, draft_length_B, noise_BTV)
    return verdict, *best(logp_BTV, rule.best_tokens)


def cut(
    verdict: Verdict,
    best_BTR: jax.Array,
    best_logp_BTR: jax.Array,
    room_B: jax.Array,
    stop_ids: tuple[int, ...],
) -> Commit:
    """Accepted draft plus the emitted token, cut behind the first stop token and at the room."""
    count_B = jnp.minimum(verdict.accepted_B + 1, room_B)
    offset_BT = jax.lax.broadcasted_iota(jnp.int32, verdict.tokens_BT.shape, 1)
    stops_BT = jnp.isin(verdict.tokens_BT, jnp.asarray(stop_ids, jnp.int32))
    stops_BT &= offset_BT < count_B[:, None]
    stopped_B = jnp.any(stops_BT, axis=1)
    first_stop_B = jnp.argmax(stops_BT, axis=1).astype(jnp.int32)
    count_B = jnp.where(stopped_B, first_stop_B + 1, count_B)
    return Commit(
        count_B=count_B,
        kept_B=jnp.minimum(verdict.accepted_B, count_B),
        stopped_B=stopped_B,
        tokens_BT=verdict.tokens_BT,
        logp_BT=verdict.logp_BT,
        best_BTR=best_BTR,
        best_logp_BTR=best_logp_BTR,
    )


def pack(commit: Commit) -> jax.Array:
    """The packed `RoundResult`."""
    return pack_result(
        commit.count_B,
        commit.kept_B,
        commit.stopped_B,
        commit.tokens_BT,
        commit.logp_BT,
        commit.best_BTR,
        commit.best_logp_BTR,
    )
