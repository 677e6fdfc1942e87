"""The seam between the rollout engine and whatever proposes drafts on the host."""

from dataclasses import dataclass
from typing import Protocol

from ngramrl_jax.types import BestTokens, Float32Array, Int32Array, UInt32Array


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


@dataclass(frozen=True)
class FanOut:
    """Drafts held ready for the likely outcomes of a round in flight; F entries a row.

    An entry is keyed by what the row will then be: its length and its last token. Outcomes that end
    the row, or leave no room for a draft, have no entry.

    Attributes:
        length_BF: int32, committed tokens of the row (prompt included) after the outcome; 0 where
            the entry is unused.
        last_BF: int32, its last committed token, the emitted b.
        draft_BFK: int32, padded with 0.
        drafted_BF: int32, lengths of the drafts, <= min(K, room after the outcome - 1).
        mass_BF: float32, estimated (causal) probability of the outcome.
        ending_B: float32, estimated probability that the round in flight ends the row.
    """

    length_BF: Int32Array
    last_BF: Int32Array
    draft_BFK: Int32Array
    drafted_BF: Int32Array
    mass_BF: Float32Array
    ending_B: Float32Array


class Foresight(Drafter, Protocol):
    """A drafter that can draft before it knows what a round has brought."""

    def foresee(self, flight_BK: Int32Array, flown_B: Int32Array, room_B: Int32Array) -> FanOut:
        """Drafts for the likely outcomes of the round in flight.

        The drafter stays in its present state, in which `commit` has told it every earlier round.

        Args:
            flight_BK: int32, the drafts of the round in flight, made in that state.
            flown_B: int32, their lengths.
            room_B: int32, response tokens each row may still commit before that round; 0 for idle
                rows.

        Returns:
            Fresh arrays on every call.
        """
        ...
