"""What share of the outcomes of rounds has a draft ready, by allocator and budget.

Each RUN is a run folder with a checkpoint and a trace: its newest policy samples a few more steps
beside the history that its trace holds, and every round is scored, by the noise-aware estimate and
by the one without noise. A file of JSON lines (rollouts without a policy) is scored without oracle.

    python benchmarks/prefetch/coverage.py RUN [RUN ...] [steps=5] [prompts=8] [json=FILE]

The first step (of JSON lines: the first third of the prompts) only teaches the estimate. Outcomes
that end a row, or leave no room for a draft, count apart.

Legend: N row-rounds, F outcomes with a draft.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.options import parse_options  # noqa: E402
from benchmarks.prefetch.recorded import record_groups, record_policy  # noqa: E402
from benchmarks.prefetch.scoring import ENTRIES, ORACLE, Scored, score  # noqa: E402
from ngramrl_jax.host.draft import Rule  # noqa: E402
from ngramrl_jax.host.ngram import warm_up  # noqa: E402
from ngramrl_jax.replay.source import open_source  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.metrics import describe_environment, to_json  # noqa: E402

DRAFT_TOKENS = 16
JSONL_STOP_IDS = (151645, 151643)  # of Qwen2.5
RULES = {"with noise": Rule(), "without": Rule(noise=False)}
SPLIT_AT = 16  # F of the splits and of the calibration
MASS_BANDS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)  # of the calibration by predicted mass
_BLOCKS = 50


Figures = dict[str, Any]


def difference(first_N: NDArray[np.bool_], second_N: NDArray[np.bool_]) -> tuple[float, float]:
    """Mean of the paired differences in coverage, and half of its 95 % interval.

    1.96 standard errors over blocks of row-rounds that follow each other, since those of one
    rollout are not independent.
    """
    gap_N = first_N.astype(np.float64) - second_N
    mean_Y = np.array([block.mean() for block in np.array_split(gap_N, min(_BLOCKS, len(gap_N)))])
    return float(gap_N.mean()), float(1.96 * mean_Y.std(ddof=1) / math.sqrt(len(mean_Y)))


def figures(scored: Scored, learnt: Sequence[int]) -> Figures:
    """Coverage in the steps that are not in `learnt`.

    Returns:
        Counts; `coverage`, by allocator and F; `better`, the causal allocator less each other by
        F, with half of the interval; `split`, coverage of causal and oracle at one F by j and by
        length of the draft, with the share of the row-rounds; `calibration` by F, predicted and
        actual mass; and `reliability`, the same at one F by bands of the predicted mass, behind
        the row-rounds in each.
    """
    later_N = ~np.isin(scored.step, learnt)
    ends_N = np.array(scored.ends)
    needy_N = later_N & ~ends_N
    names = dict.fromkeys(name for name, _ in scored.rank)
    found: dict[str, dict[int, NDArray[np.bool_]]] = {
        name: {entries: scored.covered(name, entries)[needy_N] for entries in ENTRIES}
        for name in names
    }
    causal = found["causal"]
    others = [name for name in names if name not in ("causal", ORACLE)]
    covered_N = {entries: scored.covered("causal", entries) & ~ends_N for entries in ENTRIES}
    return {
        "row_rounds": int(later_N.sum()),
        "ending": float(ends_N[later_N].mean()),
        "coverage": {
            name: {entries: float(each.mean()) for entries, each in by_entries.items()}
            for name, by_entries in found.items()
        },
        "better": {
            name: {
                entries: difference(causal[entries], found[name][entries]) for entries in ENTRIES
            }
            for name in others
        },
        "split": _split(scored, needy_N, found),
        "calibration": {
            entries: (
                float(np.array(scored.mass[entries])[later_N].mean()),
                float(covered_N[entries][later_N].mean()),
            )
            for entries in ENTRIES
        },
        "reliability": _reliability(
            np.array(scored.mass[SPLIT_AT])[later_N], covered_N[SPLIT_AT][later_N]
        ),
    }


def _reliability(
    mass_N: NDArray[np.float64], covered_N: NDArray[np.bool_]
) -> list[tuple[int, float, float]]:
    band_N = np.digitize(mass_N, MASS_BANDS[1:-1])
    return [
        (int(here_N.sum()), float(mass_N[here_N].mean()), float(covered_N[here_N].mean()))
        for band in range(len(MASS_BANDS) - 1)
        if (here_N := band_N == band).any()
    ]


def _split(
    scored: Scored, needy_N: NDArray[np.bool_], found: dict[str, dict[int, NDArray[np.bool_]]]
) -> Figures:
    accepted_N, drafted_N = np.array(scored.accepted)[needy_N], np.array(scored.drafted)[needy_N]
    parts = {
        "j = 0": (accepted_N == 0) & (drafted_N > 0),
        "0 < j < k": (accepted_N > 0) & (accepted_N < drafted_N),
        "j = k": accepted_N == drafted_N,
        "k = 0": drafted_N == 0,
        "0 < k < K": (drafted_N > 0) & (drafted_N < DRAFT_TOKENS),
        "k = K": drafted_N == DRAFT_TOKENS,
    }
    return {
        part: {
            "share": float(here_N.mean()),
            **{
                name: float(found[name][SPLIT_AT][here_N].mean())
                for name in ("causal", ORACLE)
                if name in found
            },
        }
        for part, here_N in parts.items()
        if here_N.any()
    }


def show(title: str, result: Figures, console: Console) -> None:
    """Prints a table."""
    table = Table(title=title, title_justify="left")
    for head in ("coverage, %", *(f"F = {entries}" for entries in ENTRIES)):
        table.add_column(head, justify="right" if table.columns else "left")
    for name, by_entries in result["coverage"].items():
        table.add_row(name, *(f"{100 * share:.1f}" for share in by_entries.values()))
    for name, gaps in result["better"].items():
        cells = (f"{100 * mean:+.1f} ± {100 * half:.1f}" for mean, half in gaps.values())
        table.add_row(f"causal - {name}", *cells)
    for row, which in enumerate(("mass predicted", "mass covered")):
        table.add_row(which, *(f"{100 * each[row]:.1f}" for each in result["calibration"].values()))
    console.print(table)
    bands = (f"{100 * p:.0f} -> {100 * c:.0f} ({n})" for n, p, c in result["reliability"])
    console.print(f"  F = {SPLIT_AT}, predicted -> covered (row-rounds): {', '.join(bands)}")
    for part, of in result["split"].items():
        words = ", ".join(f"{name} {100 * share:.1f} %" for name, share in of.items())
        console.print(f"  {part}: {words}")


def measure(path: Path, *, steps: int, prompts: int) -> dict[str, Figures]:
    """Figures of one run or file by estimate.

    Raises:
        ValueError: There is nothing at `path` that could be scored.
    """
    if path.is_file():
        source = open_source(path)
        recordings = record_groups(source, draft_tokens=DRAFT_TOKENS, stop_ids=JSONL_STOP_IDS)
        numbers = [step.step for step in source.steps()]
        learnt = numbers[: len(numbers) // 3]
        return {"without": figures(score(recordings, RULES["without"]), learnt)}
    recordings = [record_policy(path, steps=steps, prompts=prompts)]
    result = {}
    for name, rule in RULES.items():
        scored = score(recordings, rule)
        result[name] = figures(scored, [min(scored.step)])
    return result


def main() -> None:
    """The command.

    Raises:
        ValueError: A mistake in it.
    """
    paths = [Path(argument) for argument in sys.argv[1:] if "=" not in argument]
    named = [argument for argument in sys.argv[1:] if "=" in argument]
    options = parse_options(named, {"steps": 5, "prompts": 8, "json": ""})
    if not paths or options["steps"] < 2:
        raise ValueError("found no run or fewer than 2 steps, allowed: RUN [RUN ...] [steps=2...]")
    warm_up()
    console = Console(highlight=False, width=120)
    results = {}
    for path in paths:
        results[str(path)] = measure(path, steps=options["steps"], prompts=options["prompts"])
        for name, result in results[str(path)].items():
            title = f"{path}, {name}: {result['row_rounds']} row-rounds, {result['ending']:.1%} end"
            show(title, result, console)
    if options["json"]:
        record = {"options": options, "runs": results, **describe_environment(seed=0)}
        Path(options["json"]).write_text(json.dumps(json.loads(to_json(record)), indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] in ([], ["-h"], ["--help"]):
        print(__doc__)
        sys.exit(0)
    use_compilation_cache()
    with fail_in_one_line():
        main()
