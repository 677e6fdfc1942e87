"""A whole run: start or resume, steps, checkpoints, evaluation, summary and report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ngramrl_jax.types import Rollout
from train.config import RunConfig
from train.evaluation import Judge, outcomes
from train.metrics import MetricsWriter, describe_environment, read_rows, summarise
from train.progress import TrainingProgress, print_summary
from train.report import write_report
from train.run_folder import RunFolder
from train.trainer import StepOutcome, Trainer
from train.warm_start import ensure_checkpoint
from train.workbench import Workbench, open_task, open_workbench

SAMPLES = 3  # rollouts shown in the report, from the first step and from the last


def run(config: RunConfig, *, quiet: bool = False) -> dict[str, Any]:
    """Trains until the configured number of steps is done, resuming where the run folder stands.

    Returns:
        The content of `summary.json`.

    Raises:
        ValueError: Something in the configuration, the data or the checkpoint cannot be used.
    """
    task = open_task(config)
    try:
        folder = RunFolder(config)
        ensure_checkpoint(config, task, quiet=quiet)
        bench = open_workbench(config, task)
        try:
            return _Run(config, bench, folder, quiet).go()
        finally:
            folder.close()
    finally:
        task.close()


class _Run:
    """The run's parts and its bookkeeping."""

    def __init__(self, config: RunConfig, bench: Workbench, folder: RunFolder, quiet: bool) -> None:
        self._config = config
        self._bench = bench
        self._folder = folder
        self._quiet = quiet
        self._trainer = Trainer(bench, config)
        epochs = config.train.epochs * self._trainer.steps_per_epoch
        self._total = config.train.steps or epochs
        self._judge = Judge(bench, config)

    def go(self) -> dict[str, Any]:
        first = self._resume()
        with (
            MetricsWriter(self._folder.path, first) as writer,
            TrainingProgress(self._total, first, quiet=self._quiet) as progress,
        ):
            progress.note(self._welcome(first))
            self._trainer.warm_up()
            if first == 0:
                self._evaluate("start")
            for step in range(first, self._total):
                outcome = self._trainer.step(step)
                row = outcome.row | self._after_step(step, outcome)
                writer.write(row)
                progress.update(row)
        return self._finish()

    def _resume(self) -> int:
        """Takes up the newest checkpoint; returns the step to go on with."""
        found = self._folder.latest(self._trainer.state)
        if found is None:
            return 0
        first, self._trainer.state, history = found
        self._trainer.history.restore(history)
        return first

    def _after_step(self, step: int, outcome: StepOutcome) -> dict[str, float]:
        """Samples, evaluation and checkpoint where they are due; returns metrics to add."""
        done, added = step + 1, {}
        last = done == self._total
        if step == 0 or last:
            self._keep_samples(outcome)
        every = self._config.evaluation.every
        if last or (every and done % every == 0):
            added = self._evaluate("end")
        if last or done % self._config.train.checkpoint_every == 0:
            self._folder.save(done, self._trainer.state, self._trainer.history.snapshot())
        return added

    def _evaluate(self, when: str) -> dict[str, float]:
        """Held-out accuracies now; `heldout.json` keeps the item-by-item outcomes."""
        params = self._trainer.rollout_params()
        now = outcomes(self._judge(params), self._bench.task.accuracy_part)
        kept: Mapping[str, Any] = self._folder.read_json("heldout.json") or {}
        merged = {name: dict(kept.get(name, {})) | {when: now[name]} for name in now}
        self._folder.write_json("heldout.json", merged)
        return {f"heldout_{name}_accuracy": sum(o) / len(o) for name, o in now.items()}

    def _keep_samples(self, outcome: StepOutcome) -> None:
        kept: list[Any] = self._folder.read_json("samples.json") or []
        kept = [sample for sample in kept if sample["step"] < outcome.row["step"]]
        prompts = {prompt.item.index: prompt for prompt in self._bench.train}
        apart = max(1, len(outcome.rollouts) // SAMPLES)
        for rollout, score in list(zip(outcome.rollouts, outcome.scores, strict=True))[::apart]:
            item = prompts[rollout.prompt_id].item
            sample = Sample(
                prompt=self._bench.task.prompt(item),
                step=rollout.step,
                reward=score.reward,
                tokens=self._tokens(rollout),
                gold=self._bench.task.response(item),
            )
            kept.append(asdict(sample))
        self._folder.write_json("samples.json", kept)

    def _tokens(self, rollout: Rollout) -> Sequence[dict[str, Any]]:
        texts = self._bench.codec.pieces(rollout.tokens_N)
        return [
            {"text": text, "drafted": bool(drafted)}
            for text, drafted in zip(texts, rollout.drafted_N, strict=True)
        ]

    def _welcome(self, first: int) -> str:
        bench = self._bench
        heldout = ", ".join(f"{len(p)} {name}" for name, p in bench.heldout.items())
        text = f"{len(bench.train)} training prompts; held out: {heldout}"
        if bench.left_out:
            text += f"; {bench.left_out} left out: longer than rollout.max_prompt_tokens"
        return text + (f"; resuming at step {first} of {self._total}" if first else "")

    def _finish(self) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Sample:
    """A rollout as the report shows it.

    Attributes:
        prompt: Its text.
        step: Training step.
        reward: Of the rollout.
        tokens: Text of each token and whether it was an accepted draft.
        gold: A right response.
    """

    prompt: str
    step: int
    reward: float
    tokens: Sequence[dict[str, Any]]
    gold: str
