"""Recorded rollouts run through a drafter, on the schedule of `RolloutEngine.generate`.

What a row says does not depend on its drafter; how fast it says it does. So a row commits its
recorded tokens as quickly as the drafter foresees them, its slot is refilled when it is done, and
its siblings see it from then on: with the run's own drafter and K, round for round what happened.
Rounds that were sent ahead (`rollout.prefetch: device`) let a new row idle for one; here none does.

Legend: B rows, T = K + 1 tokens of a round, K draft budget, N response tokens.
"""

from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np

from ngramrl_jax.host.noise import row_key
from ngramrl_jax.host.protocol import Drafter
from ngramrl_jax.host.tree_draft import true_depths
from ngramrl_jax.host.trees import DraftTrees, as_tree_drafter
from ngramrl_jax.replay.tally import Tally
from ngramrl_jax.trace.records import TracedStep
from ngramrl_jax.types import Int32Array, Rollout


@dataclass(frozen=True)
class Schedule:
    """What the engine is set to.

    Attributes:
        slots: B.
        draft_tokens: K.
        max_new_tokens: Response tokens at most.
        seed: Of the run.
        shares_noise: Whether drafters are told the rows' keys.
    """

    slots: int
    draft_tokens: int
    max_new_tokens: int
    seed: int = 0
    shares_noise: bool = False


def walk_step(drafter: Drafter, step: TracedStep, schedule: Schedule) -> Tally:
    """Runs one step's rollouts in the order in which they entered the slots.

    A drafter that proposes trees is asked for them. A drafter may tell the length of the matches
    that its last drafts continue, one a row, as `match_length_B`; one that may know the future has
    `reveal(row, rollout)`, called at the start of a row.
    """
    queue = deque(sorted(step.rollouts, key=lambda rollout: (rollout.started, rollout.slot)))
    rows = _Rows(schedule, max((len(r.tokens_N) for r in step.rollouts), default=0))
    tally = Tally(schedule.draft_tokens)
    while queue or rows.running_B.any():
        for row in rows.idle()[: len(queue)]:
            rollout = queue.popleft()
            rows.place(row, rollout)
            _start(drafter, row, rollout, step.step, schedule)
        running_B = rows.running_B
        limit_B = np.clip(rows.room_B - 1, 0, schedule.draft_tokens)
        began = perf_counter()
        drafts = _propose(drafter, limit_B)
        proposed = perf_counter()
        tokens_BT = rows.ahead()
        count_B, kept_B = rows.advance(drafts.accepted(tokens_BT))
        matched_B = getattr(drafter, "match_length_B", None)
        tally.record(running_B, drafts.count_B, drafts.deepest_B, kept_B, count_B, matched_B)
        verified = perf_counter()
        drafter.commit(tokens_BT, count_B)
        tally.seconds += perf_counter() - verified + proposed - began
        for row, rollout in rows.take_finished():
            drafter.finish_row(row)
            drafter.observe(rollout.prompt_id, rollout.tokens_N, step.step, rollout.best)
    return tally


class _Chains(NamedTuple):
    """Drafts of one branch, with what `DraftTrees` also has."""

    draft_BK: Int32Array
    count_B: Int32Array

    @property
    def deepest_B(self) -> Int32Array:
        """All tokens of a chain come one after the other."""
        return self.count_B

    def accepted(self, ahead_BT: Int32Array) -> Int32Array:
        """How many draft tokens from the first on are the tokens ahead."""
        slot_1K = np.arange(self.draft_BK.shape[1], dtype=np.int32)[None, :]
        agrees_BK = (self.draft_BK == ahead_BT[:, :-1]) & (slot_1K < self.count_B[:, None])
        return np.logical_and.accumulate(agrees_BK, axis=1).sum(axis=1, dtype=np.int32)


class _Trees(NamedTuple):
    """Draft trees, likewise."""

    trees: DraftTrees

    @property
    def count_B(self) -> Int32Array:
        """Nodes of each tree."""
        return self.trees.count_B

    @property
    def deepest_B(self) -> Int32Array:
        """Those of its longest branch."""
        return self.trees.deepest_B

    def accepted(self, ahead_BT: Int32Array) -> Int32Array:
        """How many nodes from the root on are the tokens ahead."""
        trees = self.trees
        return true_depths(trees.tokens_BN, trees.parent_BN, trees.count_B, ahead_BT)


def _propose(drafter: Drafter, limit_B: Int32Array) -> _Chains | _Trees:
    if hasattr(drafter, "propose_tree"):
        return _Trees(as_tree_drafter(drafter).propose_tree(limit_B))
    return _Chains(*drafter.propose(limit_B))


def _start(drafter: Drafter, row: int, rollout: Rollout, step: int, schedule: Schedule) -> None:
    key_W = row_key(schedule.seed, step, *rollout.identity) if schedule.shares_noise else None
    drafter.start_row(row, rollout.prompt_id, rollout.prompt_P, key_W)
    if reveal := getattr(drafter, "reveal", None):
        reveal(row, rollout)


class _Rows:
    """The slots, and what their rollouts have yet to say.

    Attributes:
        room_B: int32, response tokens left by the engine's count; 0 for idle rows.
    """

    def __init__(self, schedule: Schedule, longest: int) -> None:
        self._most = schedule.max_new_tokens
        self._rollouts: list[Rollout | None] = [None] * schedule.slots
        self.room_B = np.zeros(schedule.slots, np.int32)
        self._said_B = np.zeros(schedule.slots, np.int32)
        self._left_B = np.zeros(schedule.slots, np.int32)
        self._round_tokens = schedule.draft_tokens + 1
        # A round may look past the end.
        self._text_BN = np.zeros((schedule.slots, longest + self._round_tokens), np.int32)

    @property
    def running_B(self) -> np.ndarray:
        """bool, rows that have something left to say."""
        return self._left_B > 0

    def idle(self) -> list[int]:
        """Slots without a rollout, rising."""
        return [row for row, rollout in enumerate(self._rollouts) if rollout is None]

    def place(self, row: int, rollout: Rollout) -> None:
        """Puts a rollout into an idle slot."""
        length = len(rollout.tokens_N)
        self._rollouts[row] = rollout
        self._text_BN[row, :length] = rollout.tokens_N
        self._said_B[row] = 0
        self._left_B[row] = length
        self.room_B[row] = length if rollout.truncated else max(length, self._most)

    def ahead(self) -> Int32Array:
        """The next K + 1 tokens of every row: `tokens_BT` of a round."""
        step_1T = np.arange(self._round_tokens, dtype=np.int32)[None, :]
        return np.take_along_axis(self._text_BN, self._said_B[:, None] + step_1T, axis=1)

    def advance(self, accepted_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        """Commits what was accepted and one token more: `count_B` and `kept_B` of a round."""
        count_B = np.minimum(accepted_B + 1, self._left_B)
        self._said_B += count_B
        self._left_B -= count_B
        self.room_B -= count_B
        return count_B, np.minimum(accepted_B, count_B)

    def take_finished(self) -> list[tuple[int, Rollout]]:
        """Takes what has been said to its end out of the slots, in their order."""
        taken = []
        for row, rollout in enumerate(self._rollouts):
            if rollout is not None and not self._left_B[row]:
                taken.append((row, rollout))
                self._rollouts[row] = None
                self.room_B[row] = self._said_B[row] = 0
        return taken
