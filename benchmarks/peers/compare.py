"""Rollouts a second against what a user would run instead: `make bench-peers`.

One checkpoint (SmolLM2-135M-Instruct), one set of prompts (text-to-SQL questions by its chat
template), this machine, sampling at temperature 1 from the whole vocabulary until the model stops:

- ours, plain and drafting, the latter after some epochs of the same prompts;
- `transformers` on PyTorch, `generate` plain, a group at a time, and with prompt look-up;
- the sampler of google-tunix on JAX, a group at a time.

Each runs in a process of its own that stays; one works at a time, in turns. Speeds are medians over
the repeats of ratios within one repeat. That all of them run the same model is seen first: their
greedy answers to the first prompt are compared.

    python benchmarks/peers/compare.py [arms=ours,hugging_face,tunix] [prompts=2] [group=8]
      [new_tokens=64] [temperature=0.4] [repeats=3] [epochs=4]
      [checkpoint=runs/checkpoints/smollm2_135m] [json=FILE]

At temperature 1 this small model says something else each time, and nothing can be drafted; a
policy that training has sharpened is more like itself at 0.4.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[0] = str(REPOSITORY)

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.options import parse_options  # noqa: E402
from benchmarks.peers.serving import Job  # noqa: E402
from models.exporting import export_checkpoint  # noqa: E402
from train.chat import open_codec  # noqa: E402
from train.command import fail_in_one_line  # noqa: E402
from train.config_file import load_config  # noqa: E402
from train.metrics import describe_environment, to_json  # noqa: E402
from train.prompts import encode_prompts  # noqa: E402
from train.tasks.registry import open_task  # noqa: E402

DEFAULTS = {
    "arms": "ours,hugging_face,tunix",
    "prompts": 2,
    "group": 8,
    "new_tokens": 64,
    "temperature": "0.4",
    "repeats": 3,
    "epochs": 4,
    "checkpoint": "runs/checkpoints/smollm2_135m",
    "json": "",
}
# Interpreters of the environments that `make bench-peers` makes.
PYTHONS = {
    "ours": ".venv/bin/python",
    "hugging_face": os.environ.get("HF_PYTHON", ".cache/parity/bin/python"),
    "tunix": os.environ.get("TUNIX_PYTHON", ".cache/tunix/bin/python"),
}
SCRIPTS = {"ours": "ours.py", "hugging_face": "hugging_face.py", "tunix": "tunix_sampler.py"}
LEARNS = "ours, drafting"  # the arm to which earlier jobs matter
REFERENCE = "ours, plain"
LONGEST_PROMPT = 256
LEAST_EQUAL = 8  # greedy tokens; later ones may part where rounding decides


class Peer:
    """A process that samples rollouts; see `serving`."""

    def __init__(self, name: str, *arguments: object) -> None:
        """Starts it, and waits until its model is loaded.

        Raises:
            ValueError: Its environment is not there, or it ended.
        """
        python = REPOSITORY / PYTHONS[name]
        if not python.exists():
            raise ValueError(f"{name}: found no {python}, allowed: after make bench-peers")
        script = REPOSITORY / "benchmarks" / "peers" / SCRIPTS[name]
        self._process = subprocess.Popen(
            [python, script, *map(str, arguments)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.name = name
        self.arms: list[str] = self._answer()["arms"]

    def run(self, job: Job) -> dict[str, Any]:
        """The answer to a job, see `serving.serve`."""
        assert self._process.stdin is not None
        self._process.stdin.write(job.to_line() + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            raise ValueError(f"{self.name}: found its process ended with status {status}")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process; it holds nothing that would be lost."""
        self._process.kill()
        self._process.wait()


def questions(checkpoint: str, count: int) -> tuple[list[list[int]], tuple[int, ...]]:
    """Token ids of the first prompts of our text-to-SQL set, and what ends an answer.

    Raises:
        ValueError: Fewer prompts than that fit.
    """
    config = load_config(None, [f"model.checkpoint={checkpoint}", "data.chat=true"])
    codec = open_codec(Path(checkpoint), config.data)
    task = open_task(config)
    try:
        prompts = encode_prompts(task, codec, task.train_items, LONGEST_PROMPT)[:count]
    finally:
        task.close()
    if len(prompts) < count:
        raise ValueError(f"prompts: found {count}, allowed: up to {len(prompts)}")
    return [prompt.tokens_P.tolist() for prompt in prompts], codec.stop_ids


def exported(checkpoint: str) -> Path:
    """The checkpoint as a Hugging Face folder in float32, made where it is not there yet."""
    folder = REPOSITORY / ".cache" / "peers" / Path(checkpoint).name
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        export_checkpoint(Path(checkpoint), folder, dtype="float32")
    return folder


