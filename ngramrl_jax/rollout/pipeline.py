"""The two ways of drafting while the device works: by a thread that is one round ahead.

Round t is on the device. The thread hears how round t-1 ended and drafts for the likely outcomes of
round t, which it knows the drafts of: that is the table for round t+1.

- `HostChoice` reads outcome t, picks the rows' drafts from the table, has the rest looked up, and
  sends round t+1. The device waits for the host between rounds, and for every miss.
- `DeviceChoice` sends round t+1 with the whole table while round t runs; the device picks. Then it
  reads outcome t, and with it knows which drafts round t+1 has, or that the device called it off.
  A row that missed runs without a draft; a row that ends in round t idles through round t+1, and
  its slot is refilled behind that. Where many are likely to end, it does as `HostChoice` does.

A row that is known as it will be when its round begins (newly admitted, or behind a round that was
called off) has one entry: an ordinary draft.

The calls to the drafter, and their order, follow from the outcomes alone: `commit`, `foresee`, then
whatever rows come and go, then `propose`. One thread makes them one at a time, and they are waited
for before anything is sent. So tables do not depend on timing, and a run repeats bit for bit as
long as `EngineSettings.look_up_share` is given.

Legend: B rows, K draft budget, W words of a key.
"""

from collections import deque
from time import perf_counter
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from ngramrl_jax.host.prefetch import Ticket, Worker
from ngramrl_jax.host.protocol import FanOut, Foresight
from ngramrl_jax.rollout.drafting import Batch
from ngramrl_jax.rollout.misses import MissRule
from ngramrl_jax.rollout.table import (
    Choice,
    DraftTable,
    choose,
    fresh_table,
    pack_table,
    set_certain,
)
from ngramrl_jax.rollout.timeline import RoundTimes
from ngramrl_jax.rollout.wire import RoundResult
from ngramrl_jax.types import BoolArray, Int32Array, Rollout, RolloutRequest, UInt32Array

T = TypeVar("T")

_LOOK_S = 2e-4  # between looks at the device while the drafter is waited for


class _Threaded:
    """What both have in common: the drafter is called by a thread, and asked ahead."""

    def __init__(self, batch: Batch, drafter: Foresight) -> None:
        """Starts the thread."""
        self._batch = batch
        self._drafter = drafter
        self._worker = Worker()
        self._ahead: Ticket[FanOut] | None = None
        self._flew_B = np.zeros(batch.settings.slots, bool)  # the rows that `_ahead` is about
        self._key_BW = batch.slots.key_BW  # and their keys
        self._worked = (0.0, 0.0)  # on the drafts of the next dispatch

    def start_row(self, row: int, request: RolloutRequest, key_W: UInt32Array | None) -> None:
        tell, start_row = self._worker.tell, self._drafter.start_row
        tell(start_row, row, request.prompt_id, request.prompt_P, key_W)

    def finish_row(self, row: int, rollout: Rollout, step: int) -> None:
        tell, drafter = self._worker.tell, self._drafter
        tell(drafter.finish_row, row)
        tell(drafter.observe, rollout.prompt_id, rollout.tokens_N, step, rollout.best)

    def end_batch(self) -> None:
        self._worker.tell(self._drafter.end_batch)
        self._worker.flush()

    def close(self) -> None:
        self._batch.counters.draft_seconds += self._worker.busy_s
        self._worker.close()

    def _look_ahead(self, flew_B: BoolArray, draft_BK: Int32Array, drafted_B: Int32Array) -> None:
        """Has the outcomes of the round in flight foreseen: these rows, with these drafts."""
        slots = self._batch.slots
        self._flew_B, self._key_BW = flew_B, slots.key_BW.copy()
        room_B = np.where(flew_B, slots.room_B, 0).astype(np.int32)
        if flew_B.any():
            self._ahead = self._worker.ask(self._drafter.foresee, draft_BK, drafted_B, room_B)

    def _foreseen(self) -> FanOut | None:
        """What was asked for last, awaited; None where nothing was."""
        ticket, self._ahead = self._ahead, None
        return None if ticket is None else self._answer(ticket)

    def _table(self, fan: FanOut | None, weight_B: Int32Array) -> DraftTable:
        settings = self._batch.settings
        size = settings.prefetch_candidates, settings.draft_tokens
        return fresh_table(fan, self._key_BW, weight_B, *size)

    def _looked_up(self, rows_B: BoolArray) -> tuple[Int32Array, Int32Array]:
        """Drafts of the rows `rows_B` as they are now."""
        limit_B = self._batch.slots.draft_limit(self._batch.settings.draft_tokens)
        limit_B = np.where(rows_B, limit_B, 0).astype(np.int32)
        if not limit_B.any():
            return np.zeros((len(limit_B), self._batch.settings.draft_tokens), np.int32), limit_B
        return self._answer(self._worker.ask(self._drafter.propose, limit_B))

    def _answer(self, ticket: Ticket[T]) -> T:
        answer = self._worker.result(ticket, self._batch.device.clock.look, _LOOK_S)
        self._worked = self._worked[0] or ticket.begun, ticket.ended
        return answer

    def _take_worked(self) -> tuple[float, float]:
        worked, self._worked = self._worked, (0.0, 0.0)
        return worked

    def _choose(self, table: DraftTable) -> Choice:
        slots = self._batch.slots
        return choose(table, slots.length_B, slots.last_B, slots.room_B, slots.key_BW, np)

    def _flown_B(self) -> BoolArray:
        """The rows that `_ahead` is about and whose slots have not changed hands since."""
        return self._flew_B & np.all(self._key_BW == self._batch.slots.key_BW, axis=1)

    def _count(self, choice: Choice, flew_B: BoolArray) -> None:
        """Enters how the outcomes of the rows `flew_B` were covered."""
        counters = self._batch.counters
        counters.misses += int(np.sum(choice.missed_B & flew_B))
        counters.hits += int(np.sum(choice.found_B & flew_B & (self._batch.slots.room_B > 1)))


