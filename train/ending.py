"""How a command ends: its exit status and its last line.

| status | because |
|---|---|
| 0 | the work is done, or a signal interrupted it and what there was is saved |
| 1 | it could not go on: the disk is full, or step after step had to be refused |
| 2 | something that the user gave cannot be used |
| 130, 143 | a second Ctrl-C or SIGTERM ended it at once |
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from train.interrupt import Interrupted, handled


@dataclass
class _State:
    threads_left: bool = False


_state = _State()


class RunStopped(Exception):
    """The run cannot go on, through no mistake in what it was given."""


@contextmanager
def fail_in_one_line() -> Iterator[None]:
    """Handles signals inside the block, and turns the errors that users meet into one line."""
    try:
        with handled():
            yield
    except Interrupted as end:
        print(f"stopped: {end}", flush=True)
        sys.exit(0)
    except ValueError as error:
        _fail(2, str(error))
    except RunStopped as error:
        _fail(1, str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(1, f"{where}{error.strerror or error}")


def leave_threads_behind() -> None:
    """From now on a command that fails ends at once, whatever its threads are waiting for."""
    _state.threads_left = True


def _fail(status: int, text: str) -> None:
    print(f"error: {text}", file=sys.stderr, flush=True)
    if _state.threads_left:
        sys.stdout.flush()
        os._exit(status)
    sys.exit(status)
