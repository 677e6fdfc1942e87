"""What every drafter from text has in common: the rows' texts, and the shape of a proposal.

Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, N response tokens, W words of
a key.
"""

from abc import ABC, abstractmethod

import numpy as np

from ngramrl_jax.host.checks import as_rows, at_least
from ngramrl_jax.host.row_text import RowText
from ngramrl_jax.types import BestTokens, Int32Array, UInt32Array


class TextDrafter(ABC):
    """A `ngramrl_jax.host.protocol.Drafter` that knows its rows' texts.

    Attributes:
        draft_tokens: K.
        match_length_B: int32, length of the suffix that each of the last drafts continues.
    """

    def __init__(self, rows: int, draft_tokens: int, *, spare: int = 0) -> None:
        """A drafter for `rows` idle rows, with room for `spare` tokens behind every text.

        Raises:
            ValueError: `rows` is below 1, or `draft_tokens` below 0.
        """
        self.draft_tokens = at_least("draft_tokens", draft_tokens, 0)
        self.match_length_B = np.zeros(at_least("rows", rows, 1), np.int32)
        self._text = RowText(rows, spare)

    @property
    def rows(self) -> int:
        """B."""
        return self.match_length_B.size

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """Slot `row` begins a new response to the prompt; its earlier state is forgotten.

        Raises:
            ValueError: No such row, a negative prompt id, or tokens that are no int32 ids.
        """
        at_least("prompt_id", prompt_id, 0)
        self.finish_row(row)
        self._text.start(row, prompt_P)

    def commit(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """Row r committed `tokens_BT[r, :count_B[r]]`; a count of 0 leaves the row untouched.

        Raises:
            ValueError: See `RowText.append`.
        """
        self._text.append(tokens_BT, count_B)

    def propose(self, limit_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Drafts for the next round: fresh `draft_BK` padded with 0, and `length_B`.

        Raises:
            ValueError: `limit_B` is not one integer per row.
        """
        wanted_B = np.minimum(as_rows("limit_B", limit_B, (self.rows,)), self.draft_tokens)
        wanted_B[self._text.end_B == 0] = 0
        draft_BK = np.zeros((self.rows, self.draft_tokens), np.int32)
        length_B = np.zeros(self.rows, np.int32)
        self.match_length_B = np.zeros(self.rows, np.int32)
        self._draft(wanted_B, draft_BK, length_B, self.match_length_B)
        return draft_BK, length_B

    def finish_row(self, row: int) -> None:
        """Slot `row` is idle until the next `start_row`; one that is idle already stays so.

        Raises:
            ValueError: No such row.
        """
        if not 0 <= row < self.rows:
            raise ValueError(f"row: found {row}, allowed: 0 to {self.rows - 1}")
        self._text.stop(row)

    def end_batch(self) -> None:  # noqa: B027 (not every drafter has something to do here)
        """Nothing is held ready."""

    def observe(  # noqa: B027
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """Finished rollouts teach nothing, unless a drafter says otherwise."""

    @abstractmethod
    def _draft(
        self,
        wanted_B: Int32Array,
        draft_BK: Int32Array,
        length_B: Int32Array,
        match_length_B: Int32Array,
    ) -> None:
        """Fills in drafts of at most `wanted_B` tokens; 0 for idle rows."""
