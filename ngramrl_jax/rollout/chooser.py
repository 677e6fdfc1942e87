"""What the next dispatch runs: a drafted round of some K, or plain rounds.

Legend: B rows, K draft budget, X columns of packed drafts, T token columns of a result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ngramrl_jax.host.draft_length import (
    MOST_PROGRAMS,
    SHORT,
    Choice,
    DraftLength,
    Rung,
    length_rungs,
)
from ngramrl_jax.rollout.ladder import length_ladder, rung_for
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.rollout.slots import SlotTable
from ngramrl_jax.rollout.wire import RoundResult
from ngramrl_jax.types import BoolArray, Int32Array

_TRIALS = 5  # the first compiles
_SURE_SECONDS = 0.2  # a dispatch that takes so long is timed once


@dataclass(frozen=True)
class Drafts:
    """What a drafter proposed.

    Attributes:
        draft_BX: int32, K tokens of a chain; of a tree the columns of `DraftTrees`.
        length_B: int32, how many tokens count.
        match_B: int32, the length of the match that each continues; zeros where nobody tells.
        deepest_B: int32, of trees, the tokens of the longest branch; None where drafts are chains.
    """

    draft_BX: Int32Array
    length_B: Int32Array
    match_B: Int32Array
    deepest_B: Int32Array | None = None

    @classmethod
    def none(cls, settings: EngineSettings) -> "Drafts":
        """Empty drafts."""
        zero_B = np.zeros(settings.slots, np.int32)
        draft_BX = np.zeros((settings.slots, settings.draft_columns), np.int32)
        return cls(draft_BX, zero_B, zero_B, zero_B if settings.drafts_trees else None)


@dataclass(frozen=True)
class Plan:
    """A dispatch.

    Attributes:
        rung: Its kind and length.
        live: Bound on the positions attended, from the live ladder.
        drafts: What was proposed; at K = 0 in the shadow.
        cut_B: int32, how many tokens of each draft are verified; zeros at K = 0.
        choice: Why; None where nothing was chosen.
    """

    rung: Rung
    live: int
    drafts: Drafts
    cut_B: Int32Array
    choice: Choice | None = None

    @property
    def draft_BX(self) -> Int32Array:
        """The drafts, chains as wide as the rung; trees are never cut."""
        if self.drafts.deepest_B is not None:
            return self.drafts.draft_BX
        return self.drafts.draft_BX[:, : self.rung.draft_tokens]

    def rounds_B(self, running_B: BoolArray, result: RoundResult) -> Int32Array:
        """How many rounds each row took part in."""
        return running_B.astype(np.int32) if self.rung.draft_tokens else result.count_B


class Chooser(Protocol):
    """Plans dispatches, and learns from them."""

    def trials(self) -> Iterator[Plan]:
        """Every program of a run, to be compiled and timed before it on rows of one token."""
        ...

    def plan(self, slots: SlotTable, drafts: Drafts) -> Plan:
        """The next dispatch."""
        ...

    def round_seconds(self, live: int) -> dict[int, float]:
        """Measured cost of a round by draft length at that live rung."""
        ...

    def learn(self, plan: Plan, running_B: BoolArray, result: RoundResult, seconds: float) -> None:
        """What became of it; `seconds` is all its time, the host's too."""
        ...


def make_chooser(settings: EngineSettings) -> Chooser:
    """As `settings.draft_length` says; there is nothing to choose where K is 0."""
    chooses = settings.draft_length == "auto" and settings.draft_tokens
    return ChosenLength(settings) if chooses else FixedLength(settings)


class FixedLength:
    """The same K in every round."""

    def __init__(self, settings: EngineSettings) -> None:
        """One program for each live rung."""
        K = settings.draft_tokens
        self._rung = Rung(K) if K else Rung(0, settings.plain_rounds)
        self._lives = length_ladder(settings.capacity)
        self._no_drafts = Drafts.none(settings)

    def trials(self) -> Iterator[Plan]:
        """One a program."""
        for live in self._lives:
            yield Plan(self._rung, live, self._no_drafts, self._no_drafts.length_B)

    def plan(self, slots: SlotTable, drafts: Drafts) -> Plan:
        """The only rung."""
        return Plan(self._rung, _live(slots, self._rung, self._lives), drafts, drafts.length_B)

    def learn(self, plan: Plan, running_B: BoolArray, result: RoundResult, seconds: float) -> None:
        """Nothing."""

    def round_seconds(self, live: int) -> dict[int, float]:
        """Nothing is measured."""
        return {}


