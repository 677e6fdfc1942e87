"""What a batch of rollouts cost: sums only, from which rates are derived.

Legend: B rows, K draft budget.
"""

from dataclasses import dataclass, field

import numpy as np

from ngramrl_jax.rollout.wire import RoundResult
from ngramrl_jax.types import Int32Array


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
        draft_seconds: The part of it inside the drafter.
        turnover_seconds: Host work of rows that come and go: refilling, prefill, history.
        device_seconds: Waiting for outcomes.
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

    def __post_init__(self) -> None:
        self.drafted_K = np.zeros(self.draft_tokens, np.int64)
        self.kept_K = np.zeros(self.draft_tokens, np.int64)

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

    @property
    def host_seconds(self) -> float:
        """All host work; the device waits for it, as long as drafts are made between rounds."""
        return self.round_seconds + self.turnover_seconds

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens by row-rounds; 1.0 for plain decoding."""
        return self.committed_tokens / max(self.row_rounds, 1)
