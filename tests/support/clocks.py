"""What a call costs, for tests that bound it: free of what else the process and machine do."""

import gc
import time
from collections.abc import Callable


def thread_seconds(call: Callable[[], object], tries: int = 3) -> float:
    """Least processor seconds of the calling thread over `tries` calls.

    Neither other threads of the process (XLA's, a checkpoint's) nor a garbage collection over
    what earlier tests left behind are the call's own; either once cost a quarter of a second here.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return min(_seconds(call) for _ in range(tries))
    finally:
        if collects:
            gc.enable()


def _seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start
