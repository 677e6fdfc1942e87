"""The bounded history: the last rollouts of every prompt, and snapshots of them.

Legend: N response tokens of one rollout, R rollouts, M best tokens of a position.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import ArrayLike

from ngramrl_jax.host import log as logs
from ngramrl_jax.host.checks import as_id, as_token_ids, at_least
from ngramrl_jax.host.laws import Laws, laws_of, no_laws
from ngramrl_jax.host.snapshot import SIZES, Snapshot, Stored, from_arrays, to_arrays, unused
from ngramrl_jax.types import BestTokens, Int32Array

# Python's own objects around one stored rollout, measured with tracemalloc (a test repeats it).
_ROLLOUT_BYTES = 400

_SMALLEST = 1024  # positions
_SLACK = 4, 3  # a clearing makes the log so many parts large for what is so many: a quarter is free


@dataclass(slots=True)
class _Rollout:
    serial: int
    prompt_id: int
    step: int
    begin: int  # position of its START in the log
    size: int  # tokens, START not counted


class History:
    """The last `window` rollouts per prompt, within `max_bytes` overall, oldest out first.

    The rollouts stand in a log (`ngramrl_jax.host.log`) that is always ready to be searched. When
    it is full, what lives is moved together and what was forgotten is gone; so a new rollout costs
    a constant per token. Where `max_bytes` would leave less than a quarter of the log free then,
    the oldest rollouts are forgotten until it does.

    Attributes:
        window: Rollouts kept per prompt; 0 keeps nothing.
        max_bytes: Bound on `history_bytes` after every call.
        log: The arrays, for kernels to read; other ones after an `observe`.
        version: Another number after every change.
        lock: Held while the log changes. Whoever reads it while another thread may observe holds
            it too, since kernels let other threads run.

    Raises:
        ValueError: `window` below 0 or `max_bytes` below what an empty log takes.
    """

    def __init__(self, window: int = 32, max_bytes: int = 2**30) -> None:
        self.window = at_least("window", window, 0)
        self.max_bytes = at_least("max_bytes", max_bytes, logs.EMPTY_BYTES)
        self.lock = Lock()
        self.version = 0
        self._clear()

    def _clear(self) -> None:
        self.log = logs.allocate(0)
        self._windows: dict[int, list[_Rollout]] = {}
        self._order: dict[int, _Rollout] = {}  # by serial, oldest first
        self._next_serial = 0
        self._tokens = 0
        self.version += 1

    @property
    def history_tokens(self) -> int:
        """Response tokens in store."""
        return self._tokens

    @property
    def history_bytes(self) -> int:
        """Bytes of the log, filled or not, and of Python's objects about its rollouts."""
        return self.log.nbytes + len(self._order) * _ROLLOUT_BYTES

    @property
    def bytes_per_token(self) -> float:
        """`history_bytes` per stored token; 0 while nothing is stored."""
        return self.history_bytes / self._tokens if self._tokens else 0.0

    def oldest(self, prompt_id: int) -> int:
        """Where the prompt's oldest rollout begins in the log; `log.NONE` where there is none."""
        window = self._windows.get(prompt_id)
        return window[0].begin if window else logs.NONE

    def rollouts(self, prompt_id: int) -> list[Int32Array]:
        """Copies of the prompt's stored rollouts, oldest first."""
        return [
            self.log.tokens_C[rollout.begin + 1 : rollout.begin + 1 + rollout.size].copy()
            for rollout in self._windows.get(prompt_id, ())
        ]

    def mean_length(self, prompt_id: int) -> float:
        """Mean tokens of the prompt's stored rollouts; 0 where there are none."""
        window = self._windows.get(prompt_id)
        return sum(rollout.size for rollout in window) / len(window) if window else 0.0

    def observe(
        self, prompt_id: int, tokens_N: ArrayLike, step: int, best: BestTokens | None = None
    ) -> None:
        """Adds a finished rollout, stop token included, and forgets what no longer fits.

        Args:
            prompt_id: 0 or more, an int32.
            tokens_N: At least one id of 0 or more.
            step: Training step, 0 or more, an int32.
            best: The policy's most likely tokens at each position, where known.

        Raises:
            ValueError: An argument is none of that, or `best` is not as long as the rollout.
        """
        as_id("prompt_id", prompt_id)
        as_id("step", step)
        ids_N = as_token_ids("tokens_N", tokens_N)
        laws = no_laws(ids_N.size) if best is None else laws_of(best, ids_N)
        self._add(Stored(prompt_id, step, ids_N, laws))

    def snapshot(self) -> Snapshot:
        """Everything stored, see `ngramrl_jax.host.snapshot`."""
        living = self._order.values()
        prompt_id_R = np.array([rollout.prompt_id for rollout in living], np.int32)
        step_R = np.array([rollout.step for rollout in living], np.int32)
        begin_R = np.array([rollout.begin for rollout in living], np.int32)
        size_R = np.array([rollout.size for rollout in living], np.int32)
        tokens_X, laws_X, ids_M, probs_M = logs.gathered(self.log, begin_R, size_R)
        laws = Laws(laws_X, ids_M, probs_M)
        sizes = np.array([self.log.tokens_C.size, *self.log.used], np.int32)
        return to_arrays(prompt_id_R, step_R, size_R, tokens_X, laws) | {SIZES: sizes}

    def restore(self, snapshot: Mapping[str, ArrayLike]) -> None:
        """Replaces everything stored.

        A smaller window or budget than that of the snapshot keeps the newest. With the same ones
        the log is as large and as full as it was, so it is cleared and grows at the same times.

        Raises:
            ValueError: An array is missing, holds what no snapshot holds, or does not fit the
                others. Nothing has changed then.
        """
        rollouts = from_arrays(snapshot)
        with self.lock:
            self._clear()
            if (sizes := unused(snapshot)) and self._holds(*sizes):
                self.log = logs.allocate_behind(*sizes)
        for rollout in rollouts:
            self._add(rollout)

    def _holds(self, capacity: int, gap: int, entries: int) -> bool:
        within = 0 <= gap <= capacity and 0 <= entries <= logs.ENTRIES * capacity
        return within and capacity <= self._most_positions(1)

    def _add(self, new: Stored) -> None:
        if self.window == 0:
            return
        with self.lock:
            self.version += 1
            if not self._make_room(new.tokens_N.size + 1, new.laws.ids_M.size):
                return
            begin = logs.append(self.log, new.prompt_id, new.tokens_N, *new.laws)
            rollout = _Rollout(self._next_serial, new.prompt_id, new.step, begin, new.tokens_N.size)
            self._next_serial += 1
            self._order[rollout.serial] = rollout
            self._tokens += rollout.size
            window = self._windows.setdefault(new.prompt_id, [])
            window.append(rollout)
            if len(window) > self.window:
                self._forget(window[0])

    def _forget(self, rollout: _Rollout) -> None:
        """Forgets a rollout, which is the oldest of its prompt; its place is cleared later."""
        window = self._windows[rollout.prompt_id]
        assert window[0] is rollout
        window.pop(0)
        del self._order[rollout.serial]
        self._tokens -= rollout.size
        if not window:
            del self._windows[rollout.prompt_id]

    def _make_room(self, positions: int, entries: int) -> bool:
        """Whether so many more fit, after clearing and, where that must be, forgetting."""
        used, used_entries = (int(number) for number in self.log.used)
        capacity = self.log.tokens_C.size
        if (
            used + positions <= capacity
            and used_entries + entries <= logs.ENTRIES * capacity
            and self.history_bytes + _ROLLOUT_BYTES <= self.max_bytes
        ):
            return True
        if _roomy(positions, entries) > self._most_positions(1):
            return False
        living = self._tokens + len(self._order)
        living_entries = sum(map(self._entries, self._order.values()))
        while (
            wanted := _roomy(living + positions, living_entries + entries)
        ) > self._most_positions(len(self._order) + 1):
            oldest = next(iter(self._order.values()))
            living -= oldest.size + 1
            living_entries -= self._entries(oldest)
            self._forget(oldest)
        self._clear_away(max(wanted, min(_SMALLEST, self._most_positions(len(self._order) + 1))))
        return True

    def _most_positions(self, rollouts: int) -> int:
        """Positions that the budget allows beside so many rollouts, and those to come."""
        objects = _ROLLOUT_BYTES * -(-rollouts * _SLACK[0] // _SLACK[1])
        return (self.max_bytes - objects - logs.EMPTY_BYTES) // logs.POSITION_BYTES

    def _entries(self, rollout: _Rollout) -> int:
        begin_end = self.log.law_C[[rollout.begin, rollout.begin + rollout.size]]
        return int(begin_end[1] - begin_end[0])

    def _clear_away(self, capacity: int) -> None:
        """Moves the living together in a log of that capacity."""
        living = list(self._order.values())
        begin_R = np.array([rollout.begin for rollout in living], np.int32)
        size_R = np.array([rollout.size for rollout in living], np.int32)
        logs.move_together(self.log, begin_R, size_R)
        if capacity != self.log.tokens_C.size:
            self.log = logs.resized(self.log, capacity)
        logs.chain_all(self.log)
        for rollout, begin in zip(living, begin_R.tolist(), strict=True):
            rollout.begin = begin


def _roomy(positions: int, entries: int) -> int:
    """Capacity of a log in which so much leaves the stated share free."""
    most = max(positions, -(-entries // logs.ENTRIES))
    return -(-most * _SLACK[0] // _SLACK[1])
