"""How long the device waits for the host, with drafts made between rounds or ahead.

The device's threads are bound to core 0 and the host's to core 1, so that the two cannot hide each
other. Rollouts of the embedded policy are sampled with `prefetch` off, host and device,
interleaved; `off` runs twice, and how far those two arms differ (A against A) is the spread that
any other difference must exceed. Medians. Drafts come from a drafter that has heard the rollouts
before, so that all arms have equally good ones, with look-ups that are as good as free, or that
take a given share of the time that a round takes on the device: every call costs as much, for
however many rows and outcomes. The ceiling is the speed-up over `off` if nothing of the host's work
were exposed: (device time + exposed time of `off`) / device time.

A batch begins with a look-up that nothing can hide, and rows that end cost a round each: with few
rounds these two are all that is seen. So responses are `--tokens` long, whatever the policy says,
and each row serves `--turns` of them.

    python benchmarks/prefetch/exposed.py [--rows 1 8 32 64] [--look-up 0.4] [--coverage 0.9]
        [--right 0.9] [--entries 16] [--tokens 160] [--turns 3] [--repeats 3] [--shape 135m]
        [--json FILE]

`--shape 135m` takes random weights of another shape (`benchmarks/rollout/shapes.py`): rounds of the
embedded policy are so short that at one row a single miss exposes half of one.
`--drafter ngram` has the n-gram drafter do the look-ups instead, warmed up for two steps;
`--tokens 0` lets responses end where the policy ends them.
"""

import argparse
import json
import os
import sys
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

DEVICE_CORE, HOST_CORE = 0, 1
if __name__ == "__main__":
    os.sched_setaffinity(0, {DEVICE_CORE})  # threads of the backend, started below, inherit this

import jax  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.prefetch.foretold import RecordedDrafter  # noqa: E402
from benchmarks.rollout.shapes import random_model  # noqa: E402
from ngramrl_jax.host.history import History  # noqa: E402
from ngramrl_jax.host.ngram import NgramDrafter, warm_up  # noqa: E402
from ngramrl_jax.host.no_draft import NoDrafter  # noqa: E402
from ngramrl_jax.host.noise import row_key  # noqa: E402
from ngramrl_jax.host.outcomes import Budget  # noqa: E402
from ngramrl_jax.rollout.counters import RolloutCounters  # noqa: E402
from ngramrl_jax.rollout.engine import RolloutEngine  # noqa: E402
from ngramrl_jax.rollout.settings import EngineSettings  # noqa: E402
from ngramrl_jax.types import RolloutRequest  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.config import RunConfig  # noqa: E402
from train.metrics import describe_environment, to_json  # noqa: E402
from train.prompts import group_requests  # noqa: E402
from train.tasks.registry import open_task  # noqa: E402
from train.workbench import Workbench, engine_settings, open_workbench  # noqa: E402

DRAFT_TOKENS = 16
GROUP = 4
HISTORY_STEPS = 2  # untimed
WAYS = (("off", "off"), ("off again", "off"), ("host", "host"), ("device", "device"))


@dataclass
class Arm:
    """One way, and what was measured of it, one entry a repeat."""

    name: str
    engine: RolloutEngine
    drafter: Any
    seconds: list[float] = field(default_factory=list)
    counters: list[RolloutCounters] = field(default_factory=list)

    def exposed_ms(self) -> float:
        """Per round."""
        return median(1e3 * c.exposed_seconds / c.dispatches for c in self.counters)

    def round_ms(self) -> float:
        """Wall time per round, all in."""
        pairs = zip(self.seconds, self.counters, strict=True)
        return median(1e3 * seconds / c.dispatches for seconds, c in pairs)

    def figures(self, off: "Arm") -> dict[str, float | None]:
        """Medians over the repeats; the speed is a ratio to `off` in the same repeat."""
        ratios = [a / b for a, b in zip(off.seconds, self.seconds, strict=True)]
        coverages = [c.coverage for c in self.counters if c.coverage is not None]
        return {
            "round_ms": self.round_ms(),
            "exposed_ms_per_round": self.exposed_ms(),
            "exposed_share_of_round": self.exposed_ms() / self.round_ms(),
            "speed_vs_off": median(ratios),
            "speed_least": min(ratios),
            "speed_most": max(ratios),
            "coverage": median(coverages) if coverages else None,
            "skipped_rounds": median(c.skipped_rounds for c in self.counters),
            "rounds": median(c.dispatches for c in self.counters),
            "tokens_per_forward": median(c.tokens_per_forward for c in self.counters),
        }


def bind_threads() -> dict[str, int]:
    """Moves this thread, and with it those that it starts from now on, to the host's core.

    Returns:
        How many threads of the process are bound to which core, for the record.
    """
    jax.block_until_ready(jax.jit(lambda x: x @ x)(jax.numpy.ones((64, 64))))  # the pools exist
    os.sched_setaffinity(0, {HOST_CORE})
    return bound_threads()


def bound_threads() -> dict[str, int]:
    """Threads by the cores they may run on."""
    found: dict[str, int] = {}
    for task in os.listdir("/proc/self/task"):
        cores = ",".join(map(str, sorted(os.sched_getaffinity(int(task)))))
        found[f"core {cores}"] = found.get(f"core {cores}", 0) + 1
    return found


def foretold(
    bench: Workbench, settings: EngineSettings, requests: list[RolloutRequest], steps: int
) -> dict[tuple[int, ...], Any]:
    """What the rows of all steps will say, by their keys."""
    plain = RolloutEngine(
        bench.policy, NoDrafter(settings.slots), replace(settings, draft_tokens=0)
    )
    future = {}
    for step in range(steps):
        rollouts, _ = plain.generate(bench.params, requests, seed=0, step=step, policy_version=0)
        for said in rollouts:
            future[tuple(row_key(0, step, *said.identity).tolist())] = said.tokens_N
    return future


