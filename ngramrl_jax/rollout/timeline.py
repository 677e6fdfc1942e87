"""When the device worked and when it waited, as far as the host can tell without stopping it."""

from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple


class RoundTimes(NamedTuple):
    """One dispatch; seconds of `perf_counter`.

    The device works on it from `dispatched`, or from when it had done the one before, to `done`.

    Attributes:
        sending: The host had its drafts and began to send them off.
        dispatched: It was sent off.
        done: The device was last seen at work before the host had the outcome; `dispatched` where
            it called the round off.
        known: The host had its outcome.
        drafting: Work on its drafts began, in whatever thread; 0 where there was none.
        drafted: That work was done.
    """

    sending: float
    dispatched: float
    done: float
    known: float
    drafting: float
    drafted: float


class IdleClock:
    """How long the device had nothing to do.

    The device does not say when it ran dry, so the clock is asked to look, and what lies between
    the last time it was seen at work and the next dispatch counts as idle: never too little, and
    too much by the time between two looks at most. A dispatch onto a device at work costs nothing.

    Attributes:
        idle_s: Seconds since the last `restart`.
        seen: When the device was last seen at work.
    """

    def __init__(self, is_idle: Callable[[], bool]) -> None:
        """A clock for the device of which `is_idle` tells whether all that was sent is done."""
        self.idle_s = 0.0
        self._is_idle = is_idle
        self.seen = perf_counter()

    def restart(self) -> None:
        """From zero; the device counts as at work until now."""
        self.idle_s = 0.0
        self.seen = perf_counter()

    def look(self) -> None:
        """Notes that the device is at work, if it is."""
        if not self._is_idle():
            self.seen = perf_counter()

    def dispatching(self) -> None:
        """Something is about to be sent."""
        if self._is_idle():
            self.idle_s += perf_counter() - self.seen

    def at_work(self) -> None:
        """The device has work now, or had it until now: after a dispatch, or a wait for it."""
        self.seen = perf_counter()
