"""The seam between the rollout engine and whatever proposes drafts on the host."""

from typing import Protocol

from ngramrl_jax.types import BestTokens, Int32Array, UInt32Array


class Drafter(Protocol):
    """Proposes drafts for all rows at once from what the host knows.

    A drafter holds per-row state for `rows` slots and is told, between rounds, what each row
    committed. It may propose anything at all: a bad draft costs speed, never correctness.
    Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, N response tokens,
    W words of a key.
    """

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """Slot `row` begins a new response to the prompt; its earlier state is forgotten.

        `key_W` is the row's key, with whose noise the target will sample; None where a draft must
        not know it, or cannot.
        """
        ...

    def commit(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """Row r committed `tokens_BT[r, :count_B[r]]`; a count of 0 leaves the row untouched."""
        ...

    def propose(self, limit_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Drafts for the next round.

        Args:
            limit_B: int32, the most tokens wanted per row; 0 for idle rows.

        Returns:
            `draft_BK` int32, padded with 0, and `length_B` int32 with
            `length_B <= min(limit_B, K)`. Both are fresh arrays on every call.
        """
        ...

    def finish_row(self, row: int) -> None:
        """Slot `row` is idle until the next `start_row`."""
        ...

    def end_batch(self) -> None:
        """All rows are idle and none is queued: nothing needs to be held ready any longer."""
        ...

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """A finished rollout (stop token included) of training step `step` becomes history.

        `best` holds what the target thought most likely at each of its positions, where known.
        """
        ...
