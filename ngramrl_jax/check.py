"""Are drafted rollouts really drawn from the policy? Evidence from this device, with a verdict.

`python -m ngramrl_jax.check` examines the built-in policies: one whose law is a table and a small
transformer with random weights, in float32 and bfloat16. From a checkout,
`python train/check.py CHECKPOINT` examines a checkpoint. Exit status: 0 if every check holds and
every planted fault was caught, 1 if not, 2 for a mistake in the command.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from ngramrl_jax.evidence.random_policy import RandomPolicy
from ngramrl_jax.evidence.report import as_json, show, write_json
from ngramrl_jax.evidence.subject import Effort, Subject
from ngramrl_jax.evidence.table_policy import TablePolicy, random_table
from ngramrl_jax.evidence.verdict import examine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import Sampling

_TABLE_VOCAB = 32


class Parser(argparse.ArgumentParser):
    """The options of both commands; a mistake is a `ValueError` of one line."""

    def __init__(self, usage: str | None = None) -> None:
        """`usage` is shown by `--help`."""
        super().__init__(
            description=usage or __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        effort = Effort()
        for field in fields(Effort):
            default = getattr(effort, field.name)
            self.add_argument(
                f"--{field.name}", type=type(default), default=default, help=f"default {default}"
            )
        self.add_argument("--seed", type=int, default=0, help="of all noise, default 0")
        self.add_argument("--json", type=Path, help="write all figures to this file")

    def error(self, message: str) -> NoReturn:
        """Instead of argparse's several lines."""
        raise ValueError(message)


def effort_of(options: argparse.Namespace) -> Effort:
    """What the options of `Parser` ask for."""
    return Effort(**{field.name: getattr(options, field.name) for field in fields(Effort)})


def run(subjects: Iterable[Subject], options: argparse.Namespace) -> int:
    """Examines the subjects, prints what was found and returns the exit status."""
    effort = effort_of(options)
    if options.json:
        write_json(options.json, "")  # better to find out now than after minutes
    wide = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    progress = Console(stderr=True, highlight=False)
    verdicts = []
    for subject in subjects:
        progress.print(f"{subject.name}, {subject.dtype}", style="dim")
        verdicts.append(examine(subject, effort, lambda doing: progress.print(f"  {doing}")))
        show(verdicts[-1], wide)
    status = int(any(verdict.conclusion != "lossless" for verdict in verdicts))
    if options.json:
        write_json(options.json, as_json(verdicts, effort, status))
    return status


def built_in(seed: int) -> list[Subject]:
    """The policies that need no checkpoint."""
    sampling = Sampling(temperature=0.9, top_p=0.95)
    table = TablePolicy(_TABLE_VOCAB)
    subjects = [
        Subject(
            "table policy",
            table,
            jnp.asarray(random_table(_TABLE_VOCAB, seed, spread=2.5)),
            _prompts(_TABLE_VOCAB, seed),
            _settings(sampling),
            seed=seed,
        )
    ]
    for dtype in ("float32", "bfloat16"):
        policy = RandomPolicy(dtype=jnp.dtype(dtype))
        subjects.append(
            Subject(
                "random transformer",
                policy,
                policy.init_params(jax.random.key(seed)),
                _prompts(policy.vocab_size, seed),
                _settings(Sampling()),
                dtype,
                seed,
            )
        )
    return subjects


def _prompts(vocab: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, vocab, rng.integers(3, 17), dtype=np.int32) for _ in range(256)]


def _settings(sampling: Sampling) -> EngineSettings:
    return EngineSettings(
        slots=32,
        draft_tokens=8,
        max_prompt_tokens=16,
        max_new_tokens=32,
        stop_ids=(0,),
        sampling=sampling,
    )


def main() -> int:
    """The command; returns its exit status."""
    try:
        options = Parser().parse_args()
        return run(built_in(options.seed), options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
