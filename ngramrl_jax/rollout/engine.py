"""The rollout engine: the imperative shell around the jitted rounds.

A step's requests wait in a queue; idle slots are refilled from it at once; each round the drafter
proposes, the device verifies, and one small array comes back.

Legend: B rows, N rows admitted at once, K draft budget, P prompt tokens.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import jax
import numpy as np

from ngramrl_jax.host.noise import row_key
from ngramrl_jax.host.protocol import Drafter
from ngramrl_jax.protocols import Params, Policy
from ngramrl_jax.rollout.admit import ROW_COLUMNS, admission_row
from ngramrl_jax.rollout.chooser import Drafts, Plan, make_chooser
from ngramrl_jax.rollout.counters import RolloutCounters
from ngramrl_jax.rollout.forced import check_forced, forced_line
from ngramrl_jax.rollout.ladder import length_ladder, rung_for
from ngramrl_jax.rollout.layout import RowLayout
from ngramrl_jax.rollout.order import wave_order
from ngramrl_jax.rollout.prefixes import PrefixIndex
from ngramrl_jax.rollout.programs import Programs
from ngramrl_jax.rollout.round import DecodeRule
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.rollout.slots import SlotTable
from ngramrl_jax.rollout.state import DecodeState, empty_state
from ngramrl_jax.rollout.wire import RoundResult, pack_drafts, unpack_result
from ngramrl_jax.types import Int32Array, Rollout, RolloutRequest


class RolloutEngine:
    """Samples rollouts from a policy, drafting on the host and verifying on the device.

    What a row says is a function of (parameters, seed, step, prompt id, sibling, attempt) alone:
    not of its slot, its neighbours, its drafter or K.

    Attributes:
        settings: As given.
        programs: The compiled programs, with their compile counts.
    """

    def __init__(
        self,
        policy: Policy,
        drafter: Drafter,
        settings: EngineSettings,
        layout: RowLayout | None = None,
    ) -> None:
        """Allocates the caches.

        Args:
            policy: The target model.
            drafter: Proposes drafts for `settings.slots` rows; it observes finished rollouts also
                where K is 0.
            settings: Shapes and schedule.
            layout: Where rows and caches lie on a mesh; None is one device.

        Raises:
            ValueError: The rows do not split evenly over the layout.
        """
        self.settings = settings
        groups = layout.groups if layout is not None else 1
        if settings.slots % groups:
            raise ValueError(f"slots: found {settings.slots}, allowed: a multiple of {groups}")
        best_tokens = min(settings.best_tokens, policy.vocab_size)
        rule = DecodeRule(settings.sampling, settings.stop_ids, settings.verifier, best_tokens)
        self.programs = Programs(policy, rule, settings.plain_rounds, layout)
        self._drafter = drafter
        self._chooser = make_chooser(settings)
        self._forced = settings.verifier == "forced"
        self._prompt_ladder = length_ladder(settings.max_prompt_tokens)
        # Mostly one row or two are admitted, and every line copies a whole prefix.
        self._admission_ladder = tuple(sorted({1, min(4, settings.slots), settings.slots}))
        entries = -(-max(settings.prefix_entries, settings.slots) // groups) * groups
        self._index = PrefixIndex(entries)
        self._prefixes, self._state = _empty(policy, entries, settings, layout)
        self._best_tokens = best_tokens
        self._vocab_size = policy.vocab_size
        self._slots = SlotTable(settings.slots, settings.max_new_tokens, best_tokens)

    def warm_up(self, params: Params) -> None:
        """Compiles and times every program, so that no compilation lands inside a rollout."""
        settings = self.settings
        for length in self._prompt_ladder:
            self._prefill(params, np.zeros(length, np.int32), entry=0)
        for rows in self._admission_ladder:
            self._admit(self._nobody(rows))
        everyone_B = np.ones(settings.slots, bool)
        for plan in self._chooser.trials():
            self._admit(self._everybody(min(settings.plain_rounds, settings.max_new_tokens)))
            began = perf_counter()
            result = self._await(self._dispatch(params, plan, waiting=False))
            self._chooser.learn(plan, everyone_B, result, perf_counter() - began)
        self._admit(self._everybody(0))

    def round_seconds(self, live: int) -> dict[int, float]:
        """Measured cost of a round by draft length at that live rung; empty where K is fixed."""
        return self._chooser.round_seconds(live)

    def generate(
        self,
        params: Params,
        requests: Sequence[RolloutRequest],
        *,
        seed: int,
        step: int,
        policy_version: int,
        expected_tokens: Mapping[int, float] | None = None,
        so_far: RolloutCounters | None = None,
    ) -> tuple[list[Rollout], RolloutCounters]:
        """Samples one rollout a request.

        Args:
            params: Parameters of the policy, not donated.
            requests: In any order; (prompt id, sibling, attempt) differ.
            seed: Run seed.
            step: Training step; with the seed it makes the noise fresh.
            policy_version: Stored with every rollout.
            expected_tokens: Response length by prompt id where known; longer ones start earlier.
            so_far: Counters of an earlier call of the same step, which are added to.

        Returns:
            Rollouts in the order of `requests`, and what they cost.

        Raises:
            ValueError: A request does not fit the engine's lengths, or two are the same.
        """
        for request in requests:
            self._check(request)
        if len({request.identity for request in requests}) != len(requests):
            raise ValueError("requests: found two of the same prompt id, sibling and attempt")
        counters = so_far or RolloutCounters(self.settings.draft_tokens)
        queue = deque(wave_order(requests, expected_tokens or {}, self.settings.wave))
        done: dict[tuple[int, int, int], Rollout] = {}
        self._index.clear()  # prefix caches belong to the parameters that made them
        while queue or self._slots.running_B.any():
            begun = perf_counter()
            self._refill(params, queue, seed, step, counters)
            filled = perf_counter()
            result = self._advance(params, bool(queue), counters)
            known = perf_counter()
            for row in self._slots.finished_rows():
                stopped = bool(result.stopped_B[row])
                rollout = self._slots.take(row, stopped, policy_version, step, counters.dispatches)
                self._drafter.finish_row(row)
                self._drafter.observe(rollout.prompt_id, rollout.tokens_N, step, rollout.best)
                done[rollout.identity] = rollout
            counters.turnover_seconds += filled - begun + perf_counter() - known
        self._drafter.end_batch()
        return [done[request.identity] for request in requests], counters

    def _check(self, request: RolloutRequest) -> None:
        lengths = {
            "prompt tokens": (len(request.prompt_P), self.settings.max_prompt_tokens),
            "max_new_tokens": (request.max_new_tokens, self.settings.max_new_tokens),
        }
        for name, (found, most) in lengths.items():
            if not 1 <= found <= most:
                raise ValueError(
                    f"prompt {request.prompt_id}: {name}: found {found}, allowed: 1 to {most}"
                )
        if self._forced:
            check_forced(request, self._vocab_size)

    def _refill(
        self,
        params: Params,
        queue: deque[RolloutRequest],
        seed: int,
        step: int,
        counters: RolloutCounters,
    ) -> None:
        """Fills idle slots from the queue; a group's prompt is run for its first sibling only."""
        idle = self._slots.idle_rows()[: len(queue)]
        if not len(idle):
            return
        rows_NX = self._nobody(rung_for(len(idle), self._admission_ladder))
        for line, slot in enumerate(idle.tolist()):
            request = queue.popleft()
            entry = self._index.find(request.prompt_id)
            if entry is None:
                entry = self._index.add(request.prompt_id)
                self._prefill(params, request.prompt_P, entry)
                counters.prefills += 1
            rows_NX[line, :ROW_COLUMNS] = admission_row(slot, entry, request, seed, step)
            if self._forced:
                rows_NX[line, ROW_COLUMNS:] = forced_line(request, self.settings.capacity)
            self._slots.place(slot, request, counters.dispatches)
            shares_noise = self.settings.shares_noise
            key_W = row_key(seed, step, *request.identity) if shares_noise else None
            self._drafter.start_row(slot, request.prompt_id, request.prompt_P, key_W)
        self._admit(rows_NX)

    def _prefill(self, params: Params, prompt_P: Int32Array, entry: int) -> None:
        bucket = rung_for(len(prompt_P), self._prompt_ladder)
        padded_P = np.zeros(bucket, np.int32)
        padded_P[: len(prompt_P)] = prompt_P
        self._prefixes = self.programs.prefill(params, self._prefixes, padded_P, np.int32(entry))

    def _nobody(self, rows: int) -> Int32Array:
        """An admission table of that many lines that admits no one."""
        columns = ROW_COLUMNS + self._forced * self.settings.capacity
        return np.full((rows, columns), self.settings.slots, np.int32)

    def _everybody(self, room: int) -> Int32Array:
        """An admission table that starts every slot on one token, with so much room."""
        rows_NX = self._nobody(self.settings.slots)
        for slot in range(self.settings.slots):
            request = RolloutRequest(0, slot, np.zeros(1, np.int32), room)
            rows_NX[slot, :ROW_COLUMNS] = admission_row(slot, 0, request, 0, 0)
        rows_NX[:, ROW_COLUMNS:] = -1
        return rows_NX

    def _admit(self, rows_NX: Int32Array) -> None:
        self._state = self.programs.admit(self._state, self._prefixes, rows_NX)

    def _advance(self, params: Params, waiting: bool, counters: RolloutCounters) -> RoundResult:
        """One dispatch: propose, verify, record."""
        running_B = self._slots.running_B
        limit_B = np.clip(self._slots.room_B - 1, 0, self.settings.draft_tokens)
        drafting = perf_counter()
        plan = self._chooser.plan(self._slots, self._propose(limit_B))
        drafted = perf_counter()
        packed = self._dispatch(params, plan, waiting)
        dispatched = perf_counter()
        result = self._await(packed)
        known = perf_counter()
        rounds_B = plan.rounds_B(running_B, result)
        self._slots.record(result, rounds_B)
        counters.record(result, rounds_B, plan.cut_B)
        committing = perf_counter()
        self._drafter.commit(result.tokens_BT, result.count_B)
        recorded = perf_counter()
        counters.draft_seconds += drafted - drafting + recorded - committing
        counters.round_seconds += dispatched - drafting + recorded - known
        counters.device_seconds += known - dispatched
        seconds = recorded - drafting
        counters.record_length(plan, running_B, rounds_B, seconds)
        self._chooser.learn(plan, running_B, result, seconds)
        return result

    def _propose(self, limit_B: Int32Array) -> Drafts:
        none = Drafts.none(self.settings.slots, self.settings.draft_tokens)
        if self.settings.draft_tokens == 0:
            return none
        draft_BK, length_B = self._drafter.propose(limit_B)
        return Drafts(draft_BK, length_B, getattr(self._drafter, "match_length_B", none.match_B))

    def _await(self, packed: jax.Array) -> RoundResult:
        return unpack_result(jax.device_get(packed), self._best_tokens)

    def _dispatch(self, params: Params, plan: Plan, waiting: bool) -> jax.Array:
        """Sends one dispatch to the device and returns its packed outcome, not yet awaited."""
        settings = self.settings
        if plan.rung.draft_tokens == 0:
            leave_at = settings.refill_slots if waiting else settings.slots + 1
            self._state, packed = self.programs.plain(
                params,
                state=self._state,
                leave_at=np.int32(leave_at),
                most=np.int32(plan.rung.rounds),
                live=plan.live,
            )
        else:
            drafts_BX = pack_drafts(plan.draft_BK, plan.cut_B)
            self._state, packed = self.programs.speculative(
                params, state=self._state, drafts_BX=drafts_BX, live=plan.live
            )
        return packed


def _empty(
    policy: Policy, entries: int, settings: EngineSettings, layout: RowLayout | None
) -> tuple[Any, DecodeState]:
    """The prefix cache and the state of idle slots, made where they shall lie."""
    forced = settings.verifier == "forced"

    def make() -> tuple[Any, DecodeState]:
        prefixes = policy.init_cache(entries, settings.max_prompt_tokens)
        return prefixes, empty_state(policy, settings.slots, settings.capacity, forced=forced)

    if layout is None:
        return make()
    shardings = layout.cache_shardings(), layout.state_shardings(forced=forced)
    return jax.jit(make, out_shardings=shardings)()
