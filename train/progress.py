"""What a run says while it goes on, and the table at its end.

On a terminal: a live bar with a line of metrics under it. Elsewhere (a log file, CI): one plain
line a step.
"""

import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from train.metrics import WARM_PERCENT, Row, reward_parts

TABLE_WIDTH = 100
MISSING = "–"
LABELS = {
    "tokens_per_forward": "tokens per forward",
    "acceptance_rate": "drafted tokens accepted",
    "reward_mean": "reward",
}


class TrainingProgress:
    """Shows how far a run is; a context manager, so that the terminal is left tidy on any exit.

    Args:
        total_steps: Steps of the whole run.
        first_step: The step that the run starts or resumes at.
        quiet: Show nothing at all.
        stream: Where to write; standard output by default.
    """

    def __init__(
        self,
        total_steps: int,
        first_step: int = 0,
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self._total_steps = total_steps
        self._console = Console(file=stream or sys.stdout, quiet=quiet, highlight=False)
        self._recent_s: deque[float] = deque(maxlen=10)
        self._last = time.monotonic()
        self._live_shown = self._console.is_terminal and not quiet
        self._bar = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=40),
            TextColumn("{task.description}"),
            console=self._console,
        )
        self._task = self._bar.add_task("", total=total_steps, completed=first_step)
        self._line = Text("starting")
        self._live = Live(Group(self._bar, self._line), console=self._console)

    def update(self, row: Row) -> None:
        """Shows the metrics of the step that has just ended."""
        now = time.monotonic()
        self._recent_s.append(now - self._last)
        self._last = now
        done = row["step"] + 1
        left_s = statistics.median(self._recent_s) * max(0, self._total_steps - done)
        left = f"{clock(left_s)} left"
        if self._live_shown:
            self._bar.update(self._task, completed=done, description=left)
            self._line.plain = status_line(row)
        else:
            self.note(f"step {done}/{self._total_steps}  {status_line(row)}  {left}")

    def note(self, text: str) -> None:
        """Prints a line of its own, above the bar where there is one."""
        self._console.print(Text(text), soft_wrap=True)

    def __enter__(self) -> Self:
        if self._live_shown:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()


def status_line(row: Mapping[str, Any]) -> str:
    """The metrics of one step in few words; a metric that the row lacks is left out."""
    part = reward_parts(row)[:1]
    fields = [
        ("epoch {:d}", row.get("epoch")),
        ("reward {:.2f}", row.get("reward_mean")),
        *((f"{label(name)} {{:.2f}}", row[name]) for name in part),
        ("killed {:.0%}", row.get("killed_frac") or None),
        ("TPF {:.2f}", row.get("tokens_per_forward")),
        ("{:,.0f} rollout tokens/s", row.get("rollout_tokens_per_s")),
    ]
    return "  ".join(form.format(value) for form, value in fields if value is not None)


def label(metric: str) -> str:
    """A metric's name in plain words: `reward_execution_match_mean` is "execution match"."""
    return LABELS.get(metric, metric.removeprefix("reward_").removesuffix("_mean")).replace(
        "_", " "
    )


def clock(seconds: float) -> str:
    """Hours, minutes and seconds as `1:02:03`, or `2:03` under an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def print_summary(summary: Mapping[str, Any], stream: TextIO | None = None) -> None:
    """Prints a run's `summary.json` as tables of at most 100 columns."""
    console = Console(file=stream or sys.stdout, highlight=False)
    console.width = min(console.width, TABLE_WIDTH) if console.is_terminal else TABLE_WIDTH
    for table in (_speculation(summary), _heldout(summary), _time(summary)):
        if table.row_count:
            console.print(table)


def compared_metrics(summary: Mapping[str, Any]) -> list[str]:
    """The metrics worth comparing between epochs, those that the run has."""
    names = ["tokens_per_forward", "acceptance_rate", *reward_parts(summary["cold"]), "reward_mean"]
    return [name for name in names if name in summary["cold"]]


def number(value: float | None, form: str = ".2f") -> str:
    """The number in the form given, a dash for one that is missing."""
    return MISSING if value is None else format(value, form)


def verdict(result: Mapping[str, Any]) -> str:
    """What a held-out comparison (of `metrics.compare_heldout`) says, in a word."""
    if "end" not in result:
        return "not measured at the end"
    if result["significantly_worse"]:
        return "worse"
    better = result["interval"] is not None and result["interval"][0] > 0
    return "better" if better else "no clear change"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    return table


def _row(table: Table, cells: Sequence[str]) -> None:
    table.add_row(*(Text(cell) for cell in cells))


def _speculation(summary: Mapping[str, Any]) -> Table:
    warm = f"warm (last {WARM_PERCENT} %)"
    table = _table(f"{summary['steps']} steps", "mean over", "first epoch", "last epoch", warm)
    epochs = summary["epochs"] or [{}]
    for name in compared_metrics(summary):
        values = (summary["cold"][name], epochs[-1].get(name), summary["warm"].get(name))
        _row(table, [label(name), *map(number, values)])
    return table


def _heldout(summary: Mapping[str, Any]) -> Table:
    columns = ("items", "start", "end", "difference", "95 % interval", "verdict")
    table = _table("held-out accuracy", "set", *columns)
    for name, result in summary["heldout"].items():
        low, high = result.get("interval") or (None, None)
        cells = [number(result["start"], ".3f"), number(result.get("end"), ".3f")]
        cells.append(number(result.get("difference"), "+.3f"))
        cells.append(f"{number(low, '+.3f')} to {number(high, '+.3f')}")
        _row(table, [label(name), str(result["items"]), *cells, verdict(result)])
    return table


def _time(summary: Mapping[str, Any]) -> Table:
    table = _table("time by stage", "stage", "whole run", "share", "a warm step", "share")
    warm = {name: summary["warm"].get(f"time_{name}_s", 0.0) for name in summary["time_s"]}
    total, total_warm = sum(summary["time_s"].values()), sum(warm.values())
    for stage, seconds in summary["time_s"].items():
        run = [f"{seconds:.1f} s", f"{seconds / (total or 1):.0%}"]
        _row(table, [stage, *run, f"{warm[stage]:.2f} s", f"{warm[stage] / (total_warm or 1):.0%}"])
    return table
