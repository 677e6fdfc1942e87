"""A whole run: start or resume, steps, checkpoints, evaluation, summary and report."""

from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import jax

from models.config import ModelConfig
from train.config import RunConfig
from train.data_order import left_over
from train.evaluation import Judge, outcomes
from train.inputs import note_inputs
from train.interrupt import Interrupted, deferred
from train.metrics import HELD_OUT, MetricsWriter, Row, describe_environment, read_rows, summarise
from train.processes import exchange, is_first
from train.progress import TrainingProgress, print_summary
from train.refusals import Refusals
from train.report import write_report
from train.run_folder import RunFolder
from train.samples import keep_samples
from train.score import Score
from train.slots import with_slots
from train.tasks.registry import open_task
from train.timelines import keep_timeline
from train.traces import RunTrace, open_trace
from train.tracking import Tracker, open_tracker
from train.trainer import Sampled, StepOutcome, Trainer
from train.warm_start import ensure_checkpoint
from train.watchdog import watched
from train.workbench import Workbench, open_workbench


def run(config: RunConfig, *, quiet: bool = False) -> dict[str, Any]:
    """Trains until the configured number of steps is done, resuming where the run folder stands.

    Returns:
        The content of `summary.json`; of several processes only the first has it.

    Raises:
        ValueError: Something in the configuration, the data or the checkpoint cannot be used; or
            the task fails: what was learnt is saved.
        RunStopped: Too many steps in a row were refused; the last good state is saved.
        Interrupted: A signal came (`train.interrupt`); what was learnt is saved.
        OSError: The disk is full; the last checkpoint is whole.
    """
    task = open_task(config)
    try:
        folder = RunFolder(config)
        ensure_checkpoint(config, task, quiet=quiet)
        if not config.rollout.slots:
            architecture = Path(config.model.checkpoint) / "config.json"
            config = with_slots(config, ModelConfig.from_json(architecture))
            if is_first() and not quiet:
                print(f"rollout.slots: {config.rollout.slots}, from the memory of a device")
        return _Run(config, open_workbench(config, task), folder, quiet).go()
    finally:
        task.close()


