"""Rollouts to padded micro-batches, on the host.

Rows are padded on the right to a length from a short ladder, so that the update compiles for few
shapes. What counts is known from lengths, never from ids: a pad id inside a response is a token
like any other.

Legend: N rollouts, M micro-batches, B rows of one, T tokens of a row, R response positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ngramrl_jax.types import Int32Array, Rollout
from train.objectives import Weights, token_mean

Array = Any  # NumPy on the host, jax.Array inside the update

# Two steps an octave: at most half of a row is added, a third at most beyond the first steps.
LADDER = tuple(sorted(base << octave for base in (32, 48) for octave in range(13)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """What one update reads. Built as `[M, B, ...]`; the update sees one `[B, ...]` at a time.

    Attributes:
        tokens_BT: int32 ids: prompt, response, padding.
        start_B: int32 index of the first response token.
        mask_BR: bool, True at response tokens (position r is token `start_B + r`).
        weight_BR: float32 share of each token in the loss, normalised over the whole batch.
        advantage_B: float32.
        rollout_logp_BR: float32 log-probabilities that the rollout recorded; None if not sampled.
        old_logp_BR: Those at the start of the batch; None where the update is the only one.
        reference_logp_BR: Those of the reference policy; None without a KL.
    """

    tokens_BT: Array
    start_B: Array
    mask_BR: Array
    weight_BR: Array
    advantage_B: Array
    rollout_logp_BR: Array | None = None
    old_logp_BR: Array | None = None
    reference_logp_BR: Array | None = None

    @classmethod
    def abstract(
        cls, micro: int, rows: int, tokens: int, responses: int, sharding: Any = None
    ) -> "Batch":
        """Shapes alone, to compile an update for: M, B, T, R, and where they lie."""

        def array(dtype: Any, *shape: int) -> Any:
            return jax.ShapeDtypeStruct((micro, rows, *shape), dtype, sharding=sharding)

        return cls(
            tokens_BT=array(np.int32, tokens),
            start_B=array(np.int32),
            mask_BR=array(np.bool_, responses),
            weight_BR=array(np.float32, responses),
            advantage_B=array(np.float32),
            rollout_logp_BR=array(np.float32, responses),
        )


def rollout_batch(
    rollouts: Sequence[Rollout],
    advantage_N: ArrayLike,
    *,
    micro_rows: int,
    weights: Weights,
    rows: int = 0,
    ladder: tuple[int, ...] = LADDER,
) -> Batch:
    """The batch of one RL update, shaped `[M, micro_rows, ...]`.

    Rows are dealt by length, the longest first, so that micro-batches hold about as many tokens
    each; the row order of the result is not that of the rollouts.

    Args:
        rollouts: All of the update.
        advantage_N: Advantage of each rollout.
        micro_rows: Rows of one micro-batch.
        weights: `Objective.weights`.
        rows: Pad with empty rows to at least this many, so that a short batch keeps its shape.
        ladder: Lengths to pad to, ascending.

    Raises:
        ValueError: There is no rollout, an advantage is missing, a prompt or response is empty,
            or a row is longer than the ladder.
    """
    advantage_N = np.asarray(advantage_N, dtype=np.float32)
    if advantage_N.shape != (len(rollouts),):
        raise ValueError(
            f"advantages: found shape {advantage_N.shape}, allowed: ({len(rollouts)},), as rollouts"
        )
    for rollout in rollouts:
        assert rollout.logps_N.shape == rollout.tokens_N.shape
    return _pack(
        [rollout.prompt_P for rollout in rollouts],
        [rollout.tokens_N for rollout in rollouts],
        weights,
        max(rows, len(rollouts)),
        micro_rows,
        ladder,
        advantage_N=advantage_N,
        logps=[rollout.logps_N for rollout in rollouts],
    )


def supervised_batch(
    prompts: Sequence[ArrayLike],
    responses: Sequence[ArrayLike],
    *,
    stop_id: int,
    micro_rows: int,
    rows: int = 0,
    ladder: tuple[int, ...] = LADDER,
) -> Batch:
    """The batch of one supervised update: every response is followed by the stop token.

    Arguments, shape and errors as in `rollout_batch`; prompts and responses are int32 ids, and
    the stop token is trained on.
    """
    if len(prompts) != len(responses):
        raise ValueError(
            f"responses: found {len(responses)}, allowed: one a prompt ({len(prompts)})"
        )
    stopped = [np.append(np.asarray(response, dtype=np.int32), stop_id) for response in responses]
    prompts = [np.asarray(prompt, dtype=np.int32) for prompt in prompts]
    return _pack(prompts, stopped, token_mean, max(rows, len(prompts)), micro_rows, ladder)


def ladder_length(length: int, ladder: tuple[int, ...] = LADDER) -> int:
    """The first step of the ladder that holds `length`."""
    for step in ladder:
        if step >= length:
            return step
    raise ValueError(f"row length: found {length}, allowed: at most {ladder[-1]} tokens")


def _pack(
    prompts: Sequence[Int32Array],
    responses: Sequence[Int32Array],
    weights: Weights,
    rows: int,
    micro_rows: int,
    ladder: tuple[int, ...],
    *,
    advantage_N: NDArray[np.float32] | None = None,
    logps: Sequence[NDArray[np.float32]] | None = None,
) -> Batch:
    if micro_rows < 1:
        raise ValueError(f"micro_rows: found {micro_rows}, allowed: 1 or more")
    if not prompts:
        raise ValueError("batch: found no rows, allowed: one or more")
    prompt_N = np.array([len(prompt) for prompt in prompts])
    response_N = np.array([len(response) for response in responses])
    if min(prompt_N.min(), response_N.min()) < 1:
        raise ValueError("batch: found an empty prompt or response, allowed: one token or more")

    micro = -(-rows // micro_rows)
    rows = micro * micro_rows
    tokens_NT = np.zeros(
        (rows, ladder_length(int((prompt_N + response_N).max()), ladder)), np.int32
    )
    mask_NR = np.zeros((rows, ladder_length(int(response_N.max()), ladder)), np.bool_)
    logp_NR = np.zeros(mask_NR.shape, np.float32)
    start_N = np.ones(rows, np.int32)
    dealt_N = np.zeros(rows, np.float32)

    longest_first = np.argsort(-(prompt_N + response_N), kind="stable")
    for place, source in enumerate(longest_first):
        row = place % micro * micro_rows + place // micro  # dealt to the micro-batches in turn
        start, count = prompt_N[source], response_N[source]
        tokens_NT[row, :start] = prompts[source]
        tokens_NT[row, start : start + count] = responses[source]
        mask_NR[row, :count] = True
        start_N[row] = start
        if logps is not None:
            logp_NR[row, :count] = logps[source]
        if advantage_N is not None:
            dealt_N[row] = advantage_N[source]

    def split(x_N: NDArray) -> NDArray:
        return x_N.reshape(micro, micro_rows, *x_N.shape[1:])

    return Batch(
        tokens_BT=split(tokens_NT),
        start_B=split(start_N),
        mask_BR=split(mask_NR),
        weight_BR=split(weights(mask_NR)),
        advantage_B=split(dealt_N),
        rollout_logp_BR=None if logps is None else split(logp_NR),
    )
