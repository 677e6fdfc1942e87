"""The oracle chain: drafts the policy's most likely token at every position.

No draft of single tokens that does not know the noise can do better, so it is what a drafter is
measured by: where the policy's entropy is high, even the oracle keeps few tokens.

Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, N response tokens,
W words of a key.
"""

import numpy as np

from ngramrl_jax.types import BestTokens, Int32Array, Rollout, UInt32Array


class OracleChain:
    """Implements `Drafter` for replay, from the recorded best tokens of the very rollout."""

    def __init__(self, rows: int, draft_tokens: int) -> None:
        """Idle rows of budget K."""
        self._shape = (rows, draft_tokens)
        self._ahead: list[Int32Array] = [np.zeros(0, np.int32)] * rows

    def reveal(self, row: int, rollout: Rollout) -> None:
        """The rollout that slot `row` is going to say.

        Raises:
            ValueError: Its best tokens were not recorded.
        """
        if rollout.best is None:
            raise ValueError(
                f"oracle: found no best tokens in step {rollout.step}, allowed: a trace with them"
            )
        self._ahead[row] = rollout.best.ids_NR[:, 0]

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """`reveal` follows."""

    def commit(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """Moves ahead."""
        for row in np.flatnonzero(count_B):
            self._ahead[row] = self._ahead[row][count_B[row] :]

    def propose(self, limit_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        """What the policy holds most likely, given that everything before comes true."""
        draft_BK = np.zeros(self._shape, np.int32)
        length_B = np.zeros(self._shape[0], np.int32)
        for row in np.flatnonzero(limit_B):
            ahead = self._ahead[row][: limit_B[row]]
            draft_BK[row, : len(ahead)] = ahead
            length_B[row] = len(ahead)
        return draft_BK, length_B

    def finish_row(self, row: int) -> None:
        """Nothing to forget."""

    def end_batch(self) -> None:
        """Nothing is held."""

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """Nothing to learn."""
