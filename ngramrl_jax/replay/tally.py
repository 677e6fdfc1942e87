"""What drafting cost and kept, as sums that add up over steps.

Legend: B rows, K draft budget, M match lengths told apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.types import BoolArray, Int32Array

Counts = NDArray[np.int64]

LONGEST_MATCH = 64  # longer ones share the last place of the histogram


@dataclass
class Tally:
    """Sums over row-rounds.

    Attributes:
        draft_tokens: K.
        tokens: Committed.
        row_rounds: Rounds, counted once for each row in them.
        drafted_tokens: Draft tokens that were verified.
        drafted_K: How often a draft had an i-th token one after the other; of a tree, its longest
            branch.
        kept_K: How often it was committed.
        lengths: How often a draft had 0, 1, ... K tokens.
        matches: How often a draft continued a match of 0, 1, ... `LONGEST_MATCH` or more tokens;
            zeros where the drafter does not tell.
        seconds: Inside the drafter, proposals and commits.
    """

    draft_tokens: int
    tokens: int = 0
    row_rounds: int = 0
    drafted_tokens: int = 0
    drafted_K: Counts = field(init=False)
    kept_K: Counts = field(init=False)
    lengths: Counts = field(init=False)
    matches: Counts = field(init=False)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.drafted_K = np.zeros(self.draft_tokens, np.int64)
        self.kept_K = np.zeros(self.draft_tokens, np.int64)
        self.lengths = np.zeros(self.draft_tokens + 1, np.int64)
        self.matches = np.zeros(LONGEST_MATCH + 1, np.int64)

    def record(
        self,
        running_B: BoolArray,
        length_B: Int32Array,
        deepest_B: Int32Array,
        kept_B: Int32Array,
        count_B: Int32Array,
        match_B: Int32Array | None,
    ) -> None:
        """Adds one round of the running rows, whose drafts have `length_B` tokens in all."""
        position_1K = np.arange(self.draft_tokens)[None, :]
        self.tokens += int(count_B.sum())
        self.row_rounds += int(running_B.sum())
        self.drafted_tokens += int(length_B.sum())
        self.drafted_K += (position_1K < deepest_B[:, None]).sum(axis=0)
        self.kept_K += (position_1K < kept_B[:, None]).sum(axis=0)
        self.lengths += np.bincount(length_B[running_B], minlength=self.draft_tokens + 1)
        if match_B is not None:
            known_B = np.clip(match_B[running_B], 0, LONGEST_MATCH)
            self.matches += np.bincount(known_B, minlength=LONGEST_MATCH + 1)

    @property
    def tokens_per_forward(self) -> float:
        """Committed tokens by row-rounds."""
        return self.tokens / max(self.row_rounds, 1)


def total(tallies: Iterable[Tally], draft_tokens: int) -> Tally:
    """The sum of tallies of the same K."""
    result = Tally(draft_tokens)
    for tally in tallies:
        for entry in fields(Tally):
            if entry.name != "draft_tokens":
                value = getattr(result, entry.name) + getattr(tally, entry.name)
                setattr(result, entry.name, value)
    return result
