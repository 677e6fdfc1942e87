"""What a round of draft trees costs beside a round of chains of as many tokens.

    python benchmarks/tree_round.py [nodes=16] [slots=16] [repeats=40] [config=FILE]

Both put N + 1 tokens of every row through the policy (the embedded one by default); a tree adds its
mask, the walk and the compaction of the cache. The two take turns; printed are the medians and the
median of the quotients with its quartiles.
"""

import sys
from contextlib import closing
from pathlib import Path
from time import perf_counter

sys.path[0] = str(Path(__file__).resolve().parents[1])

import jax  # noqa: E402
import numpy as np  # noqa: E402

from ngramrl_jax.rollout.programs import Programs  # noqa: E402
from ngramrl_jax.rollout.round import DecodeRule  # noqa: E402
from ngramrl_jax.rollout.state import DecodeState, empty_state  # noqa: E402
from ngramrl_jax.rollout.wire import pack_drafts  # noqa: E402
from ngramrl_jax.types import Int32Array, Sampling  # noqa: E402
from train.command import fail_in_one_line  # noqa: E402
from train.config_file import load_config  # noqa: E402
from train.tasks.registry import open_task  # noqa: E402
from train.workbench import Workbench, open_workbench  # noqa: E402

CAPACITY = 256
LENGTH = 160


def columns(shape: str, slots: int, nodes: int, vocab: int) -> Int32Array:
    """Packed random drafts; trees have a chain of half the nodes and single nodes beside it."""
    rng = np.random.default_rng(0)
    tokens_BN = rng.integers(0, vocab, (slots, nodes), dtype=np.int32)
    count_B = np.full(slots, nodes, np.int32)
    if shape == "chain":
        return pack_drafts(tokens_BN, count_B)
    node_N = np.arange(nodes, dtype=np.int32)
    parent_N = np.where(node_N < nodes // 2, node_N, node_N - nodes // 2)
    parent_BN = np.broadcast_to(parent_N, (slots, nodes))
    return pack_drafts(np.concatenate([tokens_BN, parent_BN], axis=1), count_B)


def running(state: DecodeState) -> DecodeState:
    """All rows in the middle of a response."""
    fields = {name: getattr(state, name) for name in ("last_B", "key_data_BW", "cache")}
    return DecodeState(
        length_B=state.length_B * 0 + LENGTH, room_B=state.room_B * 0 + CAPACITY, **fields
    )


def measure(bench: Workbench, slots: int, nodes: int, repeats: int) -> dict[str, np.ndarray]:
    """Seconds of each round, by shape."""
    states, programs = {}, {}
    for shape in ("chain", "tree"):
        rule = DecodeRule(Sampling(), (0,), best_tokens=8, draft_shape=shape)
        programs[shape] = Programs(bench.policy, rule, plain_rounds=1, draft_tokens=nodes)
        states[shape] = empty_state(bench.policy, slots, CAPACITY)
    seconds: dict[str, list[float]] = {"chain": [], "tree": []}
    for repeat in range(repeats + 2):  # the first two compile and warm up
        for shape, of_shape in seconds.items():
            drafts_BX = columns(shape, slots, nodes, bench.policy.vocab_size)
            state = jax.block_until_ready(running(states[shape]))
            began = perf_counter()
            states[shape], packed = programs[shape].speculative(
                bench.params, state=state, drafts_BX=drafts_BX, live=CAPACITY
            )
            jax.block_until_ready((states[shape], packed))
            if repeat >= 2:
                of_shape.append(perf_counter() - began)
    return {shape: np.array(of_shape) for shape, of_shape in seconds.items()}


def main() -> None:
    """Measures and prints."""
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    nodes, slots = int(given.get("nodes", 16)), int(given.get("slots", 16))
    config = load_config(Path(given["config"]) if "config" in given else None)
    with closing(open_task(config)) as task:
        bench = open_workbench(config, task)
        found = measure(bench, slots, nodes, int(given.get("repeats", 40)))
    low, middle, high = np.percentile(found["tree"] / found["chain"], [25, 50, 75])
    medians = ", ".join(f"{shape} {1e3 * np.median(s):.2f} ms" for shape, s in found.items())
    print(
        f"{slots} rows, {nodes} draft tokens, {LENGTH} tokens of text: {medians}; "
        f"a tree takes {middle:.3f} times as long as a chain ({low:.3f} to {high:.3f})"
    )


if __name__ == "__main__":
    with fail_in_one_line():
        main()
