"""The device's side of an engine: decode state, prefix caches, and every dispatch to them.

Legend: B rows, N rows admitted at once, K draft budget, P prompt tokens.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from ngramrl_jax.protocols import Params, Policy
from ngramrl_jax.rollout.admit import ROW_COLUMNS, admission_row
from ngramrl_jax.rollout.ladder import length_ladder, rung_for
from ngramrl_jax.rollout.layout import RowLayout
from ngramrl_jax.rollout.programs import Programs
from ngramrl_jax.rollout.round import DecodeRule
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.rollout.state import DecodeState, empty_state
from ngramrl_jax.rollout.table import fresh_table, pack_table
from ngramrl_jax.rollout.timeline import IdleClock
from ngramrl_jax.rollout.wire import RoundResult, pack_drafts, unpack_result
from ngramrl_jax.types import Int32Array, RolloutRequest


class Device:
    """Dispatches come back at once; `read` waits. The device runs them in their order.

    `live` is a bound on the positions that a round attends: a rung of some ladder, since a round is
    compiled for each.

    Attributes:
        programs: The compiled programs, with their compile counts.
        live_ladder: Bounds on the positions attended that a round is compiled for.
        prefix_entries: Rows of the prefix cache.
        clock: How long the device had nothing to do.
    """

    def __init__(
        self, policy: Policy, settings: EngineSettings, layout: RowLayout | None = None
    ) -> None:
        """Nothing is allocated yet.

        Raises:
            ValueError: The rows do not split evenly over the layout.
        """
        groups = layout.groups if layout is not None else 1
        if settings.slots % groups:
            raise ValueError(f"slots: found {settings.slots}, allowed: a multiple of {groups}")
        self._policy = policy
        self._settings = settings
        self._layout = layout
        self._best_tokens = min(settings.best_tokens, policy.vocab_size)
        rule = DecodeRule(
            settings.sampling,
            settings.stop_ids,
            settings.verifier,
            self._best_tokens,
            settings.draft_shape,
        )
        self.programs = Programs(policy, rule, settings.plain_rounds, settings.draft_tokens, layout)
        self.live_ladder = length_ladder(settings.capacity)
        self._prompt_ladder = length_ladder(settings.max_prompt_tokens)
        # Mostly one row or two are admitted, and every line copies a whole prefix.
        self._admission_ladder = tuple(sorted({1, min(4, settings.slots), settings.slots}))
        self.prefix_entries = -(-max(settings.prefix_entries, settings.slots) // groups) * groups
        self._forced = settings.verifier == "forced"
        self._make_state, self._make_prefixes = self._makers()
        self._state: DecodeState | None = None
        self._held_prefixes: Any = None
        self.clock = IdleClock(lambda: _is_ready(self.state.room_B))

    @property
    def state(self) -> DecodeState:
        """What the last dispatch will leave behind; idle slots before the first."""
        if self._state is None:
            self._state = self._make_state()
        return self._state

    @state.setter
    def state(self, state: DecodeState) -> None:
        self._state = state

    @property
    def _prefixes(self) -> Any:
        if self._held_prefixes is None:
            self._held_prefixes = self._make_prefixes()
        return self._held_prefixes

    @_prefixes.setter
    def _prefixes(self, prefixes: Any) -> None:
        self._held_prefixes = prefixes

    def empty(self) -> None:
        """All slots idle, whatever was sent before."""
        self._state = None

    def release(self) -> None:
        """Gives the memory of both caches back; they are made anew when something is sent."""
        self._state = self._held_prefixes = None

    def warm_up(self, params: Params) -> None:
        """Compiles prefill and admission, on idle slots."""
        for length in self._prompt_ladder:
            self.prefill(params, np.zeros(length, np.int32), entry=0)
        for rows in self._admission_ladder:
            self.admit(self.nobody(rows))

    def warm_up_foreseen(self, params: Params) -> None:
        """Compiles the rounds that pick their drafts, on idle slots."""
        settings = self._settings
        nothing_B = np.zeros(settings.slots, np.int32)
        no_key_BW = np.zeros((settings.slots, 2), np.uint32)
        size = settings.prefetch_candidates, settings.draft_tokens
        for live in self.live_ladder:
            table = fresh_table(None, no_key_BW, nothing_B, *size)
            self.foreseen(params, pack_table(table), live)

    def prefill(self, params: Params, prompt_P: Int32Array, entry: int) -> None:
        """Runs a prompt into row `entry` of the prefix cache."""
        bucket = rung_for(len(prompt_P), self._prompt_ladder)
        padded_P = np.zeros(bucket, np.int32)
        padded_P[: len(prompt_P)] = prompt_P
        self.clock.dispatching()
        self._prefixes = self.programs.prefill(params, self._prefixes, padded_P, np.int32(entry))
        self.clock.at_work()

    def nobody(self, rows: int) -> Int32Array:
        """An admission table with room for that many rows, which admits no one."""
        lines = rung_for(rows, self._admission_ladder)
        columns = ROW_COLUMNS + self._forced * self._settings.capacity
        return np.full((lines, columns), self._settings.slots, np.int32)

    def everybody(self, room: int) -> Int32Array:
        """An admission table that starts every slot on one token, with so much room."""
        slots = self._settings.slots
        rows_NX = self.nobody(slots)
        for slot in range(slots):
            request = RolloutRequest(0, slot, np.zeros(1, np.int32), room)
            rows_NX[slot, :ROW_COLUMNS] = admission_row(slot, 0, request, 0, 0)
        rows_NX[:, ROW_COLUMNS:] = -1
        return rows_NX

    def admit(self, rows_NX: Int32Array) -> None:
        """Starts rows in idle slots, see `admit.admit`."""
        self.clock.dispatching()
        self.state = self.programs.admit(self.state, self._prefixes, rows_NX)
        self.clock.at_work()

    def plain(self, params: Params, leave_at: int, most: int, live: int) -> jax.Array:
        """Up to `most` plain rounds, until `leave_at` slots are free."""
        self.clock.dispatching()
        self.state, packed = self.programs.plain(
            params,
            state=self.state,
            leave_at=np.int32(leave_at),
            most=np.int32(most),
            live=live,
        )
        self.clock.at_work()
        return packed

    def speculative(
        self, params: Params, draft_BX: Int32Array, drafted_B: Int32Array, live: int
    ) -> jax.Array:
        """A round with these drafts: the columns of chains, or of trees."""
        self.clock.dispatching()
        self.state, packed = self.programs.speculative(
            params, state=self.state, drafts_BX=pack_drafts(draft_BX, drafted_B), live=live
        )
        self.clock.at_work()
        return packed

    def foreseen(self, params: Params, table_BX: Int32Array, live: int) -> jax.Array:
        """A round that picks its drafts from a packed table, which nobody writes to again."""
        self.clock.dispatching()
        self.state, packed = self.programs.foreseen(
            params, state=self.state, table_BX=table_BX, live=live
        )
        self.clock.at_work()
        return packed

    def settle(self) -> None:
        """Waits until all that was sent is done."""
        if not _is_ready(self.state.room_B):
            jax.block_until_ready(self.state.room_B)
            self.clock.at_work()

    def read(self, packed: jax.Array) -> RoundResult:
        """The outcome of a dispatch, awaited."""
        if not _is_ready(packed):
            packed.block_until_ready()
            self.clock.at_work()  # until now: the copy is the host's
        return unpack_result(jax.device_get(packed), self._best_tokens)

    def _makers(self) -> tuple[Callable[[], DecodeState], Callable[[], Any]]:
        """What makes the state of idle slots and the prefix cache where they shall lie."""
        settings, policy, layout = self._settings, self._policy, self._layout
        size = settings.slots, settings.capacity
        state = partial(empty_state, policy, *size, forced=self._forced)
        prefixes = partial(policy.init_cache, self.prefix_entries, settings.max_prompt_tokens)
        if layout is None:
            return state, prefixes
        return (
            jax.jit(state, out_shardings=layout.state_shardings(forced=self._forced)),
            jax.jit(prefixes, out_shardings=layout.cache_shardings()),
        )


def _is_ready(array: jax.Array) -> bool:
    return array.is_ready()  # pyright: ignore[reportAttributeAccessIssue]: not in JAX's stubs
