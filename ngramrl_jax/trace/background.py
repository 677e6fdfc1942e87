"""Writing off the critical path: a thread that appends one step after the other.

Contract. Steps are written in the order of `put`. At most `ahead` steps wait; one more makes `put`
wait for the oldest. An error of a write comes out of the next `put`, `flush` or `close`, once; what
was to be written after it is dropped. `close` writes what waits and ends the thread. Rollouts are
read by the thread: whoever puts them does not change them afterwards.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ngramrl_jax.trace.records import TracedStep


class BackgroundWriter:
    """Calls `append` from a thread of its own.

    Args:
        append: Writes one step; called by one thread, one step at a time.
        ahead: Steps that may wait, at least 1.
    """

    def __init__(self, append: Callable[[TracedStep], None], ahead: int = 2) -> None:
        assert ahead >= 1, "somebody has to wait"
        self._append = append
        self._ahead = ahead
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trace")
        self._waiting: deque[Future[None]] = deque()

    def put(self, step: TracedStep) -> None:
        """Hands a step to the thread.

        Raises:
            Exception: What an earlier `append` raised.
        """
        while self._waiting and (self._waiting[0].done() or len(self._waiting) >= self._ahead):
            self._await_oldest()
        self._waiting.append(self._thread.submit(self._append, step))

    def flush(self) -> None:
        """Returns when everything that was put is on disk.

        Raises:
            Exception: What an `append` raised.
        """
        while self._waiting:
            self._await_oldest()

    def close(self) -> None:
        """Flushes and ends the thread; may be called twice.

        Raises:
            Exception: What an `append` raised; the thread has ended all the same.
        """
        try:
            self.flush()
        finally:
            self._thread.shutdown()

    def _await_oldest(self) -> None:
        oldest = self._waiting[0]
        try:
            oldest.result()
        except Exception:
            for later in self._waiting:
                later.cancel()
            self._waiting.clear()
            raise
        self._waiting.popleft()
