"""Worker processes for rewards: limits of time per item and a hard kill behind them.

A worker is a fresh interpreter started by exec, never a fork of a process in which JAX runs
threads, and unlike multiprocessing's `spawn` it does not import the parent's main script (which
imports JAX). It loads the one function it is told to, so it is ready in tens of milliseconds.

Contract:
- Ordering: `map` returns results in the order of its items, whichever worker made them.
- Capacity: a worker holds one batch at a time; it answers item by item, and each answer starts the
  clock of the next item.
- An item that passes a time limit is `LOST`; its worker is killed and replaced, and the rest of
  its batch goes to the next free worker. An item whose worker died otherwise gets a second try
  (the kernel may have killed it for another's memory), then it is `LOST`.
- Of the two limits, the one of processor time is meant to be met first: it does not depend on how
  busy the machine is. The kernel itself ends the worker then, also in the middle of a C function.
  The one of wall-clock time is for what waits without working.
- An exception in the function is a fault of ours, not a bad score: `map` raises it as
  RuntimeError, with the worker's traceback. After that, as after Ctrl-C, busy workers are replaced,
  so that no answer of one `map` reaches the next.
- `close()` kills the workers, may be called twice, and happens on leaving the context. Should the
  parent die, the workers see the end of their pipe and exit.
- One thread at a time calls `map`.
"""

import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Final

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
OUT_OF_TIME = signal.SIGPROF  # what the kernel sends when `ITIMER_PROF` has run down


class Lost(Enum):
    """The one value that stands for an item without a result."""

    LOST = "lost"


LOST: Final = Lost.LOST


