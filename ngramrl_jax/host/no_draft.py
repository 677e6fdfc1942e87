"""A drafter that never proposes: plain decoding, and the floor of every comparison."""

import numpy as np

from ngramrl_jax.types import BestTokens, Int32Array, UInt32Array


class NoDrafter:
    """Implements `Drafter` with empty drafts of budget K.

    Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, N response tokens,
    W words of a key.
    """

    def __init__(self, rows: int, draft_tokens: int = 0) -> None:
        """Empty drafts for `rows` rows."""
        self._shape = (rows, draft_tokens)

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """Nothing to remember."""

    def commit(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """Nothing to remember."""

    def propose(self, limit_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Zeros of shape `[B, K]` and lengths of 0."""
        return np.zeros(self._shape, np.int32), np.zeros_like(limit_B)

    def finish_row(self, row: int) -> None:
        """Nothing to forget."""

    def end_batch(self) -> None:
        """Nothing is held."""

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """Nothing to learn."""