def make_arms(bench: Workbench, settings: EngineSettings, future: Any, options: Any) -> list[Arm]:
    """The ways, each with a drafter of its own."""
    arms = []
    for name, prefetch in WAYS:
        if options.drafter == "ngram":
            drafter: Any = NgramDrafter(
                settings.slots,
                DRAFT_TOKENS,
                History(),
                budget=Budget(options.entries),
                stop_ids=settings.stop_ids,
            )
        else:
            drafter = RecordedDrafter(
                settings.slots,
                DRAFT_TOKENS,
                future,
                right=options.right,
                coverage=options.coverage,
                entries=options.entries,
            )
        engine = RolloutEngine(bench.policy, drafter, replace(settings, prefetch=prefetch))
        engine.warm_up(bench.params)
        arms.append(Arm(name, engine, drafter))
    return arms


def make_requests(bench: Workbench, count: int, most: int) -> list[RolloutRequest]:
    """That many, four siblings of a prompt where there are as many."""
    group = min(GROUP, count)
    return group_requests(bench.train[: -(-count // group)], group, most)[:count]


def measure(bench: Workbench, config: RunConfig, rows: int, options: Any) -> dict[str, Any]:
    """Figures by arm, and the ceiling."""
    settings = replace(
        engine_settings(bench.codec, config.rollout),
        slots=rows,
        draft_tokens=DRAFT_TOKENS,
        prefetch_candidates=options.entries,
        look_up_share=0.15 + options.look_up,
    )
    if options.tokens:
        settings = replace(settings, max_new_tokens=options.tokens, stop_ids=())
    requests = make_requests(bench, rows * options.turns, settings.max_new_tokens)
    steps = HISTORY_STEPS + options.repeats
    future = foretold(bench, settings, requests, steps) if options.drafter == "recorded" else {}
    arms = make_arms(bench, settings, future, options)
    for step in range(steps):
        if step == HISTORY_STEPS:
            start_timing(arms, options.look_up)
        for arm in arms:
            begun = perf_counter()
            _, counters = arm.engine.generate(
                bench.params, requests, seed=0, step=step, policy_version=0
            )
            arm.seconds.append(perf_counter() - begun)
            arm.counters.append(counters)
    off = arms[0]
    ceiling = off.round_ms() / (off.round_ms() - off.exposed_ms())
    return {"arms": {arm.name: arm.figures(off) for arm in arms}, "ceiling": ceiling}


def start_timing(arms: list[Arm], look_up: float) -> None:
    """Look-ups take that share of the device's round from now on; what was measured is dropped."""
    # With `device` one round follows on the other; a device that has slept is slower.
    dones = [[times.done for times in counters.timeline] for counters in arms[-1].counters]
    round_s = median(after - before for done in dones for before, after in pairwise(done))
    for arm in arms:
        if isinstance(arm.drafter, RecordedDrafter):
            arm.drafter.look_up_s = look_up * round_s
        arm.seconds.clear()
        arm.counters.clear()


def show(rows: int, found: dict[str, Any], console: Console) -> None:
    """One table for a number of rows."""
    table = Table(title=f"{rows} rows, K = {DRAFT_TOKENS}, ceiling {found['ceiling']:.2f}")
    for head in ("arm", "speed vs off", "round, ms", "exposed, ms", "share", "coverage", "skipped"):
        table.add_column(head, justify="left" if head == "arm" else "right")
    for name, of in found["arms"].items():
        table.add_row(
            name,
            f"{of['speed_vs_off']:.2f} ({of['speed_least']:.2f}-{of['speed_most']:.2f})",
            f"{of['round_ms']:.2f}",
            f"{of['exposed_ms_per_round']:.3f}",
            f"{of['exposed_share_of_round']:.1%}",
            "" if of["coverage"] is None else f"{of['coverage']:.1%}",
            f"{of['skipped_rounds']:.0f} of {of['rounds']:.0f}",
        )
    console.print(table)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options in the page above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--drafter", choices=("recorded", "ngram"), default="recorded")
    parser.add_argument("--look-up", type=float, default=0.0, help="recorded: in rounds")
    parser.add_argument("--coverage", type=float, default=0.97, help="recorded")
    parser.add_argument("--right", type=float, default=0.9, help="recorded: of the draft tokens")
    parser.add_argument("--entries", type=int, default=16, help="F")
    parser.add_argument("--tokens", type=int, default=160, help="of every response; 0: as it ends")
    parser.add_argument("--turns", type=int, default=3, help="responses a row")
    parser.add_argument("--shape", default="", help="random weights instead of the policy")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main() -> None:
    """Measures, prints, and writes the figures where asked."""
    options = parse(sys.argv[1:])
    config = RunConfig()
    warm_up()
    bound = bind_threads()
    console = Console(width=110)
    console.print(f"threads: {bound}")
    found = {}
    with closing(open_task(config)) as task:
        bench = open_workbench(config, task)
        if options.shape:
            policy, params = random_model(options.shape, "float32")
            bench = replace(bench, policy=policy, params=params)
        for rows in options.rows:
            found[rows] = measure(bench, config, rows, options)
            show(rows, found[rows], console)
    threads = {"bound": bound, "at the end": bound_threads()}
    console.print(f"threads: {threads['at the end']}")
    if options.json:
        asked = {name: value for name, value in vars(options).items() if name != "json"}
        record = {"options": asked, "threads": threads, "rows": found, **describe_environment(0)}
        options.json.write_text(json.dumps(json.loads(to_json(record)), indent=1) + "\n")


if __name__ == "__main__":
    use_compilation_cache()
    with fail_in_one_line():
        main()
