"""Drafters side by side on recorded training runs: `make bench-drafters`, after `make traces`.

    python benchmarks/drafting/drafters.py NAME=TRACE[,TRACE...] [...] [json=FILE]

Each NAME is a workload and its TRACEs are runs of it, one a seed. Prints, and writes as Markdown
beside the JSON file, tokens per forward of every drafter at K = 16 in the first epoch and warm, and
how many times theirs ours keeps, with its paired 95 % interval (`ngramrl_jax.replay.report`).
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402

from ngramrl_jax.replay.registry import ORACLE, chosen  # noqa: E402
from ngramrl_jax.replay.report import Report, compare, replay  # noqa: E402
from ngramrl_jax.replay.source import open_source  # noqa: E402
from train.command import fail_in_one_line  # noqa: E402
from train.metrics import describe_environment, to_json, write_atomic  # noqa: E402

K = 16
OURS = "ngram"
NAMES = {
    OURS: "**ours**",
    "ngram_tree": "**ours at its best** (trees of 16)",
    "ngram_blind": "ours, blind to the noise",
    ORACLE: "oracle chain",
    "none": "plain decoding",
    "prompt_lookup_hf": "prompt look-up (Hugging Face)",
    "prompt_lookup_vllm": "prompt look-up (vLLM)",
    "suffix_decoding_arctic": "SuffixDecoding (Arctic)",
    "suffix_decoding_vllm": "SuffixDecoding (vLLM)",
    "suffix_decoding_best": "SuffixDecoding (factor 4)",
    "problem_tree": "per-problem tree (DAS)",
}


def measure(traces: Sequence[Path]) -> list[Report]:
    """All drafters on each of a workload's traces."""
    sources = [open_source(path) for path in traces]
    return [replay(source, chosen(list(NAMES), source.header), K) for source in sources]


def mean_of(reports: Sequence[Report], drafter: str, when: str) -> float:
    """Tokens per forward, mean over seeds."""
    found = [report["drafters"][drafter]["tokens_per_forward"][when] for report in reports]
    return float(np.mean(found))


def about(name: str, reports: Sequence[Report]) -> str:
    """What the traces hold, in one line."""
    traces = [report["trace"] for report in reports]

    def mean(key: str) -> float:
        return float(np.mean([trace[key] for trace in traces]))

    covered = np.mean([trace["coverage"]["covered"] for trace in traces])
    run = np.mean([trace["coverage"]["run_mean"] for trace in traces])
    return (
        f"{name}: {len(traces)} seeds, {sum(trace['tokens'] for trace in traces):,} tokens in "
        f"{sum(trace['rollouts'] for trace in traces):,} rollouts, entropy {mean('entropy'):.2f} "
        f"nats a token ({mean('entropy_warm'):.2f} warm), mean reward {mean('reward_mean'):.2f}; "
        f"earlier rollouts cover {covered:.0%} of a later one in runs of {run:.0f} tokens"
    )


def markdown(workloads: Mapping[str, Sequence[Report]]) -> str:
    """The README's table: a line a drafter, three columns a workload."""
    heads = ["drafter, K = 16"]
    for name in workloads:
        heads += [f"{name}: first epoch", "warm", "ours keeps"]
    lines = [heads, ["---"] + ["--:"] * (len(heads) - 1)]
    over = {name: compare(reports)["over"] for name, reports in workloads.items()}
    for drafter, title in NAMES.items():
        line = [title]
        for name, reports in workloads.items():
            line += [f"{mean_of(reports, drafter, when):.2f}" for when in ("cold", "warm")]
            line.append(_times(over[name].get(drafter)))
        lines.append(line)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([table, "", *(about(*one) + "." for one in workloads.items())]) + "\n"


def _times(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    low, high = found["interval"]
    return f"{found['ratio']:.2f}x ({low:.2f}-{high:.2f})"


def parse(arguments: Sequence[str]) -> tuple[dict[str, list[Path]], str]:
    """Traces by workload, and the file to be written.

    Raises:
        ValueError: No workload, or an argument without a name.
    """
    given: dict[str, str] = {}
    for argument in arguments:
        name, _, value = argument.partition("=")
        given[name] = value
    target = given.pop("json", "")
    if not given or not all(given.values()):
        raise ValueError(f"arguments: found {list(arguments)}, allowed: NAME=TRACE[,TRACE...] ...")
    return {name: [Path(one) for one in paths.split(",")] for name, paths in given.items()}, target


def main() -> None:
    """Measures, prints, and writes the figures where asked."""
    traces, target = parse(sys.argv[1:])
    workloads = {name: measure(paths) for name, paths in traces.items()}
    text = markdown(workloads)
    Console(highlight=False, width=200).print(text, markup=False)
    if target:
        record = {"workloads": workloads, **describe_environment(seed=0)}
        write_atomic(Path(target), json.dumps(json.loads(to_json(record)), indent=1) + "\n")
        write_atomic(Path(target).with_suffix(".md"), text)


if __name__ == "__main__":
    with fail_in_one_line():
        main()
