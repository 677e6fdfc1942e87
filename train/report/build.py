"""Turns a run folder into `report.html`: one file, readable anywhere, that loads nothing."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from train.metrics import WARM_PERCENT, read_rows, summarise, write_atomic
from train.progress import compared_metrics, label, number, verdict
from train.report.words import headlines

MAX_SAMPLES = 12


def write_report(run_folder: Path) -> Path:
    """Writes `report.html` into the run folder from the files that lie there.

    Reads `config.yaml`, `metrics.jsonl`, `summary.json` (made from the rows where it is missing),
    `samples.json`, a list of `{"prompt": str, "step": int, "reward": float,
    "tokens": [{"text": str, "drafted": bool}, ...], "gold": str}`, and `timeline.json`, which
    `train.timelines` describes. What is missing is left out with a word.

    Returns:
        The path of the report.

    Raises:
        ValueError: A file is not what its name says.
    """
    from train.report import plots  # here, because it loads matplotlib

    rows = read_rows(run_folder / "metrics.jsonl")
    summary = _read_json(run_folder / "summary.json") or summarise(rows, {}, {})
    samples = _read_json(run_folder / "samples.json") or []
    config = run_folder / "config.yaml"
    timeline = _read_json(run_folder / "timeline.json")
    drawn = plots.draw(rows, summary["heldout"], timeline)
    page = _template().render(
        name=run_folder.resolve().name,
        summary=summary,
        warm_percent=WARM_PERCENT,
        headlines=headlines(summary),
        compared=compared_metrics(summary),
        metrics=_numeric(summary),
        plots={name: svg and Markup(svg) for name, svg in drawn.items()},
        timeline_step=timeline and timeline["step"],
        samples=_spread(samples, MAX_SAMPLES),
        sample_count=len(samples),
        config=config.read_text(encoding="utf-8") if config.exists() else None,
    )
    path = run_folder / "report.html"
    write_atomic(path, page)
    return path


def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(label=label, number=number, verdict=verdict)
    return environment.get_template("template.html.j2")


def _read_json(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path}: found no JSON ({error}), allowed: the file a run writes"
        ) from None


def _numeric(summary: dict[str, Any]) -> list[str]:
    return sorted(name for name, mean in summary["warm"].items() if isinstance(mean, int | float))


def _spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spread from the first to the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
