"""How drafts reach the device and outcomes the drafter: the seam, and the way without a thread.

The engine fills slots and takes finished rollouts out of them; in between it asks for the next
outcome. Which rounds were sent for that, when, and with which drafts, it does not know.

Legend: B rows, K draft budget, W words of a key.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import jax
import numpy as np

from ngramrl_jax.host.protocol import Drafter
from ngramrl_jax.host.trees import as_tree_drafter
from ngramrl_jax.protocols import Params
from ngramrl_jax.rollout.chooser import Chooser, Drafts, Plan
from ngramrl_jax.rollout.counters import RolloutCounters
from ngramrl_jax.rollout.device import Device
from ngramrl_jax.rollout.ladder import rung_for
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.rollout.slots import SlotTable
from ngramrl_jax.rollout.timeline import RoundTimes
from ngramrl_jax.rollout.wire import RoundResult
from ngramrl_jax.types import Int32Array, Rollout, RolloutRequest, UInt32Array


@dataclass(frozen=True)
class Batch:
    """What every way works on while a batch of rollouts is sampled.

    Attributes:
        settings: The engine's.
        params: Of the policy.
        device: Runs the rounds.
        slots: What the host knows of the rows; the ways record outcomes in it.
        counters: What it costs.
    """

    settings: EngineSettings
    params: Params
    device: Device
    slots: SlotTable
    counters: RolloutCounters

    def live(self, ahead_B: Int32Array) -> int:
        """The rung that covers all positions of rows which move on by `ahead_B`."""
        return rung_for(self.slots.reach(ahead_B), self.device.live_ladder)

    def record(self, result: RoundResult, drafted_B: Int32Array, seconds: float) -> None:
        """Enters the outcome of a round of K that had drafts of these lengths and took so long."""
        rounds_B = (result.count_B > 0).astype(np.int32)  # a row that takes part commits something
        self.slots.record(result, rounds_B)
        self.counters.record(result, rounds_B, drafted_B)
        self.counters.record_length(self.settings.draft_tokens, rounds_B, seconds)


class Drafting(Protocol):
    """One way of drafting, for one batch of rollouts."""

    def start_row(self, row: int, request: RolloutRequest, key_W: UInt32Array | None) -> None:
        """The request was admitted to the idle slot `row`."""
        ...

    def finish_row(self, row: int, rollout: Rollout, step: int) -> None:
        """The rollout was taken out of slot `row`."""
        ...

    def advance(self, *, waiting: bool) -> RoundResult:
        """The next outcome, recorded already; `waiting` says whether requests wait for a slot."""
        ...

    def end_batch(self) -> None:
        """All rows are idle and none is queued; the drafter is its owner's again on return."""
        ...

    def close(self) -> None:
        """Leaves nothing running behind, also where the batch was broken off."""
        ...


class _Direct:
    """Calls the drafter in the engine's own thread."""

    def __init__(self, batch: Batch, drafter: Drafter) -> None:
        self._batch = batch
        self._drafter = drafter

    def start_row(self, row: int, request: RolloutRequest, key_W: UInt32Array | None) -> None:
        self._drafter.start_row(row, request.prompt_id, request.prompt_P, key_W)

    def finish_row(self, row: int, rollout: Rollout, step: int) -> None:
        self._drafter.finish_row(row)
        self._drafter.observe(rollout.prompt_id, rollout.tokens_N, step, rollout.best)

    def end_batch(self) -> None:
        self._drafter.end_batch()

    def close(self) -> None:
        pass


class Synchronous(_Direct):
    """Drafts are made between rounds, while the device waits; where K is 0 there are none.

    Drafts are known before anything is sent, so their length can be chosen.
    """

    def __init__(self, batch: Batch, drafter: Drafter, chooser: Chooser) -> None:
        """The chooser keeps what it has learnt from one batch to the next."""
        super().__init__(batch, drafter)
        self._chooser = chooser

    def advance(self, *, waiting: bool) -> RoundResult:
        """One dispatch: propose, choose, verify, record."""
        batch, slots, counters = self._batch, self._batch.slots, self._batch.counters
        settings, running_B = batch.settings, slots.running_B
        drafting = perf_counter()
        plan = self._chooser.plan(slots, self._propose())
        drafted = perf_counter()
        leave_at = settings.refill_slots if waiting else settings.slots + 1
        if plan.choice is not None:
            batch.device.settle()  # prompts and admissions are no part of what the round costs
        settled = perf_counter()
        packed = send(batch.device, batch.params, plan, leave_at)
        dispatched = perf_counter()
        result = batch.device.read(packed)
        known, done = perf_counter(), batch.device.clock.seen
        rounds_B = plan.rounds_B(running_B, result)
        slots.record(result, rounds_B)
        counters.record(result, rounds_B, plan.cut_B, plan.drafts.deepest_B)
        committing = perf_counter()
        self._drafter.commit(result.tokens_BT, result.count_B)
        recorded = perf_counter()
        counters.draft_seconds += drafted - drafting + recorded - committing
        counters.round_seconds += drafted - drafting + dispatched - settled + recorded - known
        counters.device_seconds += settled - drafted + known - dispatched
        counters.timeline.append(RoundTimes(settled, dispatched, done, known, drafting, drafted))
        seconds = drafted - drafting + recorded - settled
        counters.record_length(plan.rung.draft_tokens, rounds_B, seconds)
        if plan.choice is not None:
            counters.record_choice(plan.choice, running_B)
        self._chooser.learn(plan, running_B, result, seconds)
        return result

    def _propose(self) -> Drafts:
        settings = self._batch.settings
        if settings.draft_tokens == 0:
            return Drafts.none(settings)
        limit_B = self._batch.slots.draft_limit(settings.draft_tokens)
        unknown_B = np.zeros_like(limit_B)
        if settings.drafts_trees:
            trees = as_tree_drafter(self._drafter).propose_tree(limit_B)
            return Drafts(trees.columns_BX, trees.count_B, unknown_B, trees.deepest_B)
        draft_BK, length_B = self._drafter.propose(limit_B)
        return Drafts(draft_BK, length_B, getattr(self._drafter, "match_length_B", unknown_B))


def send(device: Device, params: Params, plan: Plan, leave_at: int) -> jax.Array:
    """Sends a planned dispatch and returns its packed outcome, not yet awaited.

    Plain rounds end early where `leave_at` slots have fallen free.
    """
    if plan.rung.draft_tokens == 0:
        return device.plain(params, leave_at, plan.rung.rounds, plan.live)
    return device.speculative(params, plan.draft_BX, plan.cut_B, plan.live)
