"""Drafters that propose what a good one would not: verification must not mind.

Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, W words of a key.
"""

from collections.abc import Mapping

import numpy as np

from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.types import Int32Array, UInt32Array


class ScriptedDrafter(NoDrafter):
    """Proposes a fixed text for each prompt, whatever the row has said so far."""

    def __init__(self, rows: int, draft_tokens: int, script: Mapping[int, Int32Array]) -> None:
        """`script[prompt_id]` is proposed from its first token on as the row goes on."""
        super().__init__(rows, draft_tokens)
        self._script = script
        self._prompt_B = np.zeros(rows, np.int32)
        self._said_B = np.zeros(rows, np.int32)

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """The row begins at the start of its prompt's script."""
        self._prompt_B[row], self._said_B[row] = prompt_id, 0

    def commit(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """The row moves on in its script."""
        self._said_B += count_B

    def propose(self, limit_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        """The next tokens of each row's script."""
        draft_BK, length_B = super().propose(limit_B)
        for row in np.flatnonzero(limit_B):
            said = self._said_B[row]
            ahead = self._script[int(self._prompt_B[row])][said : said + limit_B[row]]
            draft_BK[row, : len(ahead)] = ahead
            length_B[row] = len(ahead)
        return draft_BK, length_B


class HostileDrafter(NoDrafter):
    """Proposes random ids, some outside the vocabulary, in random number."""

    def __init__(self, rows: int, draft_tokens: int, vocab_size: int, seed: int) -> None:
        """The seed fixes what is proposed."""
        super().__init__(rows, draft_tokens)
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(seed)

    def propose(self, limit_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Ids from -1 to the vocabulary size, both outside it."""
        draft_BK = self._rng.integers(-1, self._vocab_size + 1, self._shape, dtype=np.int32)
        length_B = self._rng.integers(0, limit_B + 1, dtype=np.int32)
        return draft_BK, length_B
