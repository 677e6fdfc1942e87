"""What each choice of the drafter is worth, and what drawn drafts and trees would be: in replay.

    python benchmarks/drafting/ablations.py TRACE [TRACE ...] [draft_tokens=16] [json=FILE]

TRACE is what `python -m ngramrl_jax.replay` reads. One table a trace: tokens per forward in all
steps, in cold and in warm ones, and how many more than the drafter it is compared with, in percent,
with a 95 % interval over steps; then the means over all traces. A variant that needs what a trace
has not recorded (laws, log-probabilities, keys) is left out of its table.
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402
from numpy.typing import ArrayLike  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.drafting.variants import CEILING, ORACLE, variants  # noqa: E402
from benchmarks.drafting.weighted_sources import scores  # noqa: E402
from benchmarks.options import parse_options  # noqa: E402
from ngramrl_jax.host.ngram import warm_up  # noqa: E402
from ngramrl_jax.replay.source import Source, open_source  # noqa: E402
from ngramrl_jax.trace.records import TracedStep, TraceHeader  # noqa: E402

PARTS = ("all", "cold", "warm")

Figures = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """What a trace holds, whatever the drafter.

    Attributes:
        holds: Which of `best`, `logps`, `keys`.
        tokens: Of all responses.
        mean_length: Tokens of a response.
        entropy: Mean of -log p over the tokens, nats; None without log-probabilities.
        max_prob: Mean probability of the most likely token; None without best tokens.
        best: R.
        known: Share of the tokens among the R best; None without them.
    """

    holds: tuple[str, ...]
    tokens: int
    mean_length: float
    entropy: float | None
    max_prob: float | None
    best: int
    known: float | None


def recorded(steps: Sequence[TracedStep], header: TraceHeader) -> Recorded:
    """Reads what there is."""
    rollouts = [rollout for step in steps for rollout in step.rollouts]
    tokens = sum(len(rollout.tokens_N) for rollout in rollouts)
    logps = np.concatenate([rollout.logps_N for rollout in rollouts]).astype(np.float64)
    with_best = [(r.tokens_N, r.best) for r in rollouts if r.best is not None]
    whole = len(with_best) == len(rollouts)
    first = [np.exp(best.logps_NR[:, 0].astype(np.float64)) for _, best in with_best]
    known = [(best.ids_NR == said[:, None]).any(axis=1) for said, best in with_best]
    has_logps = bool(np.isfinite(logps).all())
    found = {"best": whole, "logps": has_logps, "keys": header.shares_noise}
    return Recorded(
        holds=tuple(name for name, there in found.items() if there),
        tokens=tokens,
        mean_length=tokens / len(rollouts),
        entropy=-float(logps.mean()) if has_logps else None,
        max_prob=float(np.concatenate(first).mean()) if whole else None,
        best=with_best[0][1].ids_NR.shape[1] if whole else 0,
        known=float(np.concatenate(known).mean()) if whole else None,
    )


def gain(rounds_S: ArrayLike, against_S: ArrayLike) -> tuple[float, float | None]:
    """By how many percent fewer rounds mean more tokens per forward, and half of its interval.

    Both said the same tokens in the same steps, S in number, so the quotient of tokens per forward
    is that of rounds. The interval is the quotient ± 1.96 jackknife standard errors, leaving out a
    step at a time (Efron and Stein, 1981); None for fewer than two steps.
    """
    ours_S, other_S = (np.asarray(each, np.float64) for each in (rounds_S, against_S))
    percent = 100 * float(other_S.sum() / ours_S.sum() - 1)
    if ours_S.size < 2:
        return percent, None
    left_S = 100 * (other_S.sum() - other_S) / (ours_S.sum() - ours_S)
    squares = float(((left_S - left_S.mean()) ** 2).sum())
    return percent, 1.96 * math.sqrt((ours_S.size - 1) / ours_S.size * squares)


def ablate(source: Source, draft_tokens: int) -> Figures:
    """Replays every variant that the trace allows.

    Returns:
        `trace`; `recorded`, see there; and `variants`, for each `draft_tokens`, `against`, and for
        all, cold and warm steps `tokens_per_forward` and `gain`, percent and half of its interval,
        over the variant that it is compared with. None where there is no such step.

    Raises:
        ValueError: The trace is damaged.
    """
    steps = list(source.steps())
    numbers = [step.step for step in steps]
    parts = {"all": numbers, "cold": source.cold(numbers), "warm": source.warm(numbers)}
    there = recorded(steps, source.header)
    rounds: dict[str, dict[int, int]] = {}
    figures: dict[str, Figures] = {}
    for variant in variants(source.header, draft_tokens, scores(steps)):
        if set(variant.needs) <= set(there.holds):
            replayed = source.replay(variant.make, variant.draft_tokens)
            rounds[variant.name] = {step.step: replayed.walk(step).row_rounds for step in steps}
            against = rounds[variant.against]
            figures[variant.name] = {
                "draft_tokens": variant.draft_tokens,
                "against": variant.against,
                **{
                    part: _compared(steps, rounds[variant.name], against, chosen)
                    for part, chosen in parts.items()
                },
            }
    return {"trace": str(source.path), "recorded": asdict(there), "variants": figures}


def _compared(
    steps: Sequence[TracedStep],
    rounds: Mapping[int, int],
    against: Mapping[int, int],
    chosen: Sequence[int],
) -> Figures | None:
    tokens = sum(step.tokens for step in steps if step.step in chosen)
    ours_S, theirs_S = ([each[step] for step in chosen] for each in (rounds, against))
    if not ours_S:
        return None
    return {"tokens_per_forward": tokens / sum(ours_S), "gain": gain(ours_S, theirs_S)}


def means(results: Sequence[Figures]) -> dict[str, Figures]:
    """Of the variants that all traces have: mean figures, and intervals of the mean gains."""
    names = [n for n in results[0]["variants"] if all(n in r["variants"] for r in results)]
    return {name: _mean([result["variants"][name] for result in results]) for name in names}


def _mean(rows: Sequence[Figures]) -> Figures:
    mean: Figures = {key: rows[0][key] for key in ("draft_tokens", "against")}
    for part in PARTS:
        found = [row[part] for row in rows if row[part] is not None]
        halves = [half for _, half in (each["gain"] for each in found) if half is not None]
        mean[part] = None
        if found:
            half = math.sqrt(sum(half**2 for half in halves)) / len(found)
            mean[part] = {
                "tokens_per_forward": float(np.mean([f["tokens_per_forward"] for f in found])),
                "gain": (
                    float(np.mean([percent for percent, _ in (f["gain"] for f in found)])),
                    half if len(halves) == len(found) else None,
                ),
            }
    return mean


def show(title: str, rows: Mapping[str, Figures], console: Console) -> None:
    """Prints a table."""
    table = Table(title=title, title_justify="left")
    table.add_column("variant")
    for head in PARTS:
        table.add_column(head, justify="right")
    table.add_column("more than")
    for head in PARTS:
        table.add_column(f"{head}, %", justify="right")
    for name, row in rows.items():
        forward = [f"{row[part]['tokens_per_forward']:.3f}" if row[part] else "" for part in PARTS]
        gains = [_percent(*row[part]["gain"]) if row[part] else "" for part in PARTS]
        itself = name == row["against"]
        table.add_row(name, *forward, *(["", "", "", ""] if itself else [row["against"], *gains]))
    console.print(table)


def _percent(percent: float, half: float | None) -> str:
    return f"{percent:+.1f}" if half is None else f"{percent:+.1f} ± {half:.1f}"


def describe(result: Figures) -> str:
    """The line above a table."""
    there, rows = result["recorded"], result["variants"]
    words = [
        f"{result['trace']}: {there['tokens']} tokens",
        f"{there['mean_length']:.1f} a response",
    ]
    if there["entropy"] is not None:
        words.append(f"entropy {there['entropy']:.3f} nats a token")
    if there["max_prob"] is not None:
        words += [
            f"mean max-probability {there['max_prob']:.3f}",
            f"{ORACLE} {rows[ORACLE]['all']['tokens_per_forward']:.2f} tokens per forward",
            f"{100 * there['known']:.1f} % of the tokens among the {there['best']} best: if all of "
            f"them were guessed {rows[CEILING]['all']['tokens_per_forward']:.2f}",
        ]
    return ", ".join(words)


def main(arguments: Sequence[str]) -> None:
    """The command.

    Raises:
        ValueError: A mistake in it, or a damaged trace.
    """
    paths = [argument for argument in arguments if "=" not in argument]
    named = [argument for argument in arguments if "=" in argument]
    options = parse_options(named, {"draft_tokens": 16, "json": ""})
    if not paths:
        raise ValueError("traces: found none, allowed: one or more")
    if options["draft_tokens"] < 4:
        raise ValueError(f"draft_tokens: found {options['draft_tokens']}, allowed: 4 or more")
    sources = [open_source(Path(path)) for path in paths]
    warm_up()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    results: list[Figures] = []
    for source in sources:
        result = ablate(source, options["draft_tokens"])
        results.append(result)
        show(describe(result), result["variants"], console)
    mean = means(results)
    if len(results) > 1:
        show("means over the traces", mean, console)
    if options["json"]:
        record = {"traces": results, "means": mean}
        Path(options["json"]).write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
