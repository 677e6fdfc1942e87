"""What a round costs beside the forward inside it: the table that holds rounds to their model.

For each model shape and number of rows, in one process and interleaved: the bare jitted forward of
one token a row against plain decoding, and the bare forward of K + 1 tokens against a speculative
round. Plain decoding runs twice; how far those two arms differ (A against A) is the spread that any
other difference must exceed. Weights are random: a round's cost does not depend on them. Ratios are
medians over the repeats, each taken within one repeat.

    python benchmarks/round.py [shapes=tiny,135M] [repeats=9] [draft=16] [json=FILE]
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path[0] = str(Path(__file__).resolve().parents[1])

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.options import parse_options  # noqa: E402
from models.config import ModelConfig, preset  # noqa: E402
from models.policy import Params, Qwen3Policy  # noqa: E402
from ngramrl_jax.rollout.programs import Programs  # noqa: E402
from ngramrl_jax.rollout.round import DecodeRule  # noqa: E402
from ngramrl_jax.rollout.state import DecodeState, empty_state  # noqa: E402
from ngramrl_jax.types import Sampling  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.metrics import describe_environment, to_json  # noqa: E402

DEFAULTS = {"shapes": "tiny,135M", "repeats": 9, "draft": 16, "json": ""}
SHAPES = {"tiny": (preset("tiny"), (1, 4, 16)), "135M": (preset("smollm2_135m"), (1, 8, 16))}
RULE = DecodeRule(Sampling(), stop_ids=(), best_tokens=8)
PLAIN_ROUNDS = 16
LENGTH, LIVE, CAPACITY = 48, 128, 256  # committed tokens of each row, bucket, cache positions
FORWARD, PLAIN, AGAIN, LONG_FORWARD, SPECULATIVE = (
    "forward",
    "plain",
    "plain again",
    "long forward",
    "speculative",
)


class Arms:
    """The programs of one shape, each a call that runs some rounds and says how many."""

    def __init__(self, config: ModelConfig, rows: int, draft: int) -> None:
        self.policy = Qwen3Policy(config)
        self.params: Params = self.policy.init_params(jax.random.key(0))
        self.programs = Programs(self.policy, RULE, PLAIN_ROUNDS, draft)
        self.state = empty_state(self.policy, rows, CAPACITY)
        self.forward = jax.jit(self.policy.forward, static_argnames="live", donate_argnums=3)
        self.drafts_BX = np.zeros((rows, 1 + draft), np.int32)
        self.drafts_BX[:, 0] = draft
        self.calls: dict[str, Callable[[], int]] = {
            FORWARD: partial(self.run_forward, 1, PLAIN_ROUNDS),
            PLAIN: self.run_plain,
            AGAIN: self.run_plain,
            LONG_FORWARD: partial(self.run_forward, draft + 1, 4),
            SPECULATIVE: partial(self.run_speculative, 4),
        }

    def seconds(self, name: str) -> float:
        """Seconds of one round of an arm; all rows start from the same length."""
        self.state = self._start()
        jax.block_until_ready(self.state)
        start = perf_counter()
        rounds = self.calls[name]()
        return (perf_counter() - start) / rounds

    def run_forward(self, tokens: int, rounds: int) -> int:
        """The forward alone, one dispatch each, waited for at the end."""
        tokens_BT = jnp.zeros((len(self.drafts_BX), tokens), jnp.int32)
        logits, cache = None, self.state.cache
        for _ in range(rounds):
            logits, cache = self.forward(
                self.params, tokens_BT, self.state.length_B, cache, live=LIVE
            )
        jax.block_until_ready((logits, cache))
        self.state = replace(self.state, cache=cache)
        return rounds

    def run_plain(self) -> int:
        """One dispatch of plain rounds, its outcome fetched."""
        self.state, packed = self.programs.plain(
            self.params,
            state=self.state,
            leave_at=np.int32(999),
            most=np.int32(PLAIN_ROUNDS),
            live=LIVE,
        )
        np.asarray(packed)
        return PLAIN_ROUNDS

    def run_speculative(self, rounds: int) -> int:
        """Speculative rounds, the outcome of each fetched before the next."""
        for _ in range(rounds):
            self.state, packed = self.programs.speculative(
                self.params, state=self.state, drafts_BX=self.drafts_BX, live=LIVE
            )
            np.asarray(packed)
        return rounds

    def _start(self) -> DecodeState:
        rows = len(self.drafts_BX)
        return replace(
            self.state,
            length_B=jnp.full(rows, LENGTH, jnp.int32),
            last_B=jnp.zeros(rows, jnp.int32),
            room_B=jnp.full(rows, CAPACITY, jnp.int32),
            key_data_BW=jnp.arange(2 * rows, dtype=jnp.uint32).reshape(rows, 2),
        )


def measure(config: ModelConfig, rows: int, options: dict) -> dict[str, float]:
    """Milliseconds of each arm's round, and the ratios that matter."""
    arms = Arms(config, rows, options["draft"])
    seconds: dict[str, list[float]] = {name: [] for name in arms.calls}
    for repeat in range(1 + options["repeats"]):  # the first compiles
        for name, of in seconds.items():
            elapsed = arms.seconds(name)
            if repeat:
                of.append(elapsed)

    def ratios(one: str, other: str) -> list[float]:
        return [a / b for a, b in zip(seconds[one], seconds[other], strict=True)]

    same = ratios(AGAIN, PLAIN)
    return {
        **{f"{name.replace(' ', '_')}_ms": 1e3 * median(of) for name, of in seconds.items()},
        "plain_ratio": median(ratios(PLAIN, FORWARD)),
        "speculative_ratio": median(ratios(SPECULATIVE, LONG_FORWARD)),
        "same_least": min(same),
        "same_most": max(same),
    }


def show(figures: dict[str, dict[str, float]], options: dict) -> None:
    """The table."""
    table = Table(title=f"ms a round, K = {options['draft']}, {options['repeats']} repeats")
    heads = ("shape", "T = 1", "plain", "ratio", "A/A", "T = K + 1", "speculative", "ratio")
    for head in heads:
        table.add_column(head, justify="left" if head == "shape" else "right")
    for name, of in figures.items():
        table.add_row(
            name,
            f"{of['forward_ms']:.2f}",
            f"{of['plain_ms']:.2f}",
            f"{of['plain_ratio']:.2f}",
            f"{of['same_least']:.2f}-{of['same_most']:.2f}",
            f"{of['long_forward_ms']:.2f}",
            f"{of['speculative_ms']:.2f}",
            f"{of['speculative_ratio']:.2f}",
        )
    Console(width=120).print(table)


def chosen(names: str) -> dict[str, tuple[ModelConfig, tuple[int, ...]]]:
    """The named shapes and their numbers of rows; raises ValueError for another name."""
    unknown = set(names.split(",")) - SHAPES.keys()
    if unknown:
        raise ValueError(f"shapes: found {names}, allowed: {', '.join(SHAPES)}")
    return {name: SHAPES[name] for name in names.split(",")}


def main() -> None:
    """Measures, prints, and writes the figures where asked."""
    options = parse_options(sys.argv[1:], DEFAULTS)
    figures = {
        f"{shape}, {rows} rows": measure(config, rows, options)
        for shape, (config, row_counts) in chosen(options["shapes"]).items()
        for rows in row_counts
    }
    show(figures, options)
    if options["json"]:
        record = {"options": options, "arms": figures, **describe_environment(seed=0)}
        Path(options["json"]).write_text(json.dumps(json.loads(to_json(record)), indent=1) + "\n")


if __name__ == "__main__":
    use_compilation_cache()
    with fail_in_one_line():
        main()
