"""Are rollouts really drawn from your policy? `python train/check.py CHECKPOINT [key=value ...]`.

CHECKPOINT is a checkpoint folder; `key=value` changes an entry of the configuration that it is
sampled with, e.g. `rollout.temperature=0.8`, `model.dtype=bfloat16`, `data.path=...` or
`task=my_task.py:Name`. The prompts are training prompts of the task. Exit status: 0 if every check
holds and every planted fault was caught, 1 if not, 2 for a mistake in the command.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

# Python puts this file's own folder first, where `train` would mean `train/train.py`.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from ngramrl_jax.check import Parser, effort_of, run  # noqa: E402
from ngramrl_jax.evidence.subject import Subject  # noqa: E402
from train.command import use_compilation_cache  # noqa: E402
from train.config import RunConfig  # noqa: E402
from train.config_file import load_config  # noqa: E402
from train.ending import fail_in_one_line  # noqa: E402
from train.tasks.registry import open_task  # noqa: E402
from train.workbench import engine_settings, open_workbench  # noqa: E402


def check(arguments: Sequence[str]) -> int:
    """Examines a checkpoint; returns the exit status."""
    parser = Parser(__doc__)
    parser.add_argument("checkpoint", help="a checkpoint folder")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_intermixed_args(arguments)
    folder = options.checkpoint
    if not (Path(folder) / "config.json").is_file():
        raise ValueError(f"{folder}: found no config.json, allowed: a checkpoint folder")
    overrides = [f"model.checkpoint={folder}", *options.overrides]
    return run([_subject(load_config(None, overrides), options)], options)


def _subject(config: RunConfig, options: argparse.Namespace) -> Subject:
    """The configured policy with prompts from all over the training set."""
    with closing(open_task(config)) as task:
        bench = open_workbench(config, task)
    wanted = effort_of(options).prompts
    prompts = [prompt.tokens_P for prompt in bench.train]
    return Subject(
        name=config.model.checkpoint,
        policy=bench.policy,
        params=bench.params,
        prompts=prompts[:: max(1, len(prompts) // wanted)],
        settings=engine_settings(bench.codec, config.rollout),
        dtype=config.model.dtype,
        seed=options.seed,
    )


if __name__ == "__main__":
    use_compilation_cache()
    with fail_in_one_line():
        sys.exit(check(sys.argv[1:]))