class WorkerPool:
    """Maps items through a function that runs in worker processes, which start at the first `map`.

    Args:
        target: `package.module:factory`, called once in every worker with `settings`; it returns
            the function that maps one item to its result.
        settings: Keyword arguments of the factory, picklable.
        workers: Processes.
        seconds: Wall-clock limit of one item.
        cpu_seconds: Processor time of one item at most; None is no limit.
        batch: Items sent to a worker at once.

    Attributes:
        lost: Items lost so far.

    Raises:
        ValueError: A number lies outside its range.
    """

    def __init__(
        self,
        target: str,
        settings: Mapping[str, Any],
        *,
        workers: int = 2,
        seconds: float = 1.5,
        cpu_seconds: float | None = None,
        batch: int = 8,
    ) -> None:
        if workers < 1 or batch < 1:
            raise ValueError(f"workers, batch: found {workers}, {batch}, allowed: 1 or more")
        if not seconds > 0:
            raise ValueError(f"seconds: found {seconds}, allowed: above 0")
        if cpu_seconds is not None and not 0 < cpu_seconds < float("inf"):
            raise ValueError(f"cpu_seconds: found {cpu_seconds}, allowed: above 0, or None")
        self.lost = 0
        self._start = (target, dict(settings), cpu_seconds)
        self._seconds = seconds
        self._batch = batch
        self._count = workers
        self._workers: list[_Worker] = []
        self._closed = False

    def map(self, items: Sequence[Any]) -> list[Any]:
        """The result of every item, `LOST` where there is none.

        Raises:
            RuntimeError: The function or its factory raised, or the pool is closed.
        """
        if self._closed:
            raise RuntimeError("worker pool: found it closed, allowed: an open one")
        while len(self._workers) < self._count:
            self._workers.append(_Worker(*self._start))
        work = _Work(items)
        try:
            while work.unfinished:
                self._send(work)
                self._receive(work)
        except BaseException:
            self._replace(worker for worker in self._workers if not worker.idle)
            raise
        return work.results

    def _send(self, work: "_Work") -> None:
        for worker in [worker for worker in self._workers if worker.idle]:
            if positions := work.take(self._batch):
                try:
                    worker.send(positions, work.items, self._seconds)
                except OSError:  # it died while idle
                    work.put_back(positions)
                    self._replace([worker])

    def _receive(self, work: "_Work") -> None:
        """Waits for an answer or the earliest deadline and deals with what happened."""
        waiting = [worker for worker in self._workers if not worker.idle]
        earliest = min(worker.deadline for worker in waiting)
        ready = wait([w.connection for w in waiting], max(0.0, earliest - time.monotonic()))
        now = time.monotonic()
        for worker in waiting:
            if worker.connection in ready:
                try:
                    worker.receive(work, self._seconds)
                except (EOFError, OSError):
                    self._recover(worker, work, second_try=worker.kill() != -OUT_OF_TIME)
            elif now >= worker.deadline:
                self._recover(worker, work, second_try=False)

    def _recover(self, worker: "_Worker", work: "_Work", *, second_try: bool) -> None:
        if not worker.ready:
            raise RuntimeError(f"reward worker {self._start[0]}: died or hung while starting")
        guilty = worker.pending.popleft()
        if not (second_try and work.retry(guilty)):
            self.lost += 1
            work.unfinished -= 1
        work.put_back(worker.pending)
        worker.pending.clear()
        self._replace([worker])

    def _replace(self, workers: Iterable["_Worker"]) -> None:
        for worker in list(workers):
            worker.kill()
            self._workers[self._workers.index(worker)] = _Worker(*self._start)

    def close(self) -> None:
        """Kills the workers; the pool is of no more use."""
        self._closed = True
        while self._workers:
            self._workers.pop().kill()

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Work:
    """One `map`: which items wait for a worker, and the results so far."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.results: list[Any] = [LOST] * len(items)
        self.unfinished = len(items)
        self._waiting = deque(range(len(items)))
        self._retried: set[int] = set()

    def take(self, count: int) -> list[int]:
        return [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]

    def put_back(self, positions: Iterable[int]) -> None:
        self._waiting.extendleft(reversed(list(positions)))

    def retry(self, position: int) -> bool:
        """Puts the item last in the queue, if it has not been there before."""
        if position in self._retried:
            return False
        self._retried.add(position)
        self._waiting.append(position)
        return True

    def finish(self, position: int, result: Any) -> None:
        self.results[position] = result
        self.unfinished -= 1


class _Worker:
    """One process as the parent sees it: starting, idle, or busy with the `pending` positions."""

    def __init__(self, target: str, settings: dict[str, Any], cpu_seconds: float | None) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self.connection.send((target, settings, cpu_seconds))
            command = f"from train.rewards.pool import serve; serve({theirs.fileno()})"
            search = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", command],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
                start_new_session=True,  # Ctrl-C is for the trainer, which ends its workers
            )
        self.ready = False
        self.pending: deque[int] = deque()
        self.deadline = time.monotonic() + START_SECONDS

    @property
    def idle(self) -> bool:
        return self.ready and not self.pending

    def send(self, positions: Sequence[int], items: Sequence[Any], seconds: float) -> None:
        self.connection.send([items[position] for position in positions])
        self.pending.extend(positions)
        self.deadline = time.monotonic() + seconds

    def receive(self, work: _Work, seconds: float) -> None:
        succeeded, result = self.connection.recv()
        if not succeeded:
            raise RuntimeError(f"reward worker failed:\n{result}")
        if self.ready:
            work.finish(self.pending.popleft(), result)
        self.ready = True
        self.deadline = time.monotonic() + seconds

    def kill(self) -> int:
        """Ends the process, if it has not ended by itself; returns how it ended."""
        self._process.kill()
        self.connection.close()
        return self._process.wait()


def serve(descriptor: int) -> None:
    """Body of a worker: says when it is ready, then answers item by item until the pipe ends."""
    connection = Connection(descriptor)
    try:
        target, settings, cpu_seconds = connection.recv()
        signal.signal(OUT_OF_TIME, signal.SIG_DFL)  # ends the process: the parent may ignore it
        module, _, factory = target.partition(":")
        function = getattr(importlib.import_module(module), factory)(**settings)
        connection.send((True, None))
        while True:
            for item in connection.recv():
                signal.setitimer(signal.ITIMER_PROF, cpu_seconds or 0.0)
                result = function(item)
                signal.setitimer(signal.ITIMER_PROF, 0.0)
                connection.send((True, result))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception:
        connection.send((False, traceback.format_exc()))
