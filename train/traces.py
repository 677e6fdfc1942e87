"""The trace of a run: its rollouts under `traces/`, written beside the training."""

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from ngramrl_jax.trace.background import BackgroundWriter
from ngramrl_jax.trace.records import TracedStep, TraceHeader
from ngramrl_jax.trace.store import TraceWriter
from train.config import TraceSection
from train.disk import naming
from train.trainer import StepOutcome, Trainer


class RunTrace:
    """Takes the steps of a run; does nothing where there is no writer.

    A step that was refused is not kept: nothing of it was learnt, and the history forgot it too.
    """

    def __init__(self, writer: BackgroundWriter | None = None) -> None:
        """`writer` is closed on leaving the context."""
        self._writer = writer

    def keep(self, outcome: StepOutcome) -> None:
        """Hands a step over.

        Raises:
            OSError: An earlier one could not be written: the disk is full.
        """
        if self._writer and outcome.refused is None:
            reward_N = np.array([score.reward for score in outcome.scores], np.float32)
            self._writer.put(TracedStep(outcome.row["step"], outcome.rollouts, reward_N))

    def flush(self) -> None:
        """Returns when all steps are on disk, so that a trace is never behind a checkpoint.

        Raises:
            OSError: One could not be written.
        """
        if self._writer:
            self._writer.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer:
            self._writer.close()


def open_trace(
    section: TraceSection, folder: Path, trainer: Trainer, seed: int, first_step: int
) -> RunTrace:
    """The trace in `folder`, cut back to the steps before `first_step`.

    Raises:
        ValueError: The trace there is damaged.
        OSError: The disk is full.
    """
    if not section.enabled:
        return RunTrace()
    settings, history = trainer.engine.settings, trainer.history
    header = TraceHeader(
        slots=settings.slots,
        draft_tokens=settings.draft_tokens,
        max_new_tokens=settings.max_new_tokens,
        seed=seed,
        steps_per_epoch=trainer.steps_per_epoch,
        window=history.window,
        history_bytes=history.max_bytes,
        shares_noise=settings.shares_noise,
    )
    with naming(folder):
        max_bytes = section.max_mb * 2**20
        writer = TraceWriter(folder, header, max_bytes=max_bytes, first_step=first_step)

    def append(step: TracedStep) -> None:
        with naming(folder):
            writer.append(step)

    return RunTrace(BackgroundWriter(append))