class HostChoice(_Threaded):
    """The host picks, once it knows the outcome: the scheme of the paper."""

    def advance(self, *, waiting: bool) -> RoundResult:
        """One round: pick or look up, verify, record."""
        batch, slots, counters = self._batch, self._batch.slots, self._batch.counters
        begun = perf_counter()
        draft_BK, drafted_B = self._drafts()
        sending = perf_counter()
        live = batch.live(np.full_like(slots.room_B, batch.settings.draft_tokens))
        packed = batch.device.speculative(batch.params, draft_BK, drafted_B, live)
        dispatched, worked = perf_counter(), self._take_worked()
        self._look_ahead(slots.running_B, draft_BK, drafted_B)
        waited = perf_counter()
        result = batch.device.read(packed)
        known, done = perf_counter(), batch.device.clock.seen
        batch.record(result, drafted_B, known - begun)
        self._worker.tell(self._drafter.commit, result.tokens_BT, result.count_B)
        counters.round_seconds += waited - begun + perf_counter() - known
        counters.device_seconds += known - waited
        counters.timeline.append(RoundTimes(sending, dispatched, done, known, *worked))
        return result

    def _drafts(self) -> tuple[Int32Array, Int32Array]:
        slots = self._batch.slots
        choice = self._choose(self._table(self._foreseen(), np.zeros_like(slots.room_B)))
        self._count(choice, self._flown_B())
        found_B = choice.found_B
        draft_BK, drafted_B = self._looked_up(slots.running_B & ~found_B)
        draft_BK = np.where(found_B[:, None], choice.draft_BK, draft_BK)
        return draft_BK, np.where(found_B & slots.running_B, choice.drafted_B, drafted_B)


class _Flight(NamedTuple):
    """A round that was sent and whose outcome is not read yet.

    Attributes:
        table: What the device picks from.
        packed: Its outcome.
        foreseen_B: bool, the rows whose entries were foreseen and are not certain.
        sending: When the host had its table, seconds of `perf_counter`.
        dispatched: When it was sent.
        worked: When its table was worked on.
    """

    table: DraftTable
    packed: jax.Array
    foreseen_B: BoolArray
    sending: float
    dispatched: float
    worked: tuple[float, float]


