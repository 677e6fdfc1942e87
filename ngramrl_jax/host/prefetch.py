"""The worker thread between a rollout engine and its drafter, and what may be relied upon.

Contract.

Ordering. Calls run one at a time, in the order in which they were handed over, all in the worker's
thread. What a drafter answers therefore depends on the order of the calls alone, never on how fast
either side is.

Capacity. At most `capacity` calls wait; one more makes `tell` and `ask` wait for room.

Who wakes whom. The caller wakes the worker by handing over a call; the worker wakes a caller that
waits for room by taking a call up, and one that waits for an answer by finishing it; `close` wakes
both. No caller waits longer than `patience_s`: then TimeoutError.

Failure. When a call raises, the worker drops what waits and ends. The caller gets that exception
from whatever it waits for, or else from its next `tell`, `ask` or `result`, and from each one after
it. What is no `Exception` (the thread was killed, say) arrives as RuntimeError.

Closing. `close` drops what waits, wakes a caller that is blocked in another thread (it gets
RuntimeError), lets the call that is running come to its end, and waits for that `close_s` at most.
It may be called at any time, by any thread, more than once. Only a call that never returns
leaves a thread behind, a daemon that does not hold up the end of the process; `close` says so by
TimeoutError, and whoever shares the drafter with that thread must not use it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Thread
from time import monotonic, perf_counter
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_LOOK_S = 1.0  # waiting callers look this often whether the thread still lives


@dataclass(eq=False)
class Ticket(Generic[T]):
    """A call that was handed to the worker.

    Attributes:
        name: Of the call, for messages.
        call: Without arguments.
        done: Whether `answer` is there.
        answer: What it returned.
        begun: When the worker took it up, seconds of `perf_counter`.
        ended: When it was done.
    """

    name: str
    call: Callable[[], T]
    done: bool = False
    answer: Any = None
    begun: float = 0.0
    ended: float = 0.0


class Worker:
    """A thread that makes calls for its owner; see the contract above.

    Attributes:
        busy_s: Seconds spent in calls.
    """

    def __init__(
        self, capacity: int = 4096, patience_s: float = 300.0, close_s: float = 10.0
    ) -> None:
        """Starts the thread.

        Args:
            capacity: Calls that may wait, at least 1.
            patience_s: Deadline of a caller's waiting, in seconds; a kernel may want compiling.
            close_s: Deadline of `close`.
        """
        assert capacity >= 1, "somebody has to wait"
        self.busy_s = 0.0
        self._capacity = capacity
        self._patience_s = patience_s
        self._close_s = close_s
        self._changed = Condition()
        self._waiting: deque[Ticket[Any]] = deque()
        self._closed = False
        self._failure: Exception | None = None
        self._thread = Thread(target=self._run, name="drafter", daemon=True)
        self._thread.start()

    def tell(self, call: Callable[..., object], *arguments: object) -> None:
        """Hands over a call whose answer nobody wants.

        Raises:
            Exception: See the contract.
        """
        self.ask(call, *arguments)

    def ask(self, call: Callable[..., T], *arguments: object) -> Ticket[T]:
        """Hands over a call; `result` has its answer.

        Raises:
            Exception: See the contract.
        """
        name = getattr(call, "__name__", "call")
        ticket = Ticket(name, lambda: call(*arguments))
        with self._changed:
            self._await(lambda: len(self._waiting) < self._capacity, f"room for {name}")
            self._waiting.append(ticket)
            self._changed.notify_all()
        return ticket

    def result(
        self, ticket: Ticket[T], meanwhile: Callable[[], object] | None = None, every_s: float = 0.0
    ) -> T:
        """The answer, awaited; `meanwhile` is called every `every_s` seconds until it is there.

        Raises:
            Exception: See the contract.
        """
        with self._changed:
            self._await(lambda: ticket.done, f"answer to {ticket.name}", meanwhile, every_s)
        return ticket.answer

    def flush(self) -> None:
        """Returns when everything handed over is done.

        Raises:
            Exception: See the contract.
        """
        self.result(self.ask(_nothing))

    def close(self) -> None:
        """Ends the thread.

        Raises:
            TimeoutError: The call that is running did not return in time.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(self._close_s)
        if self._thread.is_alive():
            raise TimeoutError(f"drafter: its thread is still busy after {self._close_s:g} s")

    @property
    def alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def _await(
        self,
        reached: Callable[[], bool],
        what: str,
        meanwhile: Callable[[], object] | None = None,
        every_s: float = 0.0,
    ) -> None:
        """Waits with the lock held, which it gives up meanwhile."""
        deadline = monotonic() + self._patience_s
        while not reached():
            self._raise_if_over()
            left = deadline - monotonic()
            if left <= 0:
                raise TimeoutError(f"drafter: found no {what} within {self._patience_s:g} s")
            self._changed.wait(min(left, every_s if meanwhile else _LOOK_S))
            if meanwhile:
                meanwhile()
        self._raise_if_over()

    def _raise_if_over(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise RuntimeError("drafter: its thread was closed")
        if not self._thread.is_alive():
            raise RuntimeError("drafter: its thread has died")

    def _run(self) -> None:
        try:
            while (ticket := self._next()) is not None:
                ticket.begun = perf_counter()
                ticket.answer = ticket.call()
                ticket.ended = perf_counter()
                self._finish(ticket)
        except BaseException as error:
            self._fail(error)

    def _next(self) -> Ticket[Any] | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                self._waiting.clear()
                return None
            ticket = self._waiting.popleft()
            self._changed.notify_all()  # there is room
            return ticket

    def _finish(self, ticket: Ticket[Any]) -> None:
        with self._changed:
            self.busy_s += ticket.ended - ticket.begun
            ticket.done = True
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, Exception):
            died = RuntimeError(f"drafter: its thread was ended by {type(error).__name__}")
            died.__cause__ = error
            error = died
        with self._changed:
            self._failure = error
            self._waiting.clear()
            self._changed.notify_all()


def _nothing() -> None:
    """A call that does nothing: when it is done, so is all before it."""
