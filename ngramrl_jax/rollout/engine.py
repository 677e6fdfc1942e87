"""The rollout engine: the imperative shell around the jitted rounds.

A step's requests wait in a queue; idle slots are refilled from it at once; what is finished is
taken out. How rounds get their drafts in between is `rollout.drafting`'s matter.

Legend: N rows admitted at once.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from time import perf_counter
from typing import cast

import numpy as np

from ngramrl_jax.host.noise import row_key
from ngramrl_jax.host.protocol import Drafter, Foresight
from ngramrl_jax.host.trees import as_tree_drafter
from ngramrl_jax.protocols import Params, Policy
from ngramrl_jax.rollout.admit import ROW_COLUMNS, admission_row
from ngramrl_jax.rollout.chooser import make_chooser
from ngramrl_jax.rollout.counters import RolloutCounters
from ngramrl_jax.rollout.device import Device
from ngramrl_jax.rollout.drafting import Batch, Drafting, Synchronous, send
from ngramrl_jax.rollout.forced import check_forced, forced_line
from ngramrl_jax.rollout.layout import RowLayout
from ngramrl_jax.rollout.order import wave_order
from ngramrl_jax.rollout.pipeline import DeviceChoice, HostChoice
from ngramrl_jax.rollout.prefixes import PrefixIndex
from ngramrl_jax.rollout.programs import Programs
from ngramrl_jax.rollout.settings import EngineSettings, PrefetchName
from ngramrl_jax.rollout.slots import SlotTable
from ngramrl_jax.types import Rollout, RolloutRequest


class RolloutEngine:
    """Samples rollouts from a policy, drafting on the host and verifying on the device.

    What a row says is a function of (parameters, seed, step, prompt id, sibling, attempt) alone:
    not of its slot, its neighbours, its drafter, K or how drafts are prefetched. Nothing runs
    between calls.

    Attributes:
        settings: As given.
        prefetch: The setting as far as K and drafter allow it.
    """

    def __init__(
        self,
        policy: Policy,
        drafter: Drafter,
        settings: EngineSettings,
        layout: RowLayout | None = None,
    ) -> None:
        """Allocates nothing yet.

        Args:
            policy: The target model.
            drafter: Proposes drafts for `settings.slots` rows; it observes finished rollouts also
                where K is 0. During `generate` it is the engine's alone.
            settings: Shapes and schedule.
            layout: Where rows and caches lie on a mesh; None is one device.

        Raises:
            ValueError: The rows do not split evenly over the layout; draft trees, with a policy or
                a drafter that has none.
        """
        self.settings = settings
        self.prefetch: PrefetchName = "off"
        if settings.draft_tokens and hasattr(drafter, "foresee"):
            self.prefetch = settings.prefetch
        self._drafter = as_tree_drafter(drafter) if settings.drafts_trees else drafter
        self._chooser = make_chooser(settings)
        self._forced = settings.verifier == "forced"
        self._vocab_size = policy.vocab_size
        self._device = Device(policy, settings, layout)
        self._index = PrefixIndex(self._device.prefix_entries)
        best_tokens = min(settings.best_tokens, policy.vocab_size)
        self._slots = SlotTable(settings.slots, settings.max_new_tokens, best_tokens)
        self._unclosed: Drafting | None = None

    @property
    def programs(self) -> Programs:
        """The compiled programs, with their compile counts."""
        return self._device.programs

    def warm_up(self, params: Params) -> None:
        """Compiles and times every program, so that no compilation lands inside a rollout."""
        settings, device = self.settings, self._device
        device.warm_up(params)
        if self.prefetch == "device":
            device.warm_up_foreseen(params)
            return
        everyone_B = np.ones(settings.slots, bool)
        for plan in self._chooser.trials():
            device.admit(device.everybody(min(settings.plain_rounds, settings.max_new_tokens)))
            device.settle()
            began = perf_counter()
            result = device.read(send(device, params, plan, leave_at=settings.slots + 1))
            self._chooser.learn(plan, everyone_B, result, perf_counter() - began)
        device.admit(device.everybody(0))

    def release(self) -> None:
        """Gives back the memory of the caches until the next call; programs stay compiled."""
        self._device.release()

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
            TimeoutError: The drafter's thread does not answer.
        """
        for request in requests:
            self._check(request)
        if len({request.identity for request in requests}) != len(requests):
            raise ValueError("requests: found two of the same prompt id, sibling and attempt")
        self._forget_broken_batch()
        counters = so_far or RolloutCounters(self.settings.draft_tokens, prefetch=self.prefetch)
        queue = deque(wave_order(requests, expected_tokens or {}, self.settings.wave))
        done: dict[tuple[int, int, int], Rollout] = {}
        self._index.clear()  # prefix caches belong to the parameters that made them
        self._device.clock.restart()
        batch = Batch(self.settings, params, self._device, self._slots, counters)
        with closing(self._drafting(batch)) as drafting:
            self._unclosed = drafting
            while queue or self._slots.running_B.any():
                begun = perf_counter()
                self._refill(batch, drafting, queue, seed, step)
                filled = perf_counter()
                result = drafting.advance(waiting=bool(queue))
                known = perf_counter()
                for row in self._slots.finished_rows():
                    stopped = bool(result.stopped_B[row])
                    sent = counters.dispatches
                    rollout = self._slots.take(row, stopped, policy_version, step, sent)
                    drafting.finish_row(row, rollout, step)
                    done[rollout.identity] = rollout
                counters.turnover_seconds += filled - begun + perf_counter() - known
            drafting.end_batch()
        self._unclosed = None
        counters.exposed_seconds += self._device.clock.idle_s
        return [done[request.identity] for request in requests], counters

    def _drafting(self, batch: Batch) -> Drafting:
        if self.prefetch == "off":
            return Synchronous(batch, self._drafter, self._chooser)
        drafter = cast(Foresight, self._drafter)
        return (
            HostChoice(batch, drafter) if self.prefetch == "host" else DeviceChoice(batch, drafter)
        )

    def _forget_broken_batch(self) -> None:
        """An earlier call that ended with an exception leaves no rows behind, and no thread.

        Raises:
            TimeoutError: The drafter is still at work for that call.
        """
        if self._unclosed is not None:
            self._unclosed.close()
            self._unclosed = None
        if len(self._slots.idle_rows()) < self.settings.slots:
            self._slots = self._slots.emptied()
            self._device.empty()

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
        batch: Batch,
        drafting: Drafting,
        queue: deque[RolloutRequest],
        seed: int,
        step: int,
    ) -> None:
        """Fills idle slots from the queue; a group's prompt is run for its first sibling only."""
        idle = self._slots.idle_rows()[: len(queue)]
        if not len(idle):
            return
        rows_NX = self._device.nobody(len(idle))
        for line, slot in enumerate(idle.tolist()):
            request = queue.popleft()
            entry = self._index.find(request.prompt_id)
            if entry is None:
                entry = self._index.add(request.prompt_id)
                self._device.prefill(batch.params, request.prompt_P, entry)
                batch.counters.prefills += 1
            rows_NX[line, :ROW_COLUMNS] = admission_row(slot, entry, request, seed, step)
            if self._forced:
                rows_NX[line, ROW_COLUMNS:] = forced_line(request, self.settings.capacity)
            key_W = row_key(seed, step, *request.identity)
            self._slots.place(slot, request, key_W, batch.counters.dispatches)
            drafting.start_row(slot, request, key_W if self.settings.shares_noise else None)
        self._device.admit(rows_NX)
