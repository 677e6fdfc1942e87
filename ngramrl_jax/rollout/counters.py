"""What a batch of rollouts cost: sums only, from which rates are derived.

Legend: B rows, K draft budget.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ngramrl_jax.host.draft_length import Choice
from ngramrl_jax.rollout.settings import PrefetchName
from ngramrl_jax.rollout.timeline import RoundTimes
from ngramrl_jax.rollout.wire import RoundResult
from ngramrl_jax.types import BoolArray, Int32Array

_KEPT_ROUNDS = 256


@dataclass
class RolloutCounters:
    """Sums over the rounds of one `RolloutEngine.generate` call.

    Attributes:
        draft_tokens: K.
        committed_tokens: Tokens of all rollouts.
        row_rounds: Rounds counted once for each row that took part.
        dispatches: Calls to the device for decoding; several plain rounds may share one.
        forwards: Target forwards of the batch, prefill not counted.
        prefills: Prompts run.
        drafted_tokens: Draft tokens that were verified.
        kept_tokens: Draft tokens that were committed.
        drafted_K: int64, how often a draft had an i-th token one after the other; of a tree, its
            longest branch.
        kept_K: int64, how often it was committed.
        round_seconds: Host work of the rounds themselves: drafts in, outcome out.
        draft_seconds: Time inside the drafter; a part of `round_seconds` where drafts are not
            prefetched, the worker's own time otherwise.
        turnover_seconds: Host work of rows that come and go: refilling, prefill, history.
        device_seconds: Waiting for outcomes.
        length_forwards: int64 `[K + 1]`, forwards by draft length.
        length_seconds: float64 `[K + 1]`, the time that they took.
        promised: float64 `[K + 1]`, committed tokens that a row-round of each length promised,
            summed over the row-rounds that could have had it.
        promised_rounds: int64 `[K + 1]`, those row-rounds.
        exposed_seconds: Time that the device had nothing to do, see `timeline.IdleClock`.
        prefetch: How drafts were made in fact.
        hits: Outcomes of rows with room for a draft whose draft had been prefetched.
        misses: Those whose draft had not.
        skipped_rounds: Dispatches that the device called off; no other sum counts them.
        timeline: The last dispatches.
    """

    draft_tokens: int
    committed_tokens: int = 0
    row_rounds: int = 0
    dispatches: int = 0
    forwards: int = 0
    prefills: int = 0
    drafted_tokens: int = 0
    kept_tokens: int = 0
    drafted_K: np.ndarray = field(init=False)
    kept_K: np.ndarray = field(init=False)
    round_seconds: float = 0.0
    draft_seconds: float = 0.0
    turnover_seconds: float = 0.0
    device_seconds: float = 0.0
    length_forwards: np.ndarray = field(init=False)
    length_seconds: np.ndarray = field(init=False)
    promised: np.ndarray = field(init=False)
    promised_rounds: np.ndarray = field(init=False)
    exposed_seconds: float = 0.0
    prefetch: PrefetchName = "off"
    hits: int = 0
    misses: int = 0
    skipped_rounds: int = 0
    timeline: deque[RoundTimes] = field(default_factory=lambda: deque(maxlen=_KEPT_ROUNDS))

    def __post_init__(self) -> None:
        self.drafted_K = np.zeros(self.draft_tokens, np.int64)
        self.kept_K = np.zeros(self.draft_tokens, np.int64)
        self.length_forwards = np.zeros(self.draft_tokens + 1, np.int64)
        self.length_seconds = np.zeros(self.draft_tokens + 1)
        self.promised = np.zeros(self.draft_tokens + 1)
        self.promised_rounds = np.zeros(self.draft_tokens + 1, np.int64)

    def record(
        self,
        result: RoundResult,
        rounds_B: Int32Array,
        drafted_B: Int32Array,
        deepest_B: Int32Array | None = None,
    ) -> None:
        """Adds one dispatch.

        Args:
            result: Its outcome.
            rounds_B: Rounds of each row.
            drafted_B: Tokens of each row's draft.
            deepest_B: Of a tree, those of its longest branch.
        """
        deepest_B = drafted_B if deepest_B is None else deepest_B
        position_1K = np.arange(self.draft_tokens)[None, :]
        self.committed_tokens += int(result.count_B.sum())
        self.row_rounds += int(rounds_B.sum())
        self.dispatches += 1
        self.forwards += int(rounds_B.max(initial=0))
        self.drafted_tokens += int(drafted_B.sum())
        self.kept_tokens += int(result.kept_B.sum())
        self.drafted_K += (position_1K < deepest_B[:, None]).sum(axis=0)
        self.kept_K += (position_1K < result.kept_B[:, None]).sum(axis=0)

    def record_length(self, draft_tokens: int, rounds_B: Int32Array, seconds: float) -> None:
        """Adds how long the drafts of a dispatch could be, and what it took."""
        self.length_forwards[draft_tokens] += int(rounds_B.max(initial=0))
        self.length_seconds[draft_tokens] += seconds

    def record_choice(self, choice: Choice, running_B: BoolArray) -> None:
        """Adds what each length promised when one was chosen."""
        length_R = choice.length_R  # plain decoding stands there twice, and is told once
        self.promised[length_R] += choice.expected_R
        self.promised_rounds[length_R] += int(running_B.sum())

    @property
    def host_seconds(self) -> float:
        """All host work; the device waits for it, as long as drafts are made between rounds."""
        return self.round_seconds + self.turnover_seconds

    @property
    def mean_draft_tokens(self) -> float:
        """K of a forward, on average."""
        length_K = np.arange(self.draft_tokens + 1)
        return float(length_K @ self.length_forwards) / max(self.forwards, 1)

    @property
    def coverage(self) -> float | None:
        """Share of the outcomes that could use a draft whose draft had been prefetched."""
        wanted = self.hits + self.misses
        return self.hits / wanted if wanted else None

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens by row-rounds; 1.0 for plain decoding."""
        return self.committed_tokens / max(self.row_rounds, 1)
