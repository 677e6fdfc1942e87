"""The study of draft length: acceptance and speed side by side, as the NeMo-RL paper prints them.

Forced replay of a recorded run's last steps, k tokens drafted in every round, plain decoding = 1.
`make draft-lengths` writes runs/draft_lengths.json.

    python benchmarks/rollout/lengths.py [lengths=1,3,5,7,16] [shape=tiny] [dtype=float32] [rows=8]
      [phases=warm] [trace=runs/traces/spider_tiny-0] [prompts=0] [repeats=5] [json=FILE]
"""

import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.options import parse_options  # noqa: E402
from benchmarks.rollout import speed  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.metrics import describe_environment, to_json  # noqa: E402

DEFAULTS = {
    "lengths": "1,3,5,7,16",
    "shape": "tiny",
    "dtype": "float32",
    "rows": "8",
    "phases": "warm",
    "trace": "runs/traces/spider_tiny-0",
    "prompts": "0",
    "repeats": 5,
    "json": "",
}


def study(options: dict) -> list[dict[str, Any]]:
    """Cells of `speed.benchmark` whose arms are the lengths, and plain decoding twice.

    Raises:
        ValueError: A length that is no number of 1 or more, or as `speed.benchmark`.
    """
    lengths = options["lengths"].split(",")
    if not all(length.isdigit() and int(length) for length in lengths):
        raise ValueError(f"lengths: found {options['lengths']!r}, allowed: numbers of 1 or more")
    arms = ",".join(["plain", "again", *(f"k{length}" for length in lengths)])
    shared = {name: value for name, value in options.items() if name != "lengths"}
    return speed.benchmark(speed.DEFAULTS | shared | {"arms": arms})


def show(cells: list[dict[str, Any]], title: str) -> None:
    """One line for every number of rows, phase and length."""
    table = Table(title=title)
    for head in ("rows", "phase", "k", "accepted", "tokens/forward", "speed", "A against A"):
        table.add_column(head, justify="right")
    for cell in cells:
        for name, of in cell["arms"].items():
            if name in ("plain", "again"):
                continue
            table.add_row(
                str(cell["rows"]),
                cell["phase"],
                name[1:],
                f"{of['acceptance_rate']:.1%}",
                f"{of['tokens_per_forward']:.2f}",
                f"{of['speed_vs_plain']:.2f} ({of['speed_least']:.2f}-{of['speed_most']:.2f})",
                f"±{cell['spread']:.1%}",
            )
    Console(width=100).print(table)


def main() -> None:
    """Measures, prints, and writes the figures where asked."""
    options = parse_options(sys.argv[1:], DEFAULTS)
    cells = study(options)
    show(cells, f"Draft length, {options['shape']}, {options['dtype']}")
    if options["json"]:
        record = {"options": options, "cells": cells, **describe_environment(seed=0)}
        Path(options["json"]).write_text(to_json(record, indent=1) + "\n")


if __name__ == "__main__":
    use_compilation_cache()
    with fail_in_one_line():
        main()
