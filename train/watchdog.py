"""A step that does not end says where it is stuck."""

import faulthandler
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def watched(what: str, seconds: float) -> Iterator[None]:
    """While the block takes longer than `seconds`, says so on standard error, again and again.

    The line names `what`, and the Python stacks of all threads follow it. Nothing is ended: a
    compilation may take that long.

    Args:
        what: E.g. "step 12: rollout".
        seconds: Until the first word and between words; 0 is never.
    """
    if not seconds:
        yield
        return
    done = threading.Event()
    threading.Thread(target=_watch, args=(what, seconds, done), daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _watch(what: str, seconds: float, done: threading.Event) -> None:
    start = time.monotonic()
    while not done.wait(seconds):
        passed = time.monotonic() - start
        print(f"stuck? {what} has not ended for {passed:.0f} s", file=sys.stderr, flush=True)
        # The original stream: a live display puts one without a descriptor in its place.
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback(sys.__stderr__)
