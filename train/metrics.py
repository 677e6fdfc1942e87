"""What a run writes down: one row a step, TensorBoard events, and the summary at the end.

A *row* is a flat dict of metrics under the names of DESIGN section 11. Parts of the reward come as
`reward_<part>_mean`, sums as plain counts (`committed_tokens`, `row_rounds`, ...), so that a rate
over many steps is a ratio of sums and not a mean of ratios.
"""

import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
from tensorboardX import SummaryWriter

from train.disk import best_effort, naming, write_whole

Row = dict[str, Any]

WARM_PERCENT = 30
SIGNIFICANCE = 0.05
HELD_OUT = re.compile(r"heldout_(.+)_accuracy")

# Rates and the sums that they are ratios of, (numerator, denominator).
RATES = {
    "tokens_per_forward": ("committed_tokens", "row_rounds"),
    "accepted_per_round": ("accepted_tokens", "row_rounds"),
    "drafted_per_round": ("drafted_tokens", "row_rounds"),
    "acceptance_rate": ("accepted_tokens", "drafted_tokens"),
    "rollout_tokens_per_s": ("committed_tokens", "time_rollout_s"),
    "rollout_share": ("time_rollout_s", "time_step_s"),
}
# They name a step; their mean says nothing.
LABELS = {"step", "epoch", "policy_version"}
STAGE = re.compile(r"time_(?!step_|total_)(\w+)_s")


