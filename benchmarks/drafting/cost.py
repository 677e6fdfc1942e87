"""What drafting costs the host, in microseconds and bytes.

Drafters learn the same synthetic rollouts (`synthetic_rollouts.py`) and then draft for rows that
say others of the same prompts, in one process, interleaved. Ours on one core runs twice, and how
far those two arms differ (A against A) is the spread that any other difference must exceed. Then
far more rollouts than fit are pushed through a bound of 256 MB.

    python benchmarks/drafting/cost.py [rows=64] [rollouts=16] [tokens=1000] [prompts=10000]
                                  [repeats=5] [json=FILE]

With the real SuffixDecoding library on PYTHONPATH it takes part, see `peers_check.py`.

Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, N response tokens, W words of
a key.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from time import perf_counter, thread_time

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.drafting.arctic_library import ArcticDrafter, installed  # noqa: E402
from benchmarks.drafting.memory_bound import MEGABYTE, Outcome, push_through  # noqa: E402
from benchmarks.drafting.synthetic_rollouts import PromptRollouts, draw_tokens  # noqa: E402
from benchmarks.options import parse_options  # noqa: E402
from ngramrl_jax.host.history import History  # noqa: E402
from ngramrl_jax.host.ngram import NgramDrafter, warm_up  # noqa: E402
from ngramrl_jax.host.peers import suffix_decoding_vllm  # noqa: E402
from ngramrl_jax.host.protocol import Drafter  # noqa: E402
from ngramrl_jax.types import Int32Array  # noqa: E402
from train.command import fail_in_one_line  # noqa: E402
from train.metrics import describe_environment, to_json  # noqa: E402

DRAFT_TOKENS = 16
PROMPT_TOKENS = 300
BOUND_GROUP, BOUND_TOKENS, BOUND_BYTES = 16, 500, 256 * MEGABYTE
DEFAULTS = {
    "rows": 64,
    "rollouts": 16,
    "tokens": 1000,
    "prompts": 10_000,
    "repeats": 5,
    "json": "",
}


@dataclass
class Repeat:
    """Seconds of each round for all rows, and what came of the rounds."""

    propose: list[float] = field(default_factory=list)
    commit: list[float] = field(default_factory=list)
    drafted: int = 0
    committed: int = 0


@dataclass
class Arm:
    """One drafter, and what was measured of it.

    Attributes:
        name: In tables.
        drafter: May share its history with other arms'.
        nbytes: Bytes that it holds of the rollouts.
        learns: Whether it is told the rollouts; else another arm is told them for it.
        learnt: Seconds of processor time for each rollout told.
        repeats: One entry a repeat.
    """

    name: str
    drafter: Drafter
    nbytes: Callable[[], int]
    learns: bool = True
    learnt: list[float] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)

    def propose_us(self, rows: int) -> list[float]:
        """Of each repeat, the median round's microseconds a row."""
        return [1e6 * median(repeat.propose) / rows for repeat in self.repeats]

    def figures(self, rows: int, tokens: int) -> dict[str, float]:
        """Microseconds and bytes, of a row or of a token."""
        propose_us = self.propose_us(rows)
        rounds = rows * sum(len(repeat.propose) for repeat in self.repeats)
        figures = {
            "propose_us_per_row": median(propose_us),
            "propose_us_least": min(propose_us),
            "propose_us_most": max(propose_us),
            "propose_us_mean": 1e6 * fmean(s for r in self.repeats for s in r.propose) / rows,
            "commit_us_per_row": 1e6 * median(s for r in self.repeats for s in r.commit) / rows,
            "drafted_per_row": sum(repeat.drafted for repeat in self.repeats) / rounds,
            "committed_per_row": sum(repeat.committed for repeat in self.repeats) / rounds,
        }
        if self.learns:
            figures["insert_us_per_token"] = 1e6 * fmean(self.learnt) / tokens
            figures["bytes_per_token"] = self.nbytes() / (len(self.learnt) * tokens)
        return figures


def make_arms(rows: int, window: int) -> list[Arm]:
    """Ours on one core, again, and on all; SuffixDecoding, and its library where there is one."""
    history = History(window)
    cores = os.cpu_count() or 1

    def ours(name: str, cores: int, learns: bool) -> Arm:
        drafter = NgramDrafter(rows, DRAFT_TOKENS, history, threads=cores)
        return Arm(name, drafter, lambda: history.history_bytes, learns)

    suffix = suffix_decoding_vllm(rows, DRAFT_TOKENS)
    arms = [
        ours("ours, 1 core", 1, True),
        ours("ours, 1 core, again", 1, False),
        ours(f"ours, {cores} cores", cores, False),
        Arm("SuffixDecoding, our rewrite", suffix, lambda: suffix.forest.nbytes),
    ]
    if installed():
        library = ArcticDrafter(rows, DRAFT_TOKENS)
        arms.append(Arm("SuffixDecoding, the library", library, lambda: library.nbytes))
    return arms


def measure(arms: list[Arm], options: dict) -> None:
    """Tells all arms the same rollouts, then lets them draft for the same new ones."""
    rng = np.random.default_rng(0)
    rows, tokens = options["rows"], options["tokens"]
    prompts = [PromptRollouts(rng, tokens) for _ in range(rows)]
    for step in range(options["rollouts"]):
        for prompt_id, prompt in enumerate(prompts):
            tokens_N, best = prompt.draw()
            for arm in arms:
                if arm.learns:
                    begun = thread_time()
                    arm.drafter.observe(prompt_id, tokens_N, step, best)
                    arm.learnt.append(thread_time() - begun)
    for _ in range(options["repeats"]):
        prompt_BP = draw_tokens(rng, (rows, PROMPT_TOKENS))
        text_BN = np.stack([prompt.draw()[0] for prompt in prompts])
        for arm in arms:
            arm.repeats.append(go_along(arm, prompt_BP, text_BN))


