"""What drafting buys in rollouts, and what it costs the host: `make bench`.

Plain decoding, prompt look-up and the n-gram drafter sample the same rollouts of the embedded
policy in one process, interleaved; plain decoding runs twice, and how far those two arms differ
(A against A) is the spread that any other difference must exceed. Times are medians.

    python benchmarks/rollout.py [rows=16] [prompts=32] [group=8] [repeats=5] [json=FILE]
"""

import json
import sys
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path[0] = str(Path(__file__).resolve().parents[1])

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.options import parse_options  # noqa: E402
from ngramrl_jax.host.history import History  # noqa: E402
from ngramrl_jax.host.ngram import NgramDrafter, warm_up  # noqa: E402
from ngramrl_jax.host.no_draft import NoDrafter  # noqa: E402
from ngramrl_jax.host.peers import PEERS  # noqa: E402
from ngramrl_jax.host.protocol import Drafter  # noqa: E402
from ngramrl_jax.rollout.counters import RolloutCounters  # noqa: E402
from ngramrl_jax.rollout.engine import RolloutEngine  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.config import RunConfig  # noqa: E402
from train.metrics import describe_environment, to_json  # noqa: E402
from train.prompts import group_requests  # noqa: E402
from train.tasks.registry import open_task  # noqa: E402
from train.workbench import (  # noqa: E402
    Workbench,
    engine_settings,
    open_workbench,
)

DRAFT_TOKENS = 16
HISTORY_STEPS = 2  # untimed, so that every prompt has history
DEFAULTS = {"rows": 16, "prompts": 32, "group": 8, "repeats": 5, "json": ""}


@dataclass
class Arm:
    """One way of decoding and what was measured of it, one entry a repeat."""

    name: str
    engine: RolloutEngine
    seconds: list[float] = field(default_factory=list)
    counters: list[RolloutCounters] = field(default_factory=list)

    def figures(self, plain: "Arm", rollouts: int) -> dict[str, float]:
        """Medians over the repeats; the speed is a ratio to plain decoding in the same repeat.

        Host work is that of a round (drafts in, outcome out) and that of a rollout's coming and
        going (admission, prefill, history).
        """
        ratios = [a / b for a, b in zip(plain.seconds, self.seconds, strict=True)]
        draft_us = [1e6 * c.draft_seconds / c.row_rounds for c in self.counters]
        round_us = [1e6 * c.round_seconds / c.dispatches for c in self.counters]
        turnover_us = [1e6 * c.turnover_seconds / rollouts for c in self.counters]
        share = [c.host_seconds / c.device_seconds for c in self.counters]
        return {
            "tokens_per_forward": median(c.tokens_per_forward for c in self.counters),
            "speed_vs_plain": median(ratios),
            "speed_least": min(ratios),
            "speed_most": max(ratios),
            "draft_us_per_row": median(draft_us),
            "round_us_per_dispatch": median(round_us),
            "turnover_us_per_rollout": median(turnover_us),
            "host_share_of_device_time": median(share),
        }


def make_arms(bench: Workbench, config: RunConfig, rows: int) -> list[Arm]:
    """Plain decoding twice, two peers, and the drafter with its history."""
    settings = replace(engine_settings(bench.codec, config.rollout), slots=rows)
    plain = replace(settings, draft_tokens=0)
    drafting = replace(settings, draft_tokens=DRAFT_TOKENS)

    def arm(name: str, drafter: Drafter) -> Arm:
        return Arm(name, RolloutEngine(bench.policy, drafter, drafting))

    return [
        Arm("plain", RolloutEngine(bench.policy, NoDrafter(rows), plain)),
        Arm("plain again", RolloutEngine(bench.policy, NoDrafter(rows), plain)),
        arm("prompt look-up", PEERS["prompt_lookup_hf"](rows, DRAFT_TOKENS)),
        arm("SuffixDecoding", PEERS["suffix_decoding_vllm"](rows, DRAFT_TOKENS)),
        arm("n-gram history", NgramDrafter(rows, DRAFT_TOKENS, History())),
    ]


def measure(bench: Workbench, config: RunConfig, options: dict) -> dict[str, dict[str, float]]:
    """Figures by arm."""
    warm_up()
    arms = make_arms(bench, config, options["rows"])
    chosen = bench.train[: options["prompts"]]
    requests = group_requests(chosen, options["group"], config.rollout.max_new_tokens)
    for arm in arms:
        arm.engine.warm_up(bench.params)
    rollouts = len(requests)
    for step in range(HISTORY_STEPS + options["repeats"]):
        for arm in arms:
            start = perf_counter()
            _, counters = arm.engine.generate(
                bench.params, requests, seed=0, step=step, policy_version=0
            )
            if step >= HISTORY_STEPS:
                arm.seconds.append(perf_counter() - start)
                arm.counters.append(counters)
    return {arm.name: arm.figures(arms[0], rollouts) for arm in arms}


def show(figures: dict[str, dict[str, float]], options: dict) -> None:
    """The table."""
    table = Table(title=f"{options['rows']} rows, K = {DRAFT_TOKENS}, {options['repeats']} repeats")
    heads = (
        "arm",
        "tokens/forward",
        "speed vs plain",
        "drafting, µs a row",
        "round, µs",
        "turnover, µs a rollout",
        "host/device",
    )
    for head in heads:
        table.add_column(head, justify="left" if head == "arm" else "right")
    for name, of in figures.items():
        table.add_row(
            name,
            f"{of['tokens_per_forward']:.2f}",
            f"{of['speed_vs_plain']:.2f} ({of['speed_least']:.2f}-{of['speed_most']:.2f})",
            f"{of['draft_us_per_row']:.1f}",
            f"{of['round_us_per_dispatch']:.0f}",
            f"{of['turnover_us_per_rollout']:.0f}",
            f"{of['host_share_of_device_time']:.1%}",
        )
    Console(width=120).print(table)


def main() -> None:
    """Measures, prints, and writes the figures where asked."""
    options = parse_options(sys.argv[1:], DEFAULTS)
    config = RunConfig()
    with closing(open_task(config)) as task:
        figures = measure(open_workbench(config, task), config, options)
    show(figures, options)
    if options["json"]:
        record = {"options": options, "arms": figures, **describe_environment(seed=0)}
        Path(options["json"]).write_text(json.dumps(json.loads(to_json(record)), indent=1) + "\n")


if __name__ == "__main__":
    use_compilation_cache()
    with fail_in_one_line():
        main()