class MetricsWriter:
    """Appends rows to `metrics.jsonl` and to TensorBoard events in `tensorboard/`.

    Every row is one line and one `write`, so a kill leaves at most one cut line, the last.

    Args:
        run_folder: An existing folder.
        first_step: The step that the run starts or resumes at. Rows from it on, left by a run that
            got further than its last checkpoint, are removed: they are about to be written anew.
    """

    def __init__(self, run_folder: Path, first_step: int = 0) -> None:
        self._path = path = run_folder / "metrics.jsonl"
        kept = [row for row in read_rows(path) if row["step"] < first_step]
        write_atomic(path, "".join(to_json(row) + "\n" for row in kept))
        self._file = path.open("ab", buffering=0)
        self._events = SummaryWriter(best_effort(run_folder / "tensorboard"), purge_step=first_step)

    def write(self, row: Row) -> None:
        """Appends the metrics of one step; vectors become one TensorBoard scalar an index."""
        line = (to_json(row) + "\n").encode()
        with naming(self._path):
            write_whole(self._file, line)
        for name, value in _plain(row).items():
            if isinstance(value, list):
                scalars = {f"{name}/{i:02d}": item for i, item in enumerate(value)}
            else:
                scalars = {name: value}
            for tag, scalar in scalars.items():
                if _is_number(scalar):
                    self._events.add_scalar(tag, scalar, row["step"])

    def close(self) -> None:
        """Flushes the events and closes both; may be called twice."""
        self._file.close()
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_rows(path: Path) -> list[Row]:
    """The rows of a `metrics.jsonl`, none where there is no file; a cut last line is dropped.

    Raises:
        ValueError: A line other than the last is not JSON.
    """
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise ValueError(
                    f"{path}: line {number} is not JSON, allowed: one object a line"
                ) from None
    return rows


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON of plain Python, NumPy and JAX values; NaN and infinities become null."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def write_atomic(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a kill, finds the old content or the new, never half."""
    scratch = path.with_name(path.name + ".tmp")
    try:
        with naming(path):
            scratch.write_text(text, encoding="utf-8")
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def summarise(
    rows: Sequence[Row],
    evaluations: Mapping[str, Mapping[str, Sequence[int]]],
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """The content of `summary.json`.

    Args:
        rows: The rows of the run in the order of their steps.
        evaluations: Per held-out set its 0/1 outcomes, item by item in the same order, under
            `start` and, once the run has ended, under `end`.
        environment: From `describe_environment`; its entries become top-level entries.

    Returns:
        `steps` done; the `last` row; means over the `cold` first epoch and the `warm` last 30 % of
        steps; `epochs`, each with its reward, its parts and its rates; `time_s` per stage over
        the run; `heldout` per set; and the environment.
    """
    rows = [_plain(row) for row in rows]
    epochs = by_epoch(rows)
    means = [average(epoch) for epoch in epochs.values()]
    return {
        "steps": len(rows),
        "last": rows[-1] if rows else {},
        "cold": means[0] if means else {},
        "warm": average(warm_rows(rows)),
        "epochs": [
            {"epoch": epoch, "steps": len(epochs[epoch]), **_of_an_epoch(mean)}
            for epoch, mean in zip(epochs, means, strict=True)
        ],
        "time_s": {stage: _total(rows, f"time_{stage}_s") for stage in stages(rows)},
        "heldout": {name: compare_heldout(**outcomes) for name, outcomes in evaluations.items()},
        **environment,
    }


def by_epoch(rows: Iterable[Row]) -> dict[int, list[Row]]:
    """The rows of every epoch, in order; rows that name no epoch belong to epoch 0."""
    epochs: dict[int, list[Row]] = {}
    for row in rows:
        epochs.setdefault(row.get("epoch", 0), []).append(row)
    return epochs


def warm_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """The last 30 % of steps, rounded up."""
    return rows[len(rows) - -(-len(rows) * WARM_PERCENT // 100) :]


def average(rows: Sequence[Row]) -> Row:
    """Means over steps of every numeric metric, vectors position by position.

    The rates of `RATES` come from their sums over the steps that have both. A step that lacks a
    metric, or holds null, does not count towards that metric's mean.
    """
    rows = [_plain(row) for row in rows]
    names = dict.fromkeys(name for row in rows for name in row if name not in LABELS)
    means = {name: _mean([row.get(name) for row in rows]) for name in names}
    for rate, (above, below) in RATES.items():
        both = [row for row in rows if _is_number(row.get(above)) and _is_number(row.get(below))]
        if total := _total(both, below):
            means[rate] = _total(both, above) / total
    return {name: mean for name, mean in means.items() if mean is not None}


def stages(rows: Iterable[Row]) -> list[str]:
    """The stages of a step that the rows time (`time_<stage>_s`), in the order of the rows."""
    matches = [STAGE.fullmatch(name) for name in dict.fromkeys(n for row in rows for n in row)]
    return [match[1] for match in matches if match]


def reward_parts(row: Mapping[str, Any]) -> list[str]:
    """Names of the metrics `reward_<part>_mean`, execution match first where there is one."""
    parts = [name for name in row if re.fullmatch(r"reward_.+_mean", name)]
    return sorted(parts, key=lambda name: name != "reward_execution_match_mean")


def compare_heldout(start: Sequence[int], end: Sequence[int] | None = None) -> dict[str, Any]:
    """Accuracy of one held-out set before and after training, compared item by item.

    The interval is the mean paired difference ± 1.96 standard errors (ddof = 1; none for a single
    item). Whether the end is worse is decided by the one-sided exact sign test on the items whose
    outcome changed (McNemar 1947, Psychometrika 12): p = P(Binomial(changed, 1/2) ≥ lost).

    Raises:
        ValueError: No items, or a different number of them at start and end.
    """
    items = len(start)
    if not items or (end is not None and len(end) != items):
        found = f"{items} items at the start, {len(end or [])} at the end"
        raise ValueError(f"held-out outcomes: found {found}, allowed: the same set, not empty")
    result: dict[str, Any] = {"items": items, "start": sum(map(float, start)) / items}
    if end is None:
        return result
    differences = [float(after) - float(before) for before, after in zip(start, end, strict=True)]
    difference = sum(differences) / items
    lost = sum(d < 0 for d in differences)
    changed = lost + sum(d > 0 for d in differences)
    p_worse = sum(math.comb(changed, k) for k in range(lost, changed + 1)) / 2**changed
    interval = None
    if items > 1:
        variance = sum((d - difference) ** 2 for d in differences) / (items - 1)
        half = 1.96 * math.sqrt(variance / items)
        interval = [difference - half, difference + half]
    return result | {
        "end": sum(map(float, end)) / items,
        "difference": difference,
        "interval": interval,
        "p_worse": p_worse,
        "significantly_worse": p_worse < SIGNIFICANCE,
    }


def wilson_interval(right: int, items: int) -> tuple[float, float]:
    """95 % interval of a share, `right` of `items` (Wilson 1927, J. Am. Stat. Assoc. 22).

    Unlike the normal one it has a width where none or all are right, and stays within 0 and 1.
    """
    share, z = right / items, 1.96
    middle = share + z**2 / (2 * items)
    half = z * math.sqrt(share * (1 - share) / items + (z / (2 * items)) ** 2)
    scale = 1 + z**2 / items
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def describe_environment(seed: int) -> dict[str, Any]:
    """Device, versions, seed and git commit, as `summary.json` records them."""
    kind, cores = jax.devices()[0].device_kind, os.cpu_count()
    packages = ("jax", "flax", "ngramrl_jax")
    return {
        "device": f"{jax.device_count()} × {kind}, {cores} CPU cores",
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in packages},
        "seed": seed,
        "git_commit": git_commit(Path(__file__).parent),
    }


def git_commit(folder: Path) -> str | None:
    """The commit of the checkout, `-dirty` with local changes; None without git or a commit."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed, run from a checkout"


def _of_an_epoch(mean: Row) -> Row:
    names = ["reward_mean", *reward_parts(mean), *RATES]
    return {name: mean[name] for name in dict.fromkeys(names) if name in mean}


def _total(rows: Iterable[Row], name: str) -> float:
    return math.fsum(row[name] for row in rows if _is_number(row.get(name)))


def _mean(values: list[Any]) -> Any:
    vectors = [value for value in values if isinstance(value, list)]
    if vectors:
        width = max(map(len, vectors))
        return [_mean([v[i] for v in vectors if i < len(v)]) for i in range(width)]
    numbers = [value for value in values if _is_number(value)]
    return math.fsum(numbers) / len(numbers) if numbers else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """The value in JSON's own types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy and JAX, arrays and scalars
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
