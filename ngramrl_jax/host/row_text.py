# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""What each row has said so far, and look-up of repeats within it.

The look-up is the drafter's last resort: where the last n tokens of prompt + response have
occurred in it before, what followed the latest occurrence is proposed (Saxena's prompt look-up).
A table per row and n remembers where each n-gram ended last, so that a look-up costs the tokens
that are new since the last one, not the whole text.

Legend: B rows, S capacity of a row's text, K draft budget, G sizes of n-grams, H slots of a
table, T tokens of a round, P prompt tokens.
"""

import numba
import numpy as np

from ngramrl_jax.host.checks import as_rows, as_token_ids
from ngramrl_jax.types import Int32Array

MIN_NGRAM = 2
_EMPTY = -1

_kernel = numba.njit(nogil=True, cache=True)


class RowText:
    """Prompt and response of every row, and a table of where its n-grams ended last.

    Attributes:
        text_BS: int32, prompt then response.
        start_B: int32, where the response starts; 0 marks an idle row.
        end_B: int32, where the text ends.
    """

    def __init__(self, rows: int, max_ngram: int) -> None:
        sizes = max(0, max_ngram - MIN_NGRAM + 1)
        self.text_BS = np.zeros((rows, 512), np.int32)
        self.start_B = np.zeros(rows, np.int32)
        self.end_B = np.zeros(rows, np.int32)
        self._noted_B = np.zeros(rows, np.int32)
        self._ended_BGH = np.full((rows, sizes, 1024), _EMPTY, np.int32)

    def start(self, row: int, prompt_P: Int32Array) -> None:
        """The row's text becomes the prompt."""
        ids_P = as_token_ids("prompt_P", prompt_P)
        self._reserve(ids_P.size)
        self.text_BS[row, : ids_P.size] = ids_P
        self.start_B[row] = self.end_B[row] = ids_P.size
        self._noted_B[row] = 0
        self._ended_BGH[row] = _EMPTY

    def stop(self, row: int) -> None:
        """The row becomes idle."""
        self.start_B[row] = self.end_B[row] = 0

    def append(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """Row r says `tokens_BT[r, :count_B[r]]`.

        Raises:
            ValueError: Wrong shapes or types, a count outside 0..T, a negative id, or tokens for
                an idle row. No row has changed then.
        """
        rows = self.start_B.size
        new_BT = as_rows("tokens_BT", tokens_BT, (rows, -1))
        counts_B = as_rows("count_B", count_B, (rows,))
        needed = _check(new_BT, counts_B, self.start_B, self.end_B)
        if needed < 0:
            row = -1 - needed
            raise ValueError(
                f"row {row}: found {counts_B[row]} of tokens {new_BT[row].tolist()}, allowed: "
                f"0 to {new_BT.shape[1]} ids of 0 or more, and none for an idle row"
            )
        self._reserve(needed)
        _append(self.text_BS, self.end_B, new_BT, counts_B)

    def draft_repeats(
        self, limit_B: Int32Array, draft_BK: Int32Array, length_B: Int32Array
    ) -> None:
        """Fills in drafts for the rows that have none yet and want one."""
        _draft_repeats(
            self.text_BS, self.end_B, self._noted_B, self._ended_BGH, limit_B, draft_BK, length_B
        )

    def _reserve(self, size: int) -> None:
        """Makes room for texts of `size` tokens; tables are filled again when next needed."""
        rows, capacity = self.text_BS.shape
        if size <= capacity:
            return
        wider = 1 << (size - 1).bit_length()
        text_BS = np.zeros((rows, wider), np.int32)
        text_BS[:, :capacity] = self.text_BS
        self.text_BS = text_BS
        self._noted_B[:] = 0
        self._ended_BGH = np.full((rows, self._ended_BGH.shape[1], 2 * wider), _EMPTY, np.int32)


@_kernel
def _check(tokens_BT, count_B, start_B, end_B):
    """Capacity that the rows need; -1 - row for the first row that is wrong."""
    needed = 0
    for row in range(count_B.size):
        count = count_B[row]
        if count < 0 or count > tokens_BT.shape[1] or (count > 0 and start_B[row] == 0):
            return -1 - row
        for position in range(count):
            if tokens_BT[row, position] < 0:
                return -1 - row
        needed = max(needed, end_B[row] + count)
    return needed


@_kernel
def _append(text_BS, end_B, tokens_BT, count_B):
    for row in range(count_B.size):
        for position in range(count_B[row]):
            text_BS[row, end_B[row] + position] = tokens_BT[row, position]
        end_B[row] += count_B[row]


@_kernel
def _slot(text_S, ended_H, end, n):
    """Slot of the n-gram whose last token is `text_S[end]`: its own, or the free one for it."""
    key = np.uint64(0)
    for position in range(end - n + 1, end + 1):
        key = (key + np.uint64(text_S[position]) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    slot = np.int64(key & np.uint64(ended_H.size - 1))
    while ended_H[slot] != _EMPTY:
        same = True
        for back in range(n):
            same = same and text_S[ended_H[slot] - back] == text_S[end - back]
        if same:
            break
        slot = (slot + 1) & (ended_H.size - 1)
    return slot


@_kernel
def _latest_repeat(text_S, end, noted, ended_GH):
    """Where the text went on after the latest earlier occurrence of its longest repeated end."""
    for position in range(noted, end - 1):
        for size in range(ended_GH.shape[0]):
            n = MIN_NGRAM + size
            if position >= n - 1:
                ended_GH[size, _slot(text_S, ended_GH[size], position, n)] = position
    for size in range(ended_GH.shape[0] - 1, -1, -1):
        n = MIN_NGRAM + size
        if end >= n:
            found = ended_GH[size, _slot(text_S, ended_GH[size], end - 1, n)]
            if found != _EMPTY:
                return found + 1
    return _EMPTY


@_kernel
def _draft_repeats(text_BS, end_B, noted_B, ended_BGH, limit_B, draft_BK, length_B):
    for row in range(end_B.size):
        limit = min(limit_B[row], draft_BK.shape[1])
        end = end_B[row]
        if length_B[row] > 0 or limit <= 0 or end == 0:
            continue
        source = _latest_repeat(text_BS[row], end, noted_B[row], ended_BGH[row])
        noted_B[row] = max(noted_B[row], end - 1)
        if source == _EMPTY:
            continue
        for count in range(limit):
            # Past the end of the text the copy reads on in itself: a loop goes on looping.
            position = source + count
            draft_BK[row, count] = (
                text_BS[row, position] if position < end else draft_BK[row, position - end]
            )
        length_B[row] = limit