def go_along(arm: Arm, prompt_BP: Int32Array, text_BN: Int32Array) -> Repeat:
    """Rounds in which every row says what its text says next, until the first row is done."""
    repeat, drafter = Repeat(), arm.drafter
    rows, tokens = text_BN.shape
    for row in range(rows):
        drafter.start_row(row, row, prompt_BP[row], np.array([row, 0], np.uint32))
    limit_B, said_B = np.full(rows, DRAFT_TOKENS, np.int32), np.zeros(rows, np.int64)
    while said_B.max() + DRAFT_TOKENS < tokens:
        begun = perf_counter()
        draft_BK, length_B = drafter.propose(limit_B)
        proposed = perf_counter()
        next_BT = text_BN[np.arange(rows)[:, None], said_B[:, None] + np.arange(DRAFT_TOKENS + 1)]
        right_BK = (draft_BK == next_BT[:, :-1]) & (np.arange(DRAFT_TOKENS) < length_B[:, None])
        count_B = np.logical_and.accumulate(right_BK, 1).sum(1, dtype=np.int32) + np.int32(1)
        verified = perf_counter()
        drafter.commit(next_BT, count_B)
        repeat.commit.append(perf_counter() - verified)
        repeat.propose.append(proposed - begun)
        repeat.drafted += int(length_B.sum())
        repeat.committed += int(count_B.sum())
        said_B += count_B
    for row in range(rows):
        drafter.finish_row(row)
    drafter.end_batch()
    return repeat


def ratios(arms: list[Arm], rows: int) -> dict[str, list[float]]:
    """How many times the first arm's time goes into that of the two others of ours, by repeat."""
    first, again, parallel = (arm.propose_us(rows) for arm in arms[:3])
    return {
        "a_against_a": [a / b for a, b in zip(first, again, strict=True)],
        "speed_on_all_cores": [a / b for a, b in zip(first, parallel, strict=True)],
    }


def show(figures: dict[str, dict[str, float]], speed: dict[str, list[float]], title: str) -> None:
    """The table of the arms."""
    table = Table(title=title, caption=_caption(speed))
    table.add_column("arm")
    for head in (
        "propose, µs a row",
        "mean",
        "drafted a row",
        "commit, µs a row",
        "insert, µs a token",
        "bytes a token",
    ):
        table.add_column(head, justify="right")
    for name, of in figures.items():
        learning = ("insert_us_per_token", "bytes_per_token")
        table.add_row(
            name,
            f"{of['propose_us_per_row']:.2f} "
            f"({of['propose_us_least']:.2f}-{of['propose_us_most']:.2f})",
            f"{of['propose_us_mean']:.2f}",
            f"{of['drafted_per_row']:.1f}",
            f"{of['commit_us_per_row']:.2f}",
            *(f"{of[name]:.2f}" if name in of else "" for name in learning),
        )
    if not installed():
        table.add_row("SuffixDecoding, the library", "not installed")
    Console(width=120).print(table)


def _caption(speed: dict[str, list[float]]) -> str:
    all_cores, same = speed["speed_on_all_cores"], speed["a_against_a"]
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    return (
        f"All cores are {median(all_cores):.2f} ({min(all_cores):.2f}-{max(all_cores):.2f}) times "
        f"as fast as one; one against itself: {median(same):.2f} ({min(same):.2f}-{max(same):.2f})."
        f" Insertion is processor time. {os.cpu_count()} cores, load {load}."
    )


def show_bound(outcome: Outcome) -> None:
    """The table of the bounded history."""
    table = Table(title=f"{outcome.pushed_tokens:,} tokens through a bound of 256 MB")
    table.add_column("")
    table.add_column("", justify="right")
    eighths = " ".join(f"{us:.2f}" for us in outcome.us_per_token)
    for label, value in {
        "most that the history held": f"{outcome.most_mb:.1f} MB",
        "process grew by": f"{outcome.resident_mb:.0f} MB",
        "rollouts left": f"{outcome.kept_rollouts:,}",
        "exactly the newest": "yes" if outcome.kept_the_newest else "NO",
        "insert by eighth, µs a token (processor time)": eighths,
        "longest insertion of one rollout": f"{outcome.longest_s:.2f} s",
    }.items():
        table.add_row(label, value)
    Console(width=120).print(table)


def main() -> None:
    """Measures, prints, and writes the figures where asked."""
    options = parse_options(sys.argv[1:], DEFAULTS)
    rows, tokens = options["rows"], options["tokens"]
    if tokens <= DRAFT_TOKENS:
        raise ValueError(f"tokens: found {tokens}, allowed: {DRAFT_TOKENS + 1} or more")
    warm_up()
    arms = make_arms(rows, options["rollouts"])
    measure(arms, options)
    figures = {arm.name: arm.figures(rows, tokens) for arm in arms}
    speed = ratios(arms, rows)
    title = f"{rows} rows, K = {DRAFT_TOKENS}, {options['rollouts']} rollouts of {tokens} tokens"
    show(figures, speed, f"{title} a prompt, {options['repeats']} repeats")
    outcome = push_through(options["prompts"], BOUND_GROUP, BOUND_TOKENS, BOUND_BYTES)
    show_bound(outcome)
    if options["json"]:
        record = {
            "options": options,
            "load": os.getloadavg(),
            "arms": figures,
            "ratios": speed,
            "bound": asdict(outcome),
            **describe_environment(seed=0),
        }
        Path(options["json"]).write_text(json.dumps(json.loads(to_json(record)), indent=1) + "\n")


if __name__ == "__main__":
    with fail_in_one_line():
        main()
