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

from ngramrl_jax.replay.plot import KINDS, plot
from ngramrl_jax.replay.registry import ORACLE, chosen, factories
from ngramrl_jax.replay.report import Report, compare, replay
from ngramrl_jax.replay.source import Source, open_source
from ngramrl_jax.replay.tables import show, show_comparison

_READING = """\
how to read the tables:
  all, cold, warm  tokens per forward (plain decoding: 1) over all steps, over the first epoch, and
                   over the last 30 % of steps; a file of JSON lines has no warm steps
  drafted          draft tokens in a round of a row, of a tree those of all branches
  accepted         those of them that were kept
  rate             accepted / drafted
  at 1 .. at 16    of the drafts that had an i-th token (on any branch), the share that kept it
  µs/proposal      time inside the drafter for a round of a row, on this machine
  B/token          memory of the history for each token that it holds, where the drafter tells
"earlier rollouts cover" is the share of a rollout's tokens that lie in runs of 4 or more tokens
that earlier rollouts of its prompt hold; "in runs of" is the mean length of these runs.
"A over B" is how many times B's tokens per forward A keeps, with a 95 % interval over steps.

drafters:
  ngram                   ours, with the history as the run had it
  ngram_tree              ours with several continuations in a round: a tree of K tokens
  ngram_blind             ours without the target's noise
  none                    plain decoding
  prompt_lookup_hf        prompt look-up by the rule of Hugging Face's transformers
  prompt_lookup_vllm      prompt look-up by the rule of vLLM's method ngram
  suffix_decoding_arctic  SuffixDecoding with ArcticInference's defaults
  suffix_decoding_vllm    SuffixDecoding with the defaults of vLLM's method suffix
  suffix_decoding_best    SuffixDecoding with the setting that did best on our traces
  problem_tree            a suffix tree for every prompt, as DAS has it
  oracle                  the chain of the policy's most likely tokens: it knows the policy, which
                          no drafter can, and is there for comparison; it needs a trace with
                          the policy's best tokens
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Instead of argparse's several lines."""
        raise ValueError(message)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="python -m ngramrl_jax.replay",
        description=__doc__,
        epilog=_READING,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE")
    parser.add_argument("--drafters", help="names, with commas between them; all by default")
    parser.add_argument("--draft-tokens", type=int, default=16, help="K, 16 by default")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--plot", type=Path, help="draw them into this file, .png or .svg")
    options = parser.parse_args(arguments)
    if options.plot and options.plot.suffix not in KINDS:
        raise ValueError(f"--plot: found {options.plot}, allowed: a file {', '.join(KINDS)}")
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