class DeviceChoice(_Threaded):
    """The device picks, and does not wait for what the host does between rounds.

    There are one or two rounds in flight, or none, where the host waited for an outcome. Of the
    rounds in flight, one at a time is *known*: the outcome before it has been read, so the
    host can tell what the device picked for it. `_choice` and `_flew_B` are about that round.
    """

    def __init__(self, batch: Batch, drafter: Foresight) -> None:
        """Starts the thread."""
        super().__init__(batch, drafter)
        self._rule = MissRule(batch.settings.slots, batch.settings.look_up_share)
        self._flights: deque[_Flight] = deque()
        self._fan: FanOut | None = None  # what is foreseen of the known round, until it is used
        self._choice: Choice | None = None
        self._heard = perf_counter()

    def advance(self, *, waiting: bool) -> RoundResult:
        """The next outcome, mostly with a round sent behind the one that brings it."""
        counters = self._batch.counters
        begun = perf_counter()
        if not self._flights:
            self._launch()
            self._know_next()
        self._fan = self._foreseen()
        if self._fan is None or self._sends_ahead(self._fan, waiting=waiting):
            self._launch()
        launched = perf_counter()
        flight = self._flights.popleft()
        result = self._batch.device.read(flight.packed)
        known, done = perf_counter(), self._batch.device.clock.seen
        if not self._land(result):
            done = flight.dispatched
        if self._flights:
            self._know_next()
        counters.round_seconds += launched - begun + perf_counter() - known
        counters.device_seconds += known - launched
        counters.timeline.append(
            RoundTimes(flight.sending, flight.dispatched, done, known, *flight.worked)
        )
        return result

    def _sends_ahead(self, fan: FanOut, *, waiting: bool) -> bool:
        miss_B = np.maximum(1.0 - fan.mass_BF.sum(axis=1) - fan.ending_B, 0.0)
        return self._rule.sends_ahead(self._flew_B, miss_B, fan.ending_B, waiting=waiting)

    def _launch(self) -> None:
        """Sends a round behind the one that is known, if there is one."""
        batch, slots = self._batch, self._batch.slots
        begun = perf_counter()
        fan, self._fan = self._fan, None
        table = self._table(fan, self._rule.weights(slots.running_B))
        foreseen_B, certain_B = self._flew_B, slots.running_B & ~self._flew_B
        if not self._flights:  # all rows are known, and whether their drafts are there
            choice = self._choose(table)
            self._count(choice, self._flown_B())
            foreseen_B, certain_B = np.zeros_like(certain_B), slots.running_B & ~choice.found_B
        certain = slots.key_BW, slots.length_B, slots.last_B, *self._looked_up(certain_B)
        set_certain(table, certain_B, *certain)
        sending = perf_counter()
        ahead_B = batch.settings.draft_tokens + np.where(foreseen_B, self._most_committed(), 0)
        packed = batch.device.foreseen(batch.params, pack_table(table), batch.live(ahead_B))
        dispatched = perf_counter()
        if not foreseen_B.any():
            self._rule.looked_up(dispatched - begun)
        times = sending, dispatched, self._take_worked()
        self._flights.append(_Flight(table, packed, foreseen_B, *times))

    def _most_committed(self) -> Int32Array:
        """Tokens that the known round commits at most."""
        assert self._choice is not None or not self._flew_B.any()
        drafted_B = 0 if self._choice is None else self._choice.drafted_B
        return np.minimum(self._batch.slots.room_B, drafted_B + 1)

    def _land(self, result: RoundResult) -> bool:
        """Records the outcome of the round that was known; False where it was called off."""
        choice, flew_B = self._choice, self._flew_B
        assert choice is not None, "an outcome of a round that was not known"
        ran = bool(result.count_B.any())
        assert ran == (not choice.skipped), "host and device chose differently"
        if not ran:
            return False
        drafted_B = np.where(flew_B, choice.drafted_B, 0)
        heard, self._heard = self._heard, perf_counter()
        self._batch.record(result, drafted_B, self._heard - heard)
        self._rule.drafted(drafted_B, result.kept_B)
        self._rule.ran(self._heard - heard)
        self._worker.tell(self._drafter.commit, result.tokens_BT, result.count_B)
        return True

    def _know_next(self) -> None:
        """All outcomes before the only round in flight have been read."""
        (flight,) = self._flights
        self._choice = choice = self._choose(flight.table)
        running_B = self._batch.slots.running_B
        self._count(choice, flight.foreseen_B)
        self._batch.counters.skipped_rounds += int(choice.skipped and running_B.any())
        flew_B = running_B & ~choice.skipped
        self._look_ahead(flew_B, choice.draft_BK, choice.drafted_B)
