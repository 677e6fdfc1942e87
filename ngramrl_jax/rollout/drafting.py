"""How drafts reach the device and outcomes the drafter: the seam, and two ways without a thread.

The engine fills slots and takes finished rollouts out of them; in between it asks for the next
outcome. Which rounds were sent for that, when, and with which drafts, it does not know.

Legend: B rows, K draft budget, W words of a key.
"""

from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from ngramrl_jax.host.protocol import Drafter
from ngramrl_jax.protocols import Params
from ngramrl_jax.rollout.counters import RolloutCounters
from ngramrl_jax.rollout.device import Device
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

    def reach(self, ahead_B: Int32Array) -> int:
        """One past the last position that rows may come to which move on by `ahead_B`."""
        reach_B = np.where(self.slots.running_B, self.slots.length_B + ahead_B, 0)
        return int(reach_B.max())

    def record(self, result: RoundResult, drafted_B: Int32Array) -> None:
        """Enters the outcome of a round with drafts of these lengths."""
        rounds_B = (result.count_B > 0).astype(np.int32)  # a row that takes part commits something
        self.slots.record(result, rounds_B)
        self.counters.record(result, rounds_B, drafted_B)


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


class PlainDecoding(_Direct):
    """K = 0: several rounds in one dispatch. The drafter only hears what was said."""

    def advance(self, *, waiting: bool) -> RoundResult:
        """One dispatch."""
        batch, slots = self._batch, self._batch.slots
        settings, counters = batch.settings, batch.counters
        begun = perf_counter()
        leave_at = settings.refill_slots if waiting else settings.slots + 1
        reach = batch.reach(np.minimum(slots.room_B, settings.plain_rounds))
        packed = batch.device.plain(batch.params, leave_at, reach)
        dispatched = perf_counter()
        result = batch.device.read(packed)
        known = perf_counter()
        slots.record(result, result.count_B)
        counters.record(result, result.count_B, np.zeros_like(result.count_B))
        committing = perf_counter()
        self._drafter.commit(result.tokens_BT, result.count_B)
        counters.draft_seconds += perf_counter() - committing
        counters.round_seconds += dispatched - begun + perf_counter() - known
        counters.device_seconds += known - dispatched
        counters.timeline.append(RoundTimes(dispatched, known, 0.0, 0.0))
        return result


class Synchronous(_Direct):
    """Drafts are made between rounds, while the device waits."""

    def advance(self, *, waiting: bool) -> RoundResult:
        """One round: propose, verify, record."""
        batch, slots, counters = self._batch, self._batch.slots, self._batch.counters
        draft_tokens = batch.settings.draft_tokens
        drafting = perf_counter()
        draft_BK, drafted_B = self._drafter.propose(slots.draft_limit(draft_tokens))
        drafted = perf_counter()
        reach = batch.reach(np.full_like(slots.room_B, draft_tokens))
        packed = batch.device.speculative(batch.params, draft_BK, drafted_B, reach)
        dispatched = perf_counter()
        result = batch.device.read(packed)
        known = perf_counter()
        batch.record(result, drafted_B)
        committing = perf_counter()
        self._drafter.commit(result.tokens_BT, result.count_B)
        recorded = perf_counter()
        counters.draft_seconds += drafted - drafting + recorded - committing
        counters.round_seconds += dispatched - drafting + recorded - known
        counters.device_seconds += known - dispatched
        counters.timeline.append(RoundTimes(dispatched, known, drafting, drafted))
        return result
