"""The NgramRL drafter: what the prompt's recent rollouts said next, proposed for all rows at once.

Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, N response tokens.
"""

import numpy as np

from ngramrl_jax.host import automaton
from ngramrl_jax.host.arena import MATCH, NONE
from ngramrl_jax.host.checks import as_rows, at_least
from ngramrl_jax.host.history import History
from ngramrl_jax.host.row_text import RowText
from ngramrl_jax.types import Int32Array

_IDLE = -1


class NgramDrafter:
    """Drafts from the prompt's history; see `ngramrl_jax.host.protocol.Drafter`.

    Each draft token continues the longest suffix of (start of response + response + draft so
    far) that the prompt's history continues at all, with the token of the highest weight there:
    occurrences, those in fresh rollouts counting twice. Equal weights: the token that the newer
    rollout chose, then the lower id. Where the history continues no suffix, not even for a first
    token, the row's own text is looked up instead: last occurrence of its last `max_ngram` tokens,
    then of fewer, down to two.

    Not thread-safe: one thread at a time calls a drafter or its history.

    Attributes:
        history: Rollouts to draft from; may be shared by drafters.
        draft_tokens: K.
    """

    def __init__(
        self,
        rows: int,
        draft_tokens: int,
        history: History,
        *,
        min_match: int = 1,
        max_ngram: int = 3,
    ) -> None:
        """A drafter for `rows` idle rows.

        Args:
            rows: B, at least 1.
            draft_tokens: K, at least 0.
            history: Rollouts to draft from.
            min_match: Shortest suffix to continue from, at least 1; the start of the response
                counts as a token, and a match of the whole response always suffices.
            max_ngram: Longest suffix to look up in the row's own text; below 2 there is no such
                look-up.

        Raises:
            ValueError: A setting lies outside its range.
        """
        self.draft_tokens = at_least("draft_tokens", draft_tokens, 0)
        self.history = history
        self._min_match = at_least("min_match", min_match, 1)
        self._text = RowText(at_least("rows", rows, 1), at_least("max_ngram", max_ngram, 0))
        self._looks_up = max_ngram >= 2
        self._prompts = [_IDLE] * rows
        self._matches_B = np.zeros(rows, MATCH)
        self._matches_B["root"] = NONE
        self._index, self._generation = history.index, -1

    @property
    def rows(self) -> int:
        """B."""
        return len(self._prompts)

    def start_row(self, row: int, prompt_id: int, prompt_P: Int32Array) -> None:
        """Slot `row` begins a new response to the prompt; its earlier state is forgotten.

        Raises:
            ValueError: No such row, a negative prompt id, or tokens that are no int32 ids.
        """
        at_least("prompt_id", prompt_id, 0)
        self.finish_row(row)
        self._text.start(row, prompt_P)
        self.history.acquire(prompt_id)
        self._prompts[row] = prompt_id
        self._forget_match(row)

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
        limits_B = as_rows("limit_B", limit_B, (self.rows,))
        draft_BK = np.zeros((self.rows, self.draft_tokens), np.int32)
        length_B = np.zeros(self.rows, np.int32)
        if self._index is not self.history.index or self._generation != self._index.generation:
            self._find_roots()
        automaton.draft_rows(
            self._index.arena,
            self._matches_B,
            self._text.text_BS,
            self._text.start_B,
            self._text.end_B,
            limits_B,
            self._min_match,
            draft_BK,
            length_B,
        )
        if self._looks_up and not length_B.all():
            self._text.draft_repeats(limits_B, draft_BK, length_B)
        return draft_BK, length_B

    def finish_row(self, row: int) -> None:
        """Slot `row` is idle until the next `start_row`; one that is idle already stays so.

        Raises:
            ValueError: No such row.
        """
        if not 0 <= row < self.rows:
            raise ValueError(f"row: found {row}, allowed: 0 to {self.rows - 1}")
        self._text.stop(row)
        self._matches_B["root"][row] = NONE
        if self._prompts[row] != _IDLE:
            self.history.release(self._prompts[row])
            self._prompts[row] = _IDLE

    def end_batch(self) -> None:
        """Drops the indices of prompts that no row uses; see `History`."""
        self.history.drop_resting()

    def observe(self, prompt_id: int, tokens_N: Int32Array, step: int) -> None:
        """A finished rollout (stop token included) of training step `step` becomes history.

        Raises:
            ValueError: See `History.observe`.
        """
        self.history.observe(prompt_id, tokens_N, step)

    def _forget_match(self, row: int) -> None:
        self._matches_B["root"][row] = self.history.index.root(self._prompts[row])
        self._matches_B["seen"][row] = NONE

    def _find_roots(self) -> None:
        """Roots have moved: every row matches its text afresh from its prompt's new root."""
        self._index, self._generation = self.history.index, self.history.index.generation
        for row, prompt_id in enumerate(self._prompts):
            if prompt_id != _IDLE:
                self._forget_match(row)


def warm_up() -> None:
    """Compiles every kernel, or loads it from the cache on disk, before it is needed in a hurry."""
    history = History(window=1)
    drafter = NgramDrafter(1, 2, history)
    one_B = np.ones(1, np.int32)
    drafter.start_row(0, 0, np.array([1, 2, 1, 2], np.int32))
    drafter.propose(one_B)
    for step in range(3):
        drafter.observe(0, np.array([1, 1, 2, 1], np.int32), step)
        drafter.propose(one_B)
        drafter.commit(one_B[:, None], one_B)
    drafter.finish_row(0)
