"""The report's plots: rows of metrics in, inline SVG out.

A plot names its colours (`INK`, `SERIES`); `_svg` turns the names into CSS variables, so that the
page decides and a dark page gets light ink. Every plot is None where the run lacks its metrics.
Importing this module loads matplotlib, so it is imported only when a report is written.
"""

import html
import io
import math
import re
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from train.metrics import (
    HELD_OUT,
    WARM_PERCENT,
    Row,
    average,
    by_epoch,
    reward_parts,
    stages,
    warm_rows,
)
from train.progress import label

WARM = f"warm (last {WARM_PERCENT} %)"
WIDTH, HEIGHT = 5.2, 2.9  # inches; small, so that text stays readable on a phone
LABEL_CHARACTERS = 28
DRAWN_ROUNDS = 10  # of a timeline
LEGEND_CHARACTERS = 48  # in one line of that width

# Stand-ins: colours that nothing else uses, each replaced by a CSS value in the finished SVG.
INK, FAINT = "#010101", "#010102"
SERIES = ["#010111", "#010112", "#010113", "#010114", "#010115", "#010116"]
CSS = {INK: "currentColor", FAINT: "var(--faint)"} | {
    colour: f"var(--series-{i})" for i, colour in enumerate(SERIES, start=1)
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.4,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def draw(
    rows: Sequence[Row],
    results: Mapping[str, Mapping[str, Any]],
    times: Mapping[str, Any] | None = None,
) -> dict[str, str | None]:
    """All plots by name, None for one whose metrics the run lacks.

    Args:
        rows: The rows of `metrics.jsonl`.
        results: The `heldout` entry of `summary.json`.
        times: What `timeline.json` holds.
    """
    over_rows = [
        tokens_per_forward,
        reward,
        heldout_over_steps,
        time_by_stage,
        acceptance_by_position,
        drafts_per_round,
        draft_lengths,
        coverage,
        coverage_by_position,
    ]
    with matplotlib.rc_context(STYLE):
        drawn = {plot.__name__: plot(rows) for plot in over_rows}
        return drawn | {"heldout": heldout(results), "timeline": timeline(times)}


def tokens_per_forward(rows: Sequence[Row]) -> str | None:
    """Tokens per forward over steps, the first epoch and the warm steps marked."""
    points = _points(rows, "tokens_per_forward")
    if not points:
        return None
    figure, axes = _over_steps("tokens per forward")
    _mark_phases(axes, rows)
    axes.axhline(1, color=INK, linewidth=0.9, linestyle="--", label="plain decoding")
    _line(axes, points, SERIES[0], "this run")
    axes.set_ylim(0, 1.25 * max(value for _, value in points))
    return _svg(figure, "Tokens per forward over training steps")


def reward(rows: Sequence[Row]) -> str | None:
    """Reward and its parts over steps, with the mean of every epoch."""
    names = [*reward_parts(rows[0]), "reward_mean"] if rows else []
    names = [name for name in names if _points(rows, name)]
    if not names:
        return None
    figure, axes = _over_steps("mean over the rollouts")
    styles = ["-", "--", ":", "-."]
    for index, name in enumerate(names):
        colour, style = SERIES[index % len(SERIES)], styles[index % len(styles)]
        axes.plot(*zip(*_points(rows, name), strict=True), color=colour, linewidth=0.8, alpha=0.4)
        for number, epoch in enumerate(by_epoch(rows).values()):
            span = [epoch[0]["step"] - 0.4, epoch[-1]["step"] + 0.4]
            mean = average(epoch).get(name, math.nan)
            text = label(name) if number == 0 else None
            axes.plot(span, [mean, mean], style, color=colour, linewidth=2.4, label=text)
    return _svg(figure, "Reward and its parts over training steps")


def heldout(results: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Accuracy of every held-out set at the start and at the end, with the paired interval."""
    if not results:
        return None
    figure = Figure(figsize=(WIDTH, 0.9 + 0.55 * len(results)), layout="constrained")
    axes = figure.add_subplot(xlabel="accuracy")
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    for place, result in enumerate(results.values()):
        first = place == 0
        start, end = result["start"], result.get("end")
        if result.get("interval"):
            low, high = (start + bound for bound in result["interval"])
            axes.plot([low, high], [place, place], color=SERIES[1], linewidth=6, alpha=0.35)
        text = "start" if first else None
        axes.plot(start, place, "o", color=INK, markerfacecolor="none", markersize=9, label=text)
        if end is not None:
            axes.plot(
                end, place, "D", color=SERIES[1], markersize=6, label="end" if first else None
            )
    axes.set_yticks(range(len(results)), [_short(name) for name in results])
    axes.set_ylim(len(results) - 0.5, -0.5)
    return _svg(figure, "Held-out accuracy at the start and at the end of training")


def heldout_over_steps(rows: Sequence[Row]) -> str | None:
    """Held-out accuracies over steps, where the run measured them more than once."""
    names = dict.fromkeys(name for row in rows for name in row if HELD_OUT.fullmatch(name))
    series = {name: points for name in names if len(points := _points(rows, name)) > 1}
    if not series:
        return None
    figure, axes = _over_steps("accuracy")
    for index, (name, points) in enumerate(series.items()):
        colour, marker = SERIES[index % len(SERIES)], "osD^vP"[index % 6]
        text = _short(name.removeprefix("heldout_").removesuffix("_accuracy"))
        axes.plot(*zip(*points, strict=True), f"-{marker}", color=colour, markersize=4, label=text)
    return _svg(figure, "Held-out accuracy over training steps")


def time_by_stage(rows: Sequence[Row]) -> str | None:
    """Seconds of every step, stacked by stage; a few slow steps do not squash the others."""
    names = stages(rows)
    if not names:
        return None
    figure, axes = _over_steps("seconds")
    edges = [row["step"] - 0.5 for row in rows] + [rows[-1]["step"] + 0.5]
    base = [0.0] * len(rows)
    for index, name in enumerate(names):
        times = [row.get(f"time_{name}_s") or 0.0 for row in rows]
        if not any(times):
            continue
        top = [low + time for low, time in zip(base, times, strict=True)]
        colour = SERIES[index % len(SERIES)]
        axes.stairs(top, edges, baseline=base, fill=True, color=colour, linewidth=0, label=name)
        base = top
    limit = 2 * statistics.median(base)
    if slow := sum(total > limit for total in base):
        axes.set_ylim(0, limit)
        note = f"{slow} slower step(s) cut off, the slowest took {max(base):.1f} s"
        axes.set_title(note, fontsize=8.5, loc="left")
    return _svg(figure, "Time of every step by stage, stacked")


def acceptance_by_position(rows: Sequence[Row]) -> str | None:
    """Share of drafted tokens accepted, by their position in the draft, cold and warm."""
    labels = ("position in the draft", "share accepted")
    title = "Share of drafted tokens accepted by position in the draft"
    return _by_position(rows, "acceptance_by_position", 1, labels, title)


def coverage_by_position(rows: Sequence[Row]) -> str | None:
    """Share of outcomes (j, b) that had been prefetched, by j, cold and warm."""
    labels = ("draft tokens accepted", "share prefetched")
    title = "Share of outcomes prefetched by number of draft tokens accepted"
    return _by_position(rows, "coverage_by_position", 0, labels, title)


def drafts_per_round(rows: Sequence[Row]) -> str | None:
    """Tokens drafted and tokens accepted in a row-round, over steps."""
    names = ("drafted_per_round", "accepted_per_round")
    series = [_points(rows, name) for name in names]
    if not all(series):
        return None
    figure, axes = _over_steps("tokens of a row-round")
    for points, colour, text in zip(
        series, (FAINT, SERIES[0]), ("drafted", "accepted"), strict=True
    ):
        steps, values = zip(*points, strict=True)
        edges = [step - 0.5 for step in steps] + [steps[-1] + 0.5]
        axes.stairs(values, edges, fill=True, color=colour, linewidth=0, label=text)
    return _svg(figure, "Tokens drafted and accepted per row-round over training steps")


def draft_lengths(rows: Sequence[Row]) -> str | None:
    """Share of forwards of every draft length over steps, where more than one was used."""
    rows = [row for row in rows if row.get("draft_length_share")]
    lengths = sorted({k for row in rows for k, n in enumerate(row["draft_length_share"]) if n})
    if len(lengths) < 2:
        return None
    figure, axes = _over_steps("share of forwards")
    edges = [row["step"] - 0.5 for row in rows] + [rows[-1]["step"] + 0.5]
    base = [0.0] * len(rows)
    for index, length in enumerate(lengths):
        shares = [row["draft_length_share"][length] for row in rows]
        top = [low + share for low, share in zip(base, shares, strict=True)]
        colour = FAINT if not length else SERIES[index % len(SERIES)]
        text = f"K = {length}" if length else "no draft"
        axes.stairs(top, edges, baseline=base, fill=True, color=colour, linewidth=0, label=text)
        base = top
    axes.set_ylim(0, 1)
    return _svg(figure, "Share of forwards by draft length over training steps")


def coverage(rows: Sequence[Row]) -> str | None:
    """Share of outcomes that had been prefetched, over steps, beside what was possible."""
    if not (points := _points(rows, "coverage")):
        return None
    figure, axes = _over_steps("share of row-rounds")
    _line(axes, points, SERIES[0], "prefetched")
    if possible := _points(rows, "oracle_coverage"):
        _line(axes, possible, SERIES[1], "possible with the same budget", "--")
    axes.set_ylim(0, 1.05)
    return _svg(figure, "Coverage of the prefetcher over training steps")


def timeline(times: Mapping[str, Any] | None) -> str | None:
    """Device, drafter and copies in a few rounds from the middle of those that were kept."""
    if not times or len(times["rounds"]) < 2:
        return None
    rounds = times["rounds"]
    first = max((len(rounds) - DRAWN_ROUNDS) // 2, 0)
    before = rounds[first - 1]["done"] if first else rounds[0]["dispatched"]
    lanes: dict[str, list[list[tuple[float, float]]]] = {
        "device": [[], []],  # every other round in another shade
        "drafter": [[]],
        "copies": [[], []],  # to the device, to the host
    }
    zero = rounds[first]["sending"]
    for number, of in enumerate(rounds[first : first + DRAWN_ROUNDS]):
        spans = [
            ("device", number % 2, max(of["dispatched"], before), of["done"]),
            ("copies", 0, of["sending"], of["dispatched"]),
            ("copies", 1, of["done"], of["known"]),
        ]
        if of["drafting"] is not None:
            spans.append(("drafter", 0, of["drafting"], of["drafted"]))
        for lane, shade, begun, ended in spans:
            lanes[lane][shade].append((begun - zero, max(ended - begun, 0.0)))
        before = max(before, of["done"])
    figure = Figure(figsize=(WIDTH, 1.9), layout="constrained")
    axes = figure.add_subplot(xlabel="milliseconds")
    axes.grid(visible=False, axis="y")
    shades = {"device": SERIES[:2], "drafter": SERIES[2:3], "copies": SERIES[3:5]}
    for place, (lane, parts) in enumerate(lanes.items()):
        for part, colour in zip(parts, shades[lane], strict=True):
            axes.broken_barh(part, (place - 0.35, 0.7), color=colour, linewidth=0)
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    return _svg(figure, f"What was at work when, in rounds of step {times['step']}")


def _by_position(
    rows: Sequence[Row], name: str, first: int, labels: tuple[str, str], title: str
) -> str | None:
    if not any(row.get(name) for row in rows):
        return None
    figure, axes = _axes(*labels)
    phases = {"first epoch": next(iter(by_epoch(rows).values())), WARM: warm_rows(rows)}
    for (text, phase), marker, colour in zip(phases.items(), "oD", (INK, SERIES[0]), strict=True):
        shares = average(phase).get(name, [])
        shares = [math.nan if share is None else share for share in shares]
        positions = range(first, first + len(shares))
        axes.plot(positions, shares, f"-{marker}", color=colour, markersize=4, label=text)
    axes.set_ylim(0, 1.05)
    return _svg(figure, title)


def _over_steps(ylabel: str) -> tuple[Figure, Axes]:
    return _axes("training step", ylabel)


def _axes(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.add_subplot(xlabel=xlabel, ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure, axes


def _line(
    axes: Axes, points: list[tuple[int, float]], colour: str, text: str, style: str = "-"
) -> None:
    marker = "o" if len(points) < 40 else ""
    steps, values = zip(*points, strict=True)
    axes.plot(
        steps, values, style, marker=marker, markersize=3, color=colour, linewidth=1.6, label=text
    )


def _mark_phases(axes: Axes, rows: Sequence[Row]) -> None:
    first, *later = by_epoch(rows).values()
    for epoch in later:
        axes.axvline(epoch[0]["step"] - 0.5, color=FAINT, linewidth=0.8, linestyle=":")
    phases = [(first, "first epoch")] + ([(warm_rows(rows), "warm")] if later else [])
    for phase, text in phases:
        left, right = phase[0]["step"] - 0.5, phase[-1]["step"] + 0.5
        axes.axvspan(left, right, color=FAINT, alpha=0.35, linewidth=0)
        top = axes.get_xaxis_transform()
        axes.text(
            (left + right) / 2, 0.98, text, transform=top, ha="center", va="top", fontsize=8.5
        )


def _points(rows: Sequence[Row], name: str) -> list[tuple[int, float]]:
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def _short(name: str) -> str:
    text = label(name)
    return text if len(text) <= LABEL_CHARACTERS else text[: LABEL_CHARACTERS - 1] + "…"


def _svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element to stand inside HTML: titled, scalable, themed by the page."""
    for axes in figure.axes:
        if texts := axes.get_legend_handles_labels()[1]:
            columns = len(texts) if len("".join(texts)) < LEGEND_CHARACTERS else 2
            figure.legend(loc="outside upper left", ncols=columns)
    stream = io.StringIO()
    # A glyph that matplotlib's own font lacks is no fault: the browser draws the text.
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": title}):
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(stream, format="svg", transparent=True)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # names of groups, the same in every plot
    text = text.replace("xlink:href", "href")
    for colour, css in CSS.items():
        text = text.replace(colour, css)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box, "matplotlib writes a viewBox"
    body = text[text.index(">") + 1 :]
    return f'<svg {box[0]} role="img"><title>{html.escape(title)}</title>{body}'
