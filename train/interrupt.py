"""Ctrl-C and SIGTERM: the first asks for a clean end, the second ends at once.

The first signal raises `Interrupted` in the main thread, whatever that is doing, with two
exceptions. Inside `deferred` it waits for the end of the block, so that what belongs together (the
changed policy, its row of metrics, its checkpoint) stays together. And where Python would swallow
it or dress it up as another error, in callbacks of the garbage collector and in imports, it is
tried again a little later. The second signal ends the process from a thread of its own, because
Python runs signal handlers only between two bytecodes of the main thread, and that may be inside a
compilation of minutes.

Signals belong to the process, and so does the state of this module. It needs the standard library
alone: a command can handle signals before it has imported anything large.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN = signal.SIGALRM
AGAIN_SECONDS = 0.02
SHOW_CURSOR = b"\x1b[?25h"  # a live display hides it


class Interrupted(KeyboardInterrupt):
    """A signal has ended what was going on; the text says what was saved and how to go on."""

    def __init__(self, text: str = "nothing had to be saved; the same command starts anew") -> None:
        super().__init__(text)


@dataclass
class _State:
    handled: bool = False
    requested: bool = False
    raised: bool = False
    deferred: int = 0


_state = _State()


@contextmanager
def handled() -> Iterator[None]:
    """Handles the signals inside the block, and as before after it. A nested block adds nothing."""
    if _state.handled:
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    second = threading.Thread(target=_end_at_the_second, args=(reader,), daemon=True)
    second.start()
    _state.handled = True
    wakeup_before = signal.set_wakeup_fd(writer)
    before = {number: signal.signal(number, _on_signal) for number in (*SIGNALS, AGAIN)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(wakeup_before)
        os.close(writer)  # which ends the thread, once it has read what there is
        second.join()
        _state.handled = _state.requested = _state.raised = False


@contextmanager
def deferred() -> Iterator[None]:
    """Inside the block a signal waits; it is raised at the end of the outermost one.

    Raises:
        Interrupted: A signal came while the block ran to its end.
    """
    _state.deferred += 1
    try:
        yield
    finally:
        _state.deferred -= 1
    if _state.requested and not _state.deferred:
        _state.raised = True
        raise Interrupted


@contextmanager
def allowed() -> Iterator[None]:
    """Inside the block a signal raises at once, also where it would be deferred around it.

    Raises:
        Interrupted: A signal came inside, or had come before.
    """
    before, _state.deferred = _state.deferred, 0
    try:
        if _state.requested and not _state.raised:
            _state.raised = True
            raise Interrupted
        yield
    finally:
        _state.deferred = before


def _on_signal(number: int, frame: FrameType | None) -> None:
    if number in SIGNALS:
        if _state.requested:
            return  # the thread deals with the second one
        _state.requested = True
    if not _state.requested or _state.raised or _state.deferred:
        return
    if _would_be_lost(frame):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        return
    _state.raised = True
    raise Interrupted


def _would_be_lost(frame: FrameType | None) -> bool:
    """Whether an exception in this frame would not come out as itself."""
    callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        code = frame.f_code
        if (
            code in callbacks
            or code.co_name == "__del__"
            or "<frozen importlib" in code.co_filename
        ):
            return True
        frame = frame.f_back
    return False


def _end_at_the_second(reader: int) -> None:
    """Reads the numbers of the signals as they come in; the pipe's end is the end."""
    requested = False
    while arrived := os.read(reader, 16):
        for number in filter(SIGNALS.__contains__, arrived):
            if requested:
                with suppress(OSError):
                    if os.isatty(1):
                        os.write(1, SHOW_CURSOR)
                os._exit(128 + number)
            requested = True
            with suppress(OSError, ValueError):
                print("stopping; a second signal ends at once", file=sys.stderr, flush=True)
    os.close(reader)
