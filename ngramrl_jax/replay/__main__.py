"""Drafters side by side on recorded rollouts: `python -m ngramrl_jax.replay TRACE [TRACE ...]`.

TRACE is a run folder, the folder `traces` in it, or a file of JSON lines (a prompt with its group a
line; each rollout is then replayed with the rest of its group as history). Several traces, of
several seeds say, are replayed one after the other and compared together. Exit status: 0, or 2 for
a mistake in the command or a damaged trace.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from ngramrl_jax.replay.plot import plot
from ngramrl_jax.replay.registry import ORACLE, chosen, factories
from ngramrl_jax.replay.report import Report, compare, replay
from ngramrl_jax.replay.source import Source, open_source
from ngramrl_jax.replay.tables import show, show_comparison


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Instead of argparse's several lines."""
        raise ValueError(message)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m ngramrl_jax.replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE")
    parser.add_argument("--drafters", help="names, with commas between them; all by default")
    parser.add_argument("--draft-tokens", type=int, default=16, help="K, 16 by default")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--plot", type=Path, help="draw them into this file, .png or .svg")
    options = parser.parse_args(arguments)
    if options.draft_tokens < 1:
        raise ValueError(f"--draft-tokens: found {options.draft_tokens}, allowed: 1 or more")
    return options


def _replay(source: Source, names: Sequence[str] | None, draft_tokens: int) -> Report:
    if names is None:
        first = next(source.steps())
        has_best = all(rollout.best is not None for rollout in first.rollouts)
        names = [name for name in factories(source.header) if has_best or name != ORACLE]
    return replay(source, chosen(names, source.header), draft_tokens)


def run(arguments: Sequence[str]) -> None:
    """The command.

    Raises:
        ValueError: A mistake in it, or a damaged trace.
    """
    options = _options(arguments)
    names = options.drafters.split(",") if options.drafters else None
    sources = [open_source(path) for path in options.traces]
    for source in sources:
        chosen(names or (), source.header)  # better to find out now than after the first trace
    reports = [_replay(source, names, options.draft_tokens) for source in sources]
    comparison = compare(reports)
    if options.json:
        print(json.dumps({"traces": reports, "comparison": comparison}, allow_nan=False))
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
        for report in reports:
            show(report, console)
        show_comparison(comparison, reports, console)
    if options.plot:
        plot(reports, options.plot)


def main() -> int:
    """Runs the command; returns its exit status."""
    try:
        run(sys.argv[1:])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