class _Run:
    """The run's parts and its bookkeeping."""

    def __init__(self, config: RunConfig, bench: Workbench, folder: RunFolder, quiet: bool) -> None:
        if config.train.checkpoint_every < 1:
            found = config.train.checkpoint_every
            raise ValueError(f"train.checkpoint_every: found {found}, allowed: 1 or more")
        self._config = config
        self._folder = folder
        self._quiet = quiet or not is_first()
        self._trainer = Trainer(bench, config)
        self._bench = bench = replace(bench, params={})  # no second policy stays in memory
        epochs = config.train.epochs * self._trainer.steps_per_epoch
        self._total = config.train.steps or epochs
        self._judge = Judge(bench, config)
        self._trace = RunTrace()
        self._tracker = Tracker()
        self._done = self._saved = 0  # steps done, and those that the newest checkpoint holds
        self._score = Score(bool(config.evaluation.every and any(bench.heldout.values())))
        self._owes_evaluation = False  # the task failed after the step done last
        self._saving_s = 0.0  # for which the checkpoint begun last kept the run waiting

    def go(self) -> dict[str, Any]:
        refusals = self._resume()
        changed: list[str] = []
        if is_first():
            self._folder.create()
            changed = note_inputs(self._folder, self._config)
        with (
            closing(self._folder.checkpoints),
            self._open_trace() as self._trace,
            self._open_tracker() as self._tracker,
            self._open_metrics() as writer,
            TrainingProgress(self._total, self._done, quiet=self._quiet) as progress,
        ):
            progress.note(self._welcome())
            for name in changed:
                progress.note(f"{name} has changed since the run began: steps from here use it")
            try:
                # Several processes must agree to stop; they do where they exchange rollouts.
                with deferred() if jax.process_count() > 1 else nullcontext():
                    self._train(writer, progress, refusals)
                self._wait()
            except Interrupted as end:
                self._save()
                raise self._word(end) from None
        return self._finish()

    def _resume(self) -> Refusals:
        """Takes up the newest checkpoint."""
        if saved := self._folder.checkpoints.newest(self._trainer.state):
            self._trainer.resume(saved)
            self._done = self._saved = saved.next_step
        rows = read_rows(self._folder.path / "metrics.jsonl")
        rows = [row for row in rows if row["step"] < self._done]
        for row in rows:
            self._score.see(row)
            self._owes_evaluation = not any(HELD_OUT.fullmatch(name) for name in row)
        before = [row.get("refused_steps", 0) for row in rows]
        return Refusals(self._config.train.max_refused, so_far=max(before, default=0))

    def _open_metrics(self) -> MetricsWriter | nullcontext[None]:
        return MetricsWriter(self._folder.path, self._done) if is_first() else nullcontext()

    def _open_trace(self) -> RunTrace:
        config = self._config
        if not is_first():
            return RunTrace()
        return open_trace(config.trace, self._folder.traces, self._trainer, config.seed, self._done)

    def _open_tracker(self) -> Tracker:
        if not is_first():
            return Tracker()
        return open_tracker(self._config.wandb, self._folder, asdict(self._config))

    def _train(
        self, writer: MetricsWriter | None, progress: TrainingProgress, refusals: Refusals
    ) -> None:
        self._trainer.warm_up()
        if self._done == 0:
            self._evaluate("start")
        elif self._done == self._total and self._owes_evaluation:
            self._evaluate("end")
        for step in range(self._done, self._total):
            sampled = self._sample(step)
            self._folder.checkpoints.check()
            with deferred():  # a signal waits: policy, row and checkpoint belong together
                outcome = self._trainer.learn(sampled)
                row = outcome.row | refusals.count(step, outcome.refused)
                self._done = step + 1
                more, mistake = self._after_step(outcome)
                row |= more | {"time_checkpoint_s": self._saving_s}
                self._score.see(row)
                self._saving_s = 0.0
                if writer:
                    writer.write(row)  # before the checkpoint: a kill between leaves no gap
                self._tracker.log(row)
                self._trace.keep(outcome)
                progress.update(row)
                due = self._due(self._config.train.checkpoint_every)
                if due or refusals.too_many or mistake:
                    self._save()
                refusals.check()
                if mistake:
                    raise self._told(mistake) from mistake

    def _sample(self, step: int) -> Sampled:
        """The first half of a step; where the reward fails, what was learnt before is saved."""
        try:
            return self._trainer.sample(step)
        except ValueError as error:
            if not self._done:
                raise
            self._save()
            raise self._told(error) from error

    def _due(self, every: int) -> bool:
        """Whether it is the turn of what comes every so many steps (0: never) and at the end."""
        return self._done == self._total or bool(every and self._done % every == 0)

    def _after_step(self, outcome: StepOutcome) -> tuple[Row, ValueError | None]:
        """Samples and evaluation where they are due: metrics to add, and how the task failed."""
        try:
            if self._done in (1, self._total) and not outcome.refused:
                exchange(partial(self._keep_samples, outcome))
            return (self._evaluate("end") if self._due(self._config.evaluation.every) else {}), None
        except ValueError as mistake:
            return {}, mistake

    def _keep_samples(self, outcome: StepOutcome) -> None:
        if is_first():
            keep_samples(self._folder, self._bench, outcome)
            prefetch = self._trainer.engine.prefetch
            keep_timeline(self._folder, outcome.row["step"], prefetch, outcome.timeline)

    def _evaluate(self, when: str) -> Row:
        """Held-out accuracies now; `heldout.json` keeps the item-by-item outcomes."""
        params = self._trainer.rollout_params()
        with watched("evaluation", self._config.train.stuck_after_s):
            now = outcomes(self._judge(params), self._bench.task.accuracy_part)
        if is_first():
            self._keep_outcomes(when, now)
        return {f"heldout_{name}_accuracy": sum(o) / len(o) for name, o in now.items()}

    def _keep_outcomes(self, when: str, now: Mapping[str, Any]) -> None:
        kept: Mapping[str, Any] = self._folder.read_json("heldout.json") or {}
        merged = {name: dict(kept.get(name, {})) | {when: now[name]} for name in now}
        self._folder.write_json("heldout.json", merged)

    def _save(self) -> None:
        """Begins a checkpoint of the steps done, where the newest one holds fewer."""
        if self._done == self._saved:
            return
        start = perf_counter()
        self._trace.flush()
        with watched(f"step {self._done}: checkpoint", self._config.train.stuck_after_s):
            self._folder.checkpoints.save(
                self._done, self._trainer.state, self._trainer.kept_history, self._score.value
            )
        self._saved = self._done
        self._saving_s = perf_counter() - start

    def _wait(self) -> None:
        """The last checkpoint is whole; a signal waits for it."""
        with deferred(), watched("checkpoint", self._config.train.stuck_after_s):
            self._folder.checkpoints.wait()

    def _told(self, mistake: ValueError) -> ValueError:
        return ValueError(f"{mistake}; {self._saved_word()}")

    def _word(self, end: Interrupted) -> Interrupted:
        return Interrupted(self._saved_word()) if self._done else end

    def _saved_word(self) -> str:
        where = f"at step {self._done} of {self._total}"
        return f"everything is saved; the same command goes on {where}"

    def _welcome(self) -> str:
        bench = self._bench
        per_step = self._config.train.prompts_per_step
        heldout = ", ".join(f"{len(p)} {name}" for name, p in bench.heldout.items()) or "nothing"
        text = f"{len(bench.train)} training prompts"
        if skipped := left_over(len(bench.train), per_step):
            text += (
                f", of which each epoch leaves out {skipped} (train.prompts_per_step={per_step})"
            )
        text += f"; held out: {heldout}"
        if bench.left_out:
            text += f"; {bench.left_out} left out: longer than rollout.max_prompt_tokens"
        return text + (f"; resuming at step {self._done} of {self._total}" if self._done else "")

    def _finish(self) -> dict[str, Any]:
        if not is_first():
            return {}
        summary = summarise(
            read_rows(self._folder.path / "metrics.jsonl"),
            self._folder.read_json("heldout.json") or {},
            describe_environment(self._config.seed),
        )
        self._folder.write_json("summary.json", summary)
        report = write_report(self._folder.path)
        if not self._quiet:
            print_summary(summary)
            print(f"report: {report}")
        return summary
