"""The checkpoints of a run: everything needed to go on exactly.

    checkpoints/<next step>/  state/ history/ (Orbax)  files.json

Parameters, optimizer, rollout history and the next step; data order and noise are pure functions of
(seed, step), so the step stands for both. A checkpoint is written under a temporary name, with the
record of its files (`models.fingerprints`), and renamed when complete. Of several processes, which
share the folder, each writes and reads its part of the state, and the first does the rest.
"""

import errno
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from models import fingerprints
from train.disk import naming
from train.learner import TrainState
from train.processes import exchange, is_first

History = dict[str, np.ndarray]

OVERHEAD_BYTES = 1 << 20  # of a checkpoint's many small files


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds.

    Attributes:
        next_step: The step to go on with.
        state: Parameters and optimizer.
        history: A snapshot of the rollout history.
    """

    next_step: int
    state: TrainState
    history: History


class Checkpoints:
    """A folder of checkpoints, which need not exist yet.

    Args:
        folder: Where they lie.
        keep: How many whole ones stay; older ones are deleted once a newer one is complete.

    Raises:
        ValueError: `keep` is below 1.
    """

    def __init__(self, folder: Path, keep: int = 1) -> None:
        if keep < 1:
            raise ValueError(f"train.keep_checkpoints: found {keep}, allowed: 1 or more")
        self._folder = folder.resolve()
        self._keep = keep
        self._bad: set[int] = set()

    def save(self, next_step: int, state: TrainState, history: History) -> None:
        """Writes the checkpoint from which step `next_step` can run.

        Raises:
            OSError: The disk is full; the checkpoints before this one are as they were.
        """
        path = self._path(next_step)
        partial = path.with_name(f".{next_step}.partial")

        def begin() -> None:
            if is_first():
                self._remove_partial()
                with naming(path):
                    self._folder.mkdir(parents=True, exist_ok=True)
                    self._check_room(state, history)

        exchange(begin)
        try:
            with (
                naming(path),
                ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer,
            ):
                checkpointer.save(
                    partial,
                    args=ocp.args.Composite(
                        state=ocp.args.StandardSave(state),
                        history=ocp.args.StandardSave(history),
                    ),
                )
            exchange(lambda: self._complete(partial, path) if is_first() else None)
        except OSError:
            if is_first():
                self._remove_partial()
            raise

    def _complete(self, partial: Path, path: Path) -> None:
        """Gives a checkpoint that is wholly written its name, and lets old ones go."""
        with naming(path):
            fingerprints.write(partial, partial / fingerprints.RECORD)
        if path.exists():  # one that was passed over, or is the same
            shutil.rmtree(path)
        os.replace(partial, path)
        self._bad.discard(int(path.name))
        self._prune()

    def newest(self, like: TrainState) -> Saved | None:
        """The newest whole checkpoint, None where there is none at all.

        Damaged ones before it are passed over, with a line each on standard error.

        Args:
            like: A state of the same shapes; it is only looked at.

        Raises:
            ValueError: There are checkpoints, but none can be used.
        """
        reasons: list[str] = []
        for step in reversed(exchange(self._steps)[0]):
            try:
                saved = self._read(step, like)
            except (ValueError, TypeError, KeyError, OSError) as error:
                reasons.append(str(error).splitlines()[0])
                self._bad.add(step)
            else:
                for reason in reasons if is_first() else ():
                    print(f"checkpoint passed over: {reason}", file=sys.stderr, flush=True)
                return saved
        if reasons:
            raise ValueError(
                f"{self._folder}: found {len(reasons)} checkpoints, allowed: one that can be used, "
                f"or another out=; the newest: {reasons[0]}"
            )
        return None

    def _read(self, step: int, like: TrainState) -> Saved:
        path = self._path(step)
        record = path / fingerprints.RECORD
        exchange(lambda: fingerprints.check(path, record) if is_first() else None)
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            restored = checkpointer.restore(
                path,
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(target), history=ocp.args.StandardRestore()
                ),
            )
        return Saved(step, restored["state"], restored["history"])

    def _check_room(self, *parts: object) -> None:
        """Raises OSError where the disk is too full; Orbax would find out with much ado."""
        needed = OVERHEAD_BYTES + sum(leaf.nbytes for leaf in jax.tree.leaves(parts))
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            reason = os.strerror(errno.ENOSPC)
            raise OSError(errno.ENOSPC, f"{reason}, {needed:,} bytes needed, {free:,} free")

    def _prune(self) -> None:
        whole = [step for step in self._steps() if step not in self._bad]
        for step in [*self._bad, *whole[: -self._keep]]:
            shutil.rmtree(self._path(step), ignore_errors=True)
        self._bad.clear()

    def _remove_partial(self) -> None:
        """Removes what a save that was cut short has left."""
        for path in self._folder.glob(".*.partial*"):
            shutil.rmtree(path, ignore_errors=True)

    def _steps(self) -> list[int]:
        names = (path.name for path in self._folder.glob("*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _path(self, step: int) -> Path:
        return self._folder / str(step)