def same_model(peers: Sequence[Peer], job: Job) -> dict[str, int]:
    """Tokens in which each peer's greedy answer to the first prompt begins as the first peer's.

    Raises:
        ValueError: One says something else from its first tokens on: another model.
    """
    greedy = replace(job, prompts=job.prompts[:1], group=1, temperature=0.0)
    said = {peer.name: peer.run(replace(greedy, arm=peer.arms[0]))["first"] for peer in peers}
    first = said[peers[0].name]
    equal = {name: _alike(first, other) for name, other in said.items()}
    for name, tokens in equal.items():
        if tokens < min(LEAST_EQUAL, len(first)):
            raise ValueError(f"{name}: found {tokens} equal greedy tokens, allowed: {LEAST_EQUAL}")
    return equal


def _alike(one: list[int], other: list[int]) -> int:
    """Tokens in which both begin alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def measure(peers: Sequence[Peer], job: Job, options: dict) -> dict[str, list[tuple[float, int]]]:
    """Seconds and tokens of each arm and repeat; every arm runs once before, unmeasured."""
    arms = [(peer, arm) for peer in peers for arm in peer.arms]
    measured: dict[str, list[tuple[float, int]]] = {arm: [] for _, arm in arms}
    for peer, arm in arms:
        for number in range(options["epochs"] if arm == LEARNS else 1):
            peer.run(replace(job, arm=arm, number=number))
    for repeat in range(options["repeats"]):
        for peer, arm in arms:
            answer = peer.run(replace(job, arm=arm, number=options["epochs"] + repeat))
            measured[arm].append((answer["seconds"], answer["tokens"]))
    return measured


def figures(measured: dict[str, list[tuple[float, int]]]) -> dict[str, dict[str, float]]:
    """Tokens a second of each arm, and beside the reference."""
    rates = {arm: [n / s for s, n in taken] for arm, taken in measured.items()}
    reference = rates.get(REFERENCE) or next(iter(rates.values()))
    table = {}
    for arm, rate in rates.items():
        ratios = [a / b for a, b in zip(rate, reference, strict=True)]
        table[arm] = {
            "tokens_per_s": median(rate),
            "least_tokens_per_s": min(rate),
            "most_tokens_per_s": max(rate),
            "tokens_a_job": median(n for _, n in measured[arm]),
            "speed": median(ratios),
            "speed_least": min(ratios),
            "speed_most": max(ratios),
        }
    return table


def show(table: dict[str, dict[str, float]], title: str) -> None:
    """One line an arm."""
    shown = Table(title=title)
    for head in ("", "tokens", "tokens/s", "least to most", f"{REFERENCE} = 1"):
        shown.add_column(head, justify="right" if head else "left")
    for arm, of in table.items():
        shown.add_row(
            arm,
            f"{of['tokens_a_job']:.0f}",
            f"{of['tokens_per_s']:.1f}",
            f"{of['least_tokens_per_s']:.1f}-{of['most_tokens_per_s']:.1f}",
            f"{of['speed']:.2f} ({of['speed_least']:.2f}-{of['speed_most']:.2f})",
        )
    Console(width=110).print(shown)


def start(name: str, options: dict) -> Peer:
    """The peer of that name, its model loaded.

    Raises:
        ValueError: Unknown name, or it does not start.
    """
    if name not in SCRIPTS:
        raise ValueError(f"arms: found {name}, allowed: {', '.join(SCRIPTS)}")
    checkpoint = options["checkpoint"]
    if name != "ours":
        return Peer(name, exported(checkpoint), LONGEST_PROMPT + options["new_tokens"])
    size = LONGEST_PROMPT, options["new_tokens"], options["temperature"]
    return Peer(name, checkpoint, options["group"], *size)


def main() -> None:
    """Measures, prints, and writes the figures where asked."""
    options = parse_options(sys.argv[1:], DEFAULTS)
    prompts, stop_ids = questions(options["checkpoint"], options["prompts"])
    temperature = float(options["temperature"])
    job = Job("", prompts, options["group"], options["new_tokens"], stop_ids, temperature, 0)
    peers: list[Peer] = []
    try:
        for name in options["arms"].split(","):
            peers.append(start(name, options))
        equal = same_model(peers, job)
        print("equal greedy tokens:", ", ".join(f"{name} {n}" for name, n in equal.items()))
        table = figures(measure(peers, job, options))
    finally:
        for peer in peers:
            peer.__exit__()
    size = f"{options['prompts']} prompts, {options['group']} rollouts each"
    how = f"{options['new_tokens']} tokens at most, temperature {temperature}"
    show(table, f"{Path(options['checkpoint']).name}, {size}, {how}")
    if options["json"]:
        record = {
            "options": options,
            "arms": table,
            "equal_greedy_tokens": equal,
            **describe_environment(seed=0),
        }
        Path(options["json"]).write_text(to_json(record, indent=1) + "\n")


if __name__ == "__main__":
    with fail_in_one_line():
        main()
