"""What drafting buys in rollouts: `make bench`.

The rollouts of a recorded run are said again by a model of any shape with random weights (forced
replay, see `ngramrl_jax.rollout.forced`), so that acceptance is real and speed is the shape's. All
arms run in one process, interleaved; plain decoding runs twice, and how far those two differ (A
against A) is the spread that any other difference must exceed. Times are medians of ratios.

    python benchmarks/rollout/speed.py [shape=tiny] [dtype=float32] [rows=1,4,16] [phases=cold,warm]
      [arms=plain,again,lookup,suffix,fixed,auto] [trace=runs/traces/spider_tiny-0] [k=16]
      [steps=1] [prompts=0] [repeats=3] [json=FILE]

`prompts` is the groups said of a step; 0 for about four rollouts a row. An arm `k3` drafts 3 tokens
in every round: `arms=plain,again,k1,k3,k5,k7,k16` is the study of draft length. An arm may carry
settings, `fixed+prefetch=device`, and is left out where the engine has no such setting.
"""

import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.options import parse_options  # noqa: E402
from benchmarks.rollout.arms import Arm, make_arm  # noqa: E402
from benchmarks.rollout.shapes import random_model, shape  # noqa: E402
from benchmarks.rollout.workload import Workload, open_workload  # noqa: E402
from models.policy import Params, Qwen3Policy  # noqa: E402
from ngramrl_jax.host.ngram import warm_up  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.metrics import describe_environment, to_json  # noqa: E402

DEFAULTS = {
    "shape": "tiny",
    "dtype": "float32",
    "rows": "1,4,16",
    "phases": "cold,warm",
    "arms": "plain,again,lookup,suffix,fixed,auto",
    "trace": "runs/traces/spider_tiny-0",
    "k": 16,
    "steps": 1,
    "prompts": "0",
    "repeats": 3,
    "json": "",
}
PHASES = ("cold", "warm")
LEAST_SPEED = 0.97


def make_arms(
    names: list[str], policy: Qwen3Policy, workload: Workload, rows: int, draft_tokens: int
) -> list[Arm]:
    """The named arms; says which are left out.

    Raises:
        ValueError: The first is not plain decoding, or a name is unknown.
    """
    if names[0] != "plain":
        raise ValueError(
            f"arms: found {names[0]} first, allowed: plain, which the others are held to"
        )
    arms = [(name, make_arm(name, policy, workload, rows, draft_tokens)) for name in names]
    for name, arm in arms:
        if arm is None:
            print(f"{name}: left out, the engine has no such setting")
    return [arm for _, arm in arms if arm]


def measure(
    arms: list[Arm], params: Params, workload: Workload, phase: str, options: dict, rows: int
) -> dict[str, dict[str, Any]]:
    """Figures by arm."""
    prompts = int(options["prompts"]) or max(1, -(-4 * rows // 8))
    steps, history = workload.phase(phase, options["steps"], prompts)
    for repeat in range(options["repeats"] + 1):
        for arm in arms:
            arm.run(params, steps, history, workload.seed, timed=repeat > 0)
    figures = {arm.name: arm.figures(arms[0]) for arm in arms}
    for arm in arms:
        arm.forget()
    return figures


def spread(figures: dict[str, dict[str, Any]]) -> float:
    """How far plain decoding differs from itself, as a share; 0 where it ran once."""
    again = figures.get("again")
    return max(abs(1 - again[f"speed_{end}"]) for end in ("least", "most")) if again else 0.0


def show(figures: dict[str, dict[str, Any]], title: str) -> None:
    """The table of one phase."""
    wide = f"A against A: ±{spread(figures):.1%}. Never slower means {LEAST_SPEED} or more"
    table = Table(title=title, caption=wide)
    heads = ("arm", "tokens/forward", "accepted", "mean K", "tokens/s", "speed vs plain", "lengths")
    for head in heads:
        table.add_column(head, justify="left" if head == "arm" else "right")
    for name, of in figures.items():
        shares = of["draft_length_share"].items()
        table.add_row(
            name,
            f"{of['tokens_per_forward']:.2f}",
            f"{of['acceptance_rate']:.0%}",
            f"{of['draft_tokens_used']:.1f}",
            f"{of['tokens_per_s']:.0f}",
            f"{of['speed_vs_plain']:.2f} ({of['speed_least']:.2f}-{of['speed_most']:.2f})",
            " ".join(f"{k}:{share:.0%}" for k, share in shares),
        )
    Console(width=130).print(table)


def benchmark(options: dict) -> list[dict[str, Any]]:
    """Every number of rows and every phase, shown as they are done."""
    phases = options["phases"].split(",")
    if not set(phases) <= set(PHASES):
        raise ValueError(f"phases: found {options['phases']}, allowed: {', '.join(PHASES)}")
    if not all(rows.isdigit() and int(rows) for rows in options["rows"].split(",")):
        raise ValueError(f"rows: found {options['rows']!r}, allowed: numbers of 1 or more")
    workload = open_workload(options["trace"], shape(options["shape"]).vocab_size)
    policy, params = random_model(options["shape"], options["dtype"])
    warm_up()
    records = []
    for rows in map(int, options["rows"].split(",")):
        arms = make_arms(options["arms"].split(","), policy, workload, rows, options["k"])
        for arm in arms:
            arm.engine.warm_up(params)
        for phase in phases:
            figures = measure(arms, params, workload, phase, options, rows)
            show(figures, f"{options['shape']}, {rows} rows, {phase}, K = {options['k']}")
            records.append(
                {"rows": rows, "phase": phase, "spread": spread(figures), "arms": figures}
            )
    return records


def main() -> None:
    """Measures, prints, and writes the figures where asked."""
    options = parse_options(sys.argv[1:], DEFAULTS)
    records = benchmark(options)
    if options["json"]:
        record = {"options": options, "cells": records, **describe_environment(seed=0)}
        Path(options["json"]).write_text(to_json(record, indent=1) + "\n")


if __name__ == "__main__":
    use_compilation_cache()
    with fail_in_one_line():
        main()