class ChosenLength:
    """K by expected committed tokens a second, see `ngramrl_jax.host.draft_length`."""

    def __init__(self, settings: EngineSettings) -> None:
        """Programs for some draft lengths and plain decoding."""
        first = 64
        while 2 * len(lives := length_ladder(settings.capacity, first)) > MOST_PROGRAMS:
            first *= 2
        self._lives = lives
        rungs = length_rungs(settings.draft_tokens, settings.plain_rounds, len(lives))
        self._length = DraftLength(rungs, lives)
        self._no_drafts = Drafts.none(settings)

    def trials(self) -> Iterator[Plan]:
        """Several of each rung and live rung; the two plain rungs share a program."""
        none_B = self._no_drafts.length_B
        for live in self._lives:
            for number, rung in enumerate(self._length.rungs):
                nothing = np.zeros(0)
                choice = Choice(number, none_B, nothing, nothing, nothing)
                for _ in range(_TRIALS):
                    yield Plan(rung, live, self._no_drafts, none_B, choice)
                    if self._length.costs.seconds(number, live) * rung.rounds > _SURE_SECONDS:
                        break

    def plan(self, slots: SlotTable, drafts: Drafts) -> Plan:
        """The best rung for these drafts."""
        rungs = self._length.rungs
        lives = [_live(slots, rung, self._lives) for rung in rungs]
        choice = self._length.choose(drafts.match_B, drafts.length_B, slots.running_B, lives)
        rung = rungs[choice.rung]
        cut_B = np.minimum(choice.cut_B, rung.draft_tokens)
        return Plan(rung, lives[choice.rung], drafts, cut_B, choice)

    def learn(self, plan: Plan, running_B: BoolArray, result: RoundResult, seconds: float) -> None:
        """The cost of a round, and which of the drafts' tokens were, or would have been, kept."""
        assert plan.choice is not None
        rounds = int(plan.rounds_B(running_B, result).max())
        if rounds:
            # Rows that end in a plain dispatch are not charged to it: what the others run is not
            # longer for them, and drafted rounds are chosen for fewer rows then as well.
            self._length.costs.record(plan.choice.rung, plan.live, seconds / rounds)
        if plan.rung.draft_tokens:
            kept_B, drafted_B = result.kept_B, plan.cut_B
        else:
            kept_B, drafted_B = shadow_kept(plan.drafts, result), plan.drafts.length_B
        self._length.survival.record(plan.drafts.match_B, drafted_B, kept_B, result.count_B)

    def round_seconds(self, live: int) -> dict[int, float]:
        """Plain decoding at length, and every draft length."""
        return {
            rung.draft_tokens: self._length.costs.seconds(number, live)
            for number, rung in enumerate(self._length.rungs)
            if number != SHORT
        }


def shadow_kept(drafts: Drafts, result: RoundResult) -> Int32Array:
    """How many tokens of each chain are what the row said without it, int32 `[B]`."""
    columns = min(drafts.draft_BX.shape[1], result.tokens_BT.shape[1])
    compared_B = np.minimum(drafts.length_B, result.count_B)
    agree_BK = drafts.draft_BX[:, :columns] == result.tokens_BT[:, :columns]
    agree_BK &= np.arange(columns)[None] < compared_B[:, None]
    return np.logical_and.accumulate(agree_BK, axis=1).sum(axis=1, dtype=np.int32)


def _live(slots: SlotTable, rung: Rung, ladder: tuple[int, ...]) -> int:
    """The rung that covers every position that the dispatch may reach."""
    drafted_B = np.full_like(slots.room_B, rung.draft_tokens)
    ahead_B = drafted_B if rung.draft_tokens else np.minimum(slots.room_B, rung.rounds)
    return rung_for(slots.reach(ahead_B), ladder)
