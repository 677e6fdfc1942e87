"""The checkpoints of a run: everything needed to go on exactly.

    checkpoints/<next step>/  state/ history/ (Orbax)  score.json  files.json

Parameters, optimizer, rollout history and the next step; data order and noise are pure functions of
(seed, step), so the step stands for both. A checkpoint is written under a temporary name, with the
record of its files (`models.fingerprints`), and renamed when complete. Of several processes, which
share the folder, each writes and reads its part of the state, and the first does the rest.

A save returns once the state is copied to the host, so that the next update may give its arrays
away; a thread sees to the writing and to the name. That thread must not meet the other processes
in a collective, for which all need the same order of programs: it waits for Orbax, whose threads
agree through the coordinator.
"""

import errno
import json
import math
import os
import shutil
import sys
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from models import fingerprints
from train.disk import naming
from train.ending import leave_threads_behind
from train.learner import TrainState
from train.processes import exchange, is_first

History = dict[str, np.ndarray]

SCORE = "score.json"
STATE = "state"
PARAMS_PREFIX = "params."  # before the names of the parameters in a state's Orbax folder
TURN_SECONDS = 1.0  # for which a process waits before all look whether one has failed
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
        keep: How many of the newest whole ones stay; older ones are deleted once a newer one is
            complete.
        keep_best: How many more stay, those of the highest scores; of equal ones the newer.

    Raises:
        ValueError: `keep` is below 1.
    """

    def __init__(self, folder: Path, keep: int = 1, keep_best: int = 0) -> None:
        if keep < 1:
            raise ValueError(f"train.keep_checkpoints: found {keep}, allowed: 1 or more")
        self._folder = folder.resolve()
        self._keep = keep
        self._keep_best = keep_best
        self._bad: set[int] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def save(
        self, next_step: int, state: TrainState, history: History, score: float | None = None
    ) -> None:
        """Begins the checkpoint from which step `next_step` can run; waits for the one before.

        Args:
            next_step: Its name.
            state: May be given away once this has returned.
            history: A snapshot; it must not change until the checkpoint is written.
            score: How good the policy is, more is better; None where nothing says.

        Raises:
            OSError: The disk is full, now or when the one before was written; the checkpoints
                before this one are as they were.
        """
        self.wait()
        path = self._path(next_step)
        partial = path.with_name(f".{next_step}.partial")

        def begin() -> None:
            if is_first():
                self._remove_partial()
                with naming(path):
                    self._folder.mkdir(parents=True, exist_ok=True)
                    self._check_room(state, history)

        exchange(begin)
        checkpointer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(state), history=ocp.args.StandardSave(history)
        )
        try:
            with naming(path):
                checkpointer.save(partial, args=args)
        except OSError:
            checkpointer.close()
            self._give_up()
            raise
        self._writing = self._thread.submit(self._finish, checkpointer, partial, path, score)

    def check(self) -> None:
        """Does not wait.

        Raises:
            OSError: The checkpoint begun last could not be written.
        """
        self._met(0.0)

    def wait(self) -> None:
        """Returns when the checkpoint begun last is whole.

        Raises:
            OSError: It could not be written.
        """
        # In short turns: where one process has failed, the others would wait for it in vain.
        while not self._met(TURN_SECONDS):
            pass
        self._writing = None

    def close(self) -> None:
        """As `wait`, but for this process alone, which may end through an error of its own."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                writing.result()
            except OSError:
                self._give_up()
                raise

    def _met(self, seconds: float) -> bool:
        """Whether every process has written its part, after so many seconds at most."""
        writing = self._writing
        if writing is None:
            return True

        def look() -> bool:
            futures.wait([writing], seconds)
            return writing.done() and writing.result() is None

        try:
            return all(exchange(look))
        except (OSError, ValueError):
            self._writing = None
            self._give_up()
            raise

    def _give_up(self) -> None:
        """After a failure, with which the run ends."""
        if jax.process_count() > 1:  # Orbax's threads may wait for another process, in vain
            leave_threads_behind()
        if is_first():
            self._remove_partial()

    def _finish(
        self, checkpointer: ocp.AsyncCheckpointer, partial: Path, path: Path, score: float | None
    ) -> None:
        with naming(path), closing(checkpointer):
            checkpointer.wait_until_finished()
        if is_first():
            self._complete(partial, path, score)

    def _complete(self, partial: Path, path: Path, score: float | None) -> None:
        """Gives a checkpoint that is wholly written its name, and lets old ones go."""
        with naming(path):
            (partial / SCORE).write_text(json.dumps(score))
            fingerprints.write(partial, partial / fingerprints.RECORD)
        if path.exists():  # one that was passed over, or is the same
            shutil.rmtree(path)
        os.replace(partial, path)
        self._bad.discard(int(path.name))
        self._prune()

    def newest_folder(self) -> Path | None:
        """Of the newest checkpoint, None where there is none; it may be damaged."""
        steps = self._steps()
        return self._path(steps[-1]) if steps else None

    def newest(self, like: TrainState) -> Saved | None:
        """The newest whole checkpoint, None where there is none at all.

        Damaged ones before it are passed over, with a line each on standard error.

        Args:
            like: A state of the same shapes; it is only looked at.

        Raises:
            ValueError: There are checkpoints, but none can be used.
        """
        self.wait()
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
        best = sorted(((self._score(step), step) for step in whole), reverse=True)
        kept = {step for score, step in best[: self._keep_best] if score > -math.inf}
        for step in self._bad | (set(whole[: -self._keep]) - kept):
            shutil.rmtree(self._path(step), ignore_errors=True)
        self._bad.clear()

    def _score(self, step: int) -> float:
        """Of a checkpoint without one, minus infinity."""
        try:
            score = json.loads((self._path(step) / SCORE).read_text())
        except (OSError, ValueError):
            return -math.inf
        return score if isinstance(score, float) and math.isfinite(score) else -math.inf

    def _remove_partial(self) -> None:
        """Removes what a save that was cut short has left."""
        for path in self._folder.glob(".*.partial*"):
            shutil.rmtree(path, ignore_errors=True)

    def _steps(self) -> list[int]:
        names = (path.name for path in self._folder.glob("*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _path(self, step: int) -> Path:
        return self._folder / str(step)
