"""Training with speculation and without, compared: `make equivalence`.

A. *Same keys*: a plain run, the same again, and a speculative one step side by side; their
   rollouts, rewards and parameters are compared after every step.
B. *Different keys*: several seeds of each; reward and held-out accuracy, with intervals.
C. *Time by stage* of the steps of A, beside the bound that Amdahl's law sets.

    python benchmarks/training/equivalence.py [seeds=3] [seed_epochs=4] [key=value ...]

`key=value` changes an entry of configs/quickstart.yaml, e.g. `train.epochs=2 data.train_items=32`;
`seeds=0` leaves B out. Exit status 1 where A does not hold.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.training.curves import learning_curves, t_interval  # noqa: E402
from benchmarks.training.side_by_side import Agreement, Arm, make_arm, train_with_same_keys  # noqa: E402
from benchmarks.training.stages import Phase, Ratio, time_table  # noqa: E402
from train.command import REPOSITORY, fail_in_one_line, use_compilation_cache  # noqa: E402
from train.config import RunConfig  # noqa: E402
from train.config_file import load_config  # noqa: E402
from train.metrics import describe_environment, to_json, warm_rows, write_atomic  # noqa: E402
from train.tasks.registry import open_task  # noqa: E402
from train.workbench import Workbench, open_workbench  # noqa: E402

OPTIONS = {"seeds": 3, "seed_epochs": 4}
SMALLER = ("out=runs/equivalence", "data.train_items=64", "data.heldout_items=120")
ARMS = ("plain", "plain again", "speculative")
STAGES = {
    "data": "Data",
    "rollout": "Generation",
    "reward": "Reward",
    "logprob": "Log-prob",
    "train": "Training",
    "step": "Overall",
}


@dataclass(frozen=True)
class Grid:
    """A table that is both printed and pasted into a README; the first column holds names."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]

    def rich(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title, title_justify="left")
        for head in self.heads:
            table.add_column(head, justify="right" if table.columns else "left")
        for line in self.lines:
            table.add_row(*line)
        return table

    def markdown(self) -> str:
        """For a README."""
        rule = ["---", *["--:"] * (len(self.heads) - 1)]
        rows = ["| " + " | ".join(cells) + " |" for cells in (self.heads, rule, *self.lines)]
        return "\n".join([f"*{self.title}*", "", *rows])


class Log:
    """Tells what is done, with the minutes since the start."""

    def __init__(self) -> None:
        self._start = perf_counter()

    def __call__(self, words: str) -> None:
        """One line, at once."""
        print(f"{(perf_counter() - self._start) / 60:5.1f} min  {words}", flush=True)


def parse(arguments: Sequence[str]) -> tuple[RunConfig, dict[str, int]]:
    """The configuration and the options of the command line.

    Raises:
        ValueError: Unknown key, a value out of range, or a configuration without drafting.
    """
    options, overrides = dict(OPTIONS), []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in OPTIONS:
            overrides.append(argument)
        elif value.isdigit():
            options[name] = int(value)
        else:
            raise ValueError(f"{name}: found {value!r}, allowed: 0 or more")
    if options["seeds"] == 1 or not options["seed_epochs"]:
        raise ValueError(f"seeds, seed_epochs: found {options}, allowed: 0 or 2 or more; 1 or more")
    config = load_config(REPOSITORY / "configs" / "quickstart.yaml", [*SMALLER, *overrides])
    if config.rollout.draft_tokens < 1:
        raise ValueError("rollout.draft_tokens: found 0, allowed: 1 or more")
    return config, options


def same_keys(bench: Workbench, config: RunConfig, log: Log) -> tuple[list[Arm], list[Agreement]]:
    """Part A; its rows are what part C is made of."""
    budgets = (0, 0, config.rollout.draft_tokens)
    arms = [
        make_arm(name, bench, config, draft_tokens=budget)
        for name, budget in zip(ARMS, budgets, strict=True)
    ]
    steps = config.train.steps or config.train.epochs * arms[0].trainer.steps_per_epoch
    return arms, train_with_same_keys(arms, bench, config, steps, log)


def phases(arms: Sequence[Arm]) -> dict[str, Phase]:
    """Part C: the first epoch and the last 30 % of steps."""
    per_epoch = arms[0].trainer.steps_per_epoch
    return {
        "cold": time_table(*(arm.rows[:per_epoch] for arm in arms)),
        "warm": time_table(*(warm_rows(arm.rows) for arm in arms)),
    }


def agreement_grid(agreements: Sequence[Agreement]) -> Grid:
    """The table of part A."""

    def line(name: str, cells: Sequence[object]) -> list[str]:
        return [name, *map(str, cells)]

    def first(agreement: Agreement) -> str:
        return "none" if agreement.first_difference is None else str(agreement.first_difference)

    lines = [
        line("steps", [of.steps for of in agreements]),
        line("rollouts compared", [f"{of.rollouts:,}" for of in agreements]),
        line("tokens compared", [f"{of.tokens:,}" for of in agreements]),
        line("of them accepted drafts", [f"{of.accepted:,}" for of in agreements]),
        line("rollouts parted where rounding decides", [of.near_ties for of in agreements]),
        line("first step with any difference", [first(of) for of in agreements]),
        line("parameters, largest difference", [f"{of.param_gap:.1e}" for of in agreements]),
        line("the same, after the last step", [f"{of.final_param_gap:.1e}" for of in agreements]),
        line("log-probabilities, largest", [f"{of.logp_gap:.1e}" for of in agreements]),
        line("agrees", ["no" if of.broken else "yes" for of in agreements]),
    ]
    return Grid("Same keys, compared with plain decoding", ["", *ARMS[1:]], lines)


