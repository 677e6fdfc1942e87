"""A drafter that has heard all rollouts before.

How good its drafts are, what it foresees and what a look-up costs are given, and where it errs
hangs on the text alone. So every way of drafting has the same drafts, and what is measured is the
schedule alone.

Legend: B rows, F entries a row, K draft budget, N response tokens.
"""

from collections.abc import Mapping
from time import sleep

import numpy as np

from ngramrl_jax.host.protocol import FanOut
from ngramrl_jax.types import BestTokens, Int32Array, UInt32Array


class RecordedDrafter:
    """Implements `Foresight`.

    Attributes:
        look_up_s: What every `propose` and every `foresee` takes longer than it would, asleep.
    """

    def __init__(
        self,
        rows: int,
        draft_tokens: int,
        future: Mapping[tuple[int, ...], Int32Array],
        *,
        right: float,
        coverage: float,
        entries: int = 1,
    ) -> None:
        """For `rows` idle rows.

        Args:
            rows: B.
            draft_tokens: K.
            future: What the row with these key words will say.
            right: Share of the draft tokens that are.
            coverage: Share of the outcomes that are foreseen.
            entries: F; those beside the true outcome hold outcomes that do not happen.
        """
        self.look_up_s = 0.0
        self._draft_tokens, self._entries = draft_tokens, entries
        self._future, self._right, self._coverage = future, right, coverage
        longest = max(map(len, future.values())) + 2 * draft_tokens + 2
        self._text_BN = np.zeros((rows, longest), np.int32)
        self._wrong_BN, self._held_BN = np.zeros((2, rows, longest), bool)
        self._prompt_B, self._said_B, self._size_B = np.zeros((3, rows), np.int32)

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """The row will say what it said."""
        assert key_W is not None, "rows are told apart by their keys"
        text = self._future[tuple(key_W.tolist())]
        self._text_BN[row] = 0
        self._text_BN[row, : len(text)] = text
        random = np.random.default_rng(key_W)
        self._wrong_BN[row] = random.random(self._wrong_BN.shape[1]) > self._right
        self._held_BN[row] = random.random(self._held_BN.shape[1]) < self._coverage
        self._prompt_B[row], self._said_B[row], self._size_B[row] = len(prompt_P), 0, len(text)

    def commit(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """The rows moved on."""
        self._said_B += count_B

    def propose(self, limit_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        """What comes next, with mistakes."""
        sleep(self.look_up_s)
        return self._drafts(self._said_B, limit_B)

    def foresee(self, flight_BK: Int32Array, flown_B: Int32Array, room_B: Int32Array) -> FanOut:
        """The outcome that will happen, where it is foreseen."""
        sleep(self.look_up_s)
        K, shape = self._draft_tokens, (len(room_B), self._entries)
        offset_1K = np.arange(K, dtype=np.int32)[None, :]
        ahead_BK = np.take_along_axis(self._text_BN, self._said_B[:, None] + offset_1K, axis=1)
        same_BK = (flight_BK == ahead_BK) & (offset_1K < flown_B[:, None])
        said_B = self._said_B + np.logical_and.accumulate(same_BK, axis=1).sum(axis=1) + 1
        said_B = said_B.astype(np.int32)
        left_B = room_B - (said_B - self._said_B)
        limit_B = np.where((room_B > 0) & (said_B < self._size_B), left_B - 1, 0)
        draft_BK, drafted_B = self._drafts(said_B, limit_B.clip(0, K).astype(np.int32))
        last_B1 = said_B[:, None] - 1
        held_B = (limit_B > 0) & np.take_along_axis(self._held_BN, last_B1, axis=1)[:, 0]
        last_B = np.take_along_axis(self._text_BN, last_B1, axis=1)[:, 0]
        fan = FanOut(
            np.zeros(shape, np.int32),
            np.zeros(shape, np.int32),
            np.zeros((*shape, K), np.int32),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.float32),
            ((room_B > 0) & ((said_B >= self._size_B) | (left_B < 1))).astype(np.float32),
        )
        fan.mass_BF[:, -1] = np.where(limit_B > 0, self._coverage, 0.0)
        fan.length_BF[:, -1] = np.where(held_B, self._prompt_B + said_B, 0)
        fan.last_BF[:, -1] = last_B
        fan.draft_BFK[:, -1] = draft_BK
        fan.drafted_BF[:, -1] = drafted_B
        return fan

    def finish_row(self, row: int) -> None:
        """Nothing is left to say."""
        self._size_B[row] = self._said_B[row] = 0

    def end_batch(self) -> None:
        """Nothing is held."""

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """Nothing new."""

    def _drafts(self, said_B: Int32Array, limit_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        offset_1K = np.arange(self._draft_tokens, dtype=np.int32)[None, :]
        drafted_B = np.minimum(limit_B, np.maximum(self._size_B - said_B, 0)).astype(np.int32)
        place_BK = said_B[:, None] + offset_1K
        draft_BK = np.take_along_axis(self._text_BN, place_BK, axis=1)
        wrong_BK = np.take_along_axis(self._wrong_BN, place_BK, axis=1)
        draft_BK = np.where(wrong_BK, draft_BK + 1, draft_BK)
        return np.where(offset_1K < drafted_B[:, None], draft_BK, 0).astype(np.int32), drafted_B
