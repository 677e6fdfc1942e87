# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""What each row has been asked and has said so far.

Legend: B rows, S capacity of a row's text, T tokens of a round, P prompt tokens.
"""

import numpy as np

from ngramrl_jax.host.checks import as_rows, as_token_ids
from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.types import Int32Array


class RowText:
    """Prompt and response of every row.

    Attributes:
        text_BS: int32, prompt then response; what stands behind them is anyone's.
        start_B: int32, where the response starts; 0 marks an idle row.
        end_B: int32, where the text ends.
    """

    def __init__(self, rows: int, spare: int = 0) -> None:
        """Idle rows, with room for `spare` tokens behind every text."""
        self._spare = spare
        self.text_BS = np.zeros((rows, 512 + spare), np.int32)
        self.start_B = np.zeros(rows, np.int32)
        self.end_B = np.zeros(rows, np.int32)

    def start(self, row: int, prompt_P: Int32Array) -> None:
        """The row's text becomes the prompt."""
        ids_P = as_token_ids("prompt_P", prompt_P)
        self._reserve(ids_P.size)
        self.text_BS[row, : ids_P.size] = ids_P
        self.start_B[row] = self.end_B[row] = ids_P.size

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
        needed = int(_check(new_BT, counts_B, self.start_B, self.end_B))
        if needed < 0:
            row = -1 - needed
            raise ValueError(
                f"row {row}: found {counts_B[row]} of tokens {new_BT[row].tolist()}, allowed: "
                f"0 to {new_BT.shape[1]} ids of 0 or more, and none for an idle row"
            )
        self._reserve(needed)
        _append(self.text_BS, self.end_B, new_BT, counts_B)

    def _reserve(self, size: int) -> None:
        """Makes room for texts of `size` tokens."""
        rows, capacity = self.text_BS.shape
        if size + self._spare > capacity:
            wider = (1 << (size - 1).bit_length()) + self._spare
            text_BS = np.zeros((rows, wider), np.int32)
            text_BS[:, :capacity] = self.text_BS
            self.text_BS = text_BS


@kernel
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


@kernel
def _append(text_BS, end_B, tokens_BT, count_B):
    for row in range(count_B.size):
        for position in range(count_B[row]):
            text_BS[row, end_B[row] + position] = tokens_BT[row, position]
        end_B[row] += count_B[row]