def curves_grid(curves: Mapping[str, NDArray[np.float64]]) -> Grid:
    """The table of part B: the last epoch, and in how many epochs the interval covers 0."""
    lines = []
    for name, curve_ASE in curves.items():
        intervals = [t_interval(difference_S) for difference_S in (curve_ASE[1] - curve_ASE[0]).T]
        last = intervals[-1]
        plain, speculative = curve_ASE[:, :, -1].mean(axis=1)
        lines.append(
            [
                name.replace("_", " "),
                f"{plain:.3f}",
                f"{speculative:.3f}",
                f"{last.mean:+.3f} [{last.low:+.3f}, {last.high:+.3f}]",
                f"{sum(i.covers_zero for i in intervals)} of {len(intervals)}",
            ]
        )
    _, runs, epochs = next(iter(curves.values())).shape
    title = f"Different keys, {runs} seeds an arm, epoch {epochs} (95 % t-intervals over seeds)"
    heads = ["", "plain", "speculative", "difference", "epochs with 0 inside"]
    return Grid(title, heads, lines)


def stages_grid(table: Mapping[str, Phase]) -> Grid:
    """The table of part C."""

    def ratio(of: Ratio) -> str:
        return f"{of.median:.2f} ({of.least:.2f}-{of.most:.2f})"

    def last_column(name: str, cells: Sequence[str]) -> list[str]:
        return [name, *(text for cell in cells for text in ("", "", cell))]

    lines = [
        [head, *(f"{of[stage]:.3f}" for phase in table.values() for of in phase.seconds)]
        for stage, head in STAGES.items()
    ]
    each = list(table.values())
    lines += [
        last_column("R, generation's share (plain)", [f"{p.rollout_share:.1%}" for p in each]),
        last_column("α, tokens per forward", [f"{p.tokens_per_forward:.2f}" for p in each]),
        last_column("bound 1/(R/α + 1 − R)", [f"{p.bound:.2f}" for p in each]),
        last_column("reached: step", [ratio(p.step_speedup) for p in each]),
        last_column("reached: generation", [ratio(p.rollout_speedup) for p in each]),
        last_column("step, plain by plain again", [ratio(p.spread) for p in each]),
    ]
    counts = ", ".join(f"{name}: {phase.steps} steps" for name, phase in table.items())
    heads = ["s a step", *(f"{name} {arm}" for name in table for arm in ARMS)]
    return Grid(f"Time by stage, medians ({counts})", heads, lines)


def record(
    agreements: Sequence[Agreement],
    table: Mapping[str, Phase],
    curves: Mapping[str, NDArray[np.float64]],
) -> dict[str, Any]:
    """What the JSON file holds of the measurements."""
    intervals = {
        name: [t_interval(of_epoch)._asdict() for of_epoch in (curve_ASE[1] - curve_ASE[0]).T]
        for name, curve_ASE in curves.items()
    }
    return {
        "same_keys": dict(zip(ARMS[1:], map(asdict, agreements), strict=True)),
        "stages": {name: asdict(phase) for name, phase in table.items()},
        "curves": curves,
        "difference_by_epoch": intervals,
    }


def main() -> None:
    """Measures, prints, and writes `equivalence.json` and `equivalence.md` to the run folder."""
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__)
        return
    config, options = parse(sys.argv[1:])
    log = Log()
    folder = Path(config.out)
    folder.mkdir(parents=True, exist_ok=True)
    with closing(open_task(config)) as task:
        bench = open_workbench(config, task)
        arms, agreements = same_keys(bench, config, log)
        table, curves = phases(arms), {}
        if options["seeds"]:
            runs, epochs = options["seeds"], options["seed_epochs"]
            curves = learning_curves(bench, config, log, runs=runs, epochs=epochs)
    grids = [agreement_grid(agreements), stages_grid(table)]
    if curves:
        grids.insert(1, curves_grid(curves))
    for grid in grids:
        Console(width=150).print(grid.rich())
    results = record(agreements, table, curves)
    facts = {"options": options, "config": asdict(config), **describe_environment(config.seed)}
    write_atomic(folder / "equivalence.json", to_json(facts | results, indent=1) + "\n")
    measured = f"Measured on {facts['device']}, commit {facts['git_commit']}."
    text = "\n\n".join([*(grid.markdown() for grid in grids), measured])
    write_atomic(folder / "equivalence.md", text + "\n")
    broken = [words for agreement in agreements for words in agreement.broken]
    print(f"written: {folder / 'equivalence.json'}, {folder / 'equivalence.md'}")
    if broken:
        print("\n".join(broken[:10]), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    use_compilation_cache()
    with fail_in_one_line():
        main()
