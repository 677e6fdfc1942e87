"""What a round costs by rows and draft length: the table that draft lengths are chosen by.

A round is worth its drafts where the tokens that they save outweigh `vs plain`, its cost beside
that of a plain round with the same rows. NeMo-RL measured 3.5-4 for plain n-gram drafts (FACTS 1).

    python benchmarks/rollout/costs.py [shape=tiny] [dtype=float32] [rows=1,8,32] [k=16]
      [live=256] [repeats=5] [json=FILE]
"""

import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.options import parse_options  # noqa: E402
from benchmarks.rollout.shapes import random_model  # noqa: E402
from models.policy import Params, Qwen3Policy  # noqa: E402
from ngramrl_jax.host.no_draft import NoDrafter  # noqa: E402
from ngramrl_jax.rollout.engine import RolloutEngine  # noqa: E402
from ngramrl_jax.rollout.settings import EngineSettings  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.metrics import describe_environment, to_json  # noqa: E402

DEFAULTS = {
    "shape": "tiny",
    "dtype": "float32",
    "rows": "1,8,32",
    "k": 16,
    "live": 256,
    "repeats": 5,
    "json": "",
}


def measure(
    policy: Qwen3Policy, params: Params, rows: int, draft_tokens: int, live: int, repeats: int
) -> dict[int, float]:
    """Milliseconds of a round by draft length, host work included, at `live` positions."""
    settings = EngineSettings(
        slots=rows,
        draft_tokens=draft_tokens,
        draft_length="auto",
        max_prompt_tokens=8,
        max_new_tokens=live - 8 - draft_tokens,
        stop_ids=(),
    )
    engine = RolloutEngine(policy, NoDrafter(rows, draft_tokens), settings)
    costs: dict[int, list[float]] = {}
    for _ in range(repeats):
        engine.warm_up(params)
        for draft_tokens_, seconds in engine.round_seconds(live).items():
            costs.setdefault(draft_tokens_, []).append(1e3 * seconds)
    return {length: median(taken) for length, taken in costs.items()}


def show(cells: list[dict[str, Any]], title: str) -> None:
    """One line for every number of rows and draft length."""
    table = Table(title=title)
    for head in ("rows", "K", "ms a round", "vs plain", "kept a row, at least, to pay"):
        table.add_column(head, justify="right")
    for cell in cells:
        ratio = cell["vs_plain"]
        table.add_row(
            str(cell["rows"]), str(cell["k"]), f"{cell['ms']:.2f}", f"{ratio:.2f}",
            f"{max(ratio - 1, 0):.2f}",
        )  # fmt: skip
    Console(width=100).print(table)


def benchmark(options: dict) -> list[dict[str, Any]]:
    """All cells of the table.

    Raises:
        ValueError: Rows that are no numbers, or a `live` that holds no response.
    """
    if not all(rows.isdigit() and int(rows) for rows in options["rows"].split(",")):
        raise ValueError(f"rows: found {options['rows']!r}, allowed: numbers of 1 or more")
    if options["live"] < options["k"] + 9:
        raise ValueError(f"live: found {options['live']}, allowed: k + 9 or more")
    policy, params = random_model(options["shape"], options["dtype"])
    cells = []
    for rows in map(int, options["rows"].split(",")):
        taken = measure(policy, params, rows, options["k"], options["live"], options["repeats"])
        cells += [
            {"rows": rows, "k": length, "ms": ms, "vs_plain": ms / taken[0]}
            for length, ms in taken.items()
        ]
    return cells


def main() -> None:
    """Measures, prints, and writes the figures where asked."""
    options = parse_options(sys.argv[1:], DEFAULTS)
    cells = benchmark(options)
    show(cells, f"{options['shape']}, {options['dtype']}, {options['live']} positions")
    if options["json"]:
        record = {"options": options, "cells": cells, **describe_environment(seed=0)}
        Path(options["json"]).write_text(to_json(record, indent=1) + "\n")


if __name__ == "__main__":
    use_compilation_cache()
    with fail_in_one_line():
        main()
