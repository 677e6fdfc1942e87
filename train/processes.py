"""Several processes that train one policy: who does what, and how they agree.

Every process samples and scores its own share of a step's prompts, with an engine and a drafter of
its own; then all exchange what they got, so that each holds the whole step and goes on with the
same batch, history and metrics. Only the update is one program over all devices. Files are written
by the first process, but for checkpoints, to which each gives its part.

What could leave one process alone in front of a collective is exchanged too: an error that the
user should see, and the wish to stop, end the stage in every process at once.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from train.config import DistributedConfig
from train.interrupt import Interrupted, allowed

T = TypeVar("T")


def connect(section: DistributedConfig) -> None:
    """Joins the other processes; nothing where there are none. Before any use of a device.

    Raises:
        ValueError: Neither the configuration nor the cluster says where they are.
    """
    if not section.enabled:
        return
    # JAX's own handler of SIGTERM would take the place of ours, see train/interrupt.py.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator_address=section.coordinator or None,
            num_processes=section.processes or None,
            process_id=None if section.process < 0 else section.process,
            heartbeat_timeout_seconds=section.timeout_s,
        )
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"distributed: {reason}; allowed: coordinator, processes and process, or a cluster "
            "that tells them"
        ) from None


def is_first() -> bool:
    """Whether this process writes the files."""
    return jax.process_index() == 0


def share(items: Sequence[T]) -> list[T]:
    """This process's part of `items`, the parts of all in order; some may be empty."""
    count, index = jax.process_count(), jax.process_index()
    begin, end = (len(items) * i // count for i in (index, index + 1))
    return list(items[begin:end])


def exchange(work: Callable[[], T], *, interruptible: bool = False) -> list[T]:
    """Runs `work` and returns what it gave in every process, in their order.

    Args:
        work: Its result can be pickled, where there are several processes.
        interruptible: Whether a signal may end it, here and then in all processes.

    Raises:
        ValueError: It raised one in some process.
        OSError: The same.
        Interrupted: A signal came in some process.
    """
    if jax.process_count() == 1:
        return [work()]
    ended: Exception | Interrupted | None = None
    result: Any = None
    try:
        if interruptible:
            with allowed():
                result = work()
        else:
            result = work()
    except (ValueError, OSError, Interrupted) as error:
        ended = error
    everyone = _gather((_told(ended), result))
    for told, _ in everyone:
        if told is not None:
            kind, arguments = told
            raise kind(*arguments) from ended
    return [result for _, result in everyone]


def _told(ended: BaseException | None) -> tuple[type, tuple] | None:
    """Type and arguments of an error, of types that every process knows."""
    if ended is None:
        return None
    if isinstance(ended, OSError):
        return OSError, (ended.errno, ended.strerror or str(ended), ended.filename)
    return (Interrupted if isinstance(ended, Interrupted) else ValueError), (str(ended),)


def _gather(value: Any) -> list[Any]:
    """The value of every process; they are those of our own program, so pickles are safe."""
    content = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.array([content.size], np.int32)).reshape(-1)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: content.size] = content
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]
