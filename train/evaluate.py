"""Held-out accuracy: `python train/evaluate.py RUN_OR_CHECKPOINT [key=value ...]`.

RUN is a run folder: its newest checkpoint is evaluated under its own configuration. CHECKPOINT is a
checkpoint folder, evaluated under the defaults. `key=value` changes an entry, e.g.
`evaluation.temperature=1.0` or `data.path=../shared/data/spider`.
"""

import sys
from dataclasses import replace
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from omegaconf import OmegaConf  # noqa: E402

from models.policy import Params  # noqa: E402
from train.checkpoints import Checkpoints  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.config import RunConfig  # noqa: E402
from train.config_file import flatten, load_config  # noqa: E402
from train.evaluation import Judge, outcomes  # noqa: E402
from train.metrics import wilson_interval  # noqa: E402
from train.tasks.registry import open_task  # noqa: E402
from train.trainer import Trainer  # noqa: E402
from train.workbench import Workbench, open_workbench  # noqa: E402


def evaluate_folder(folder: Path, overrides: list[str]) -> None:
    """Prints what is evaluated, and the accuracy on each held-out set with a 95 % interval."""
    stored = folder / "config.yaml"
    if stored.is_file():
        config = load_config(stored, overrides)
    elif (folder / "config.json").is_file():
        config = load_config(None, [f"model.checkpoint={folder}", *overrides])
    else:
        raise ValueError(
            f"{folder}: found neither config.yaml nor config.json, "
            "allowed: a run folder (config.yaml) or a checkpoint folder (config.json)"
        )
    source = "of the run" if stored.is_file() else "by default: a checkpoint names none"
    print(f"evaluating {folder} on {_subject(config, overrides, source)}")
    task = open_task(config)
    try:
        bench = open_workbench(config, task)
        if not any(bench.heldout.values()):
            raise ValueError(
                f"{config.data.path}: found no held-out prompts, allowed: data with some, such as "
                "a folder with train.jsonl and heldout_<name>.jsonl"
            )
        params = _newest(folder, config, bench) if stored.is_file() else bench.params
        scores = Judge(bench, config)(params)
        print("accuracy (Wilson's 95 % interval), items:")
        for name, right in outcomes(scores, task.accuracy_part).items():
            accuracy = sum(right) / len(right)
            low, high = wilson_interval(sum(right), len(right))
            print(f"{name}: {accuracy:.3f} ({low:.3f}-{high:.3f}), {len(right)} items")
    finally:
        task.close()


def _subject(config: RunConfig, overrides: list[str], source: str) -> str:
    """Task and data in words; `source` is where those come from that no override gives."""
    given = flatten(OmegaConf.from_dotlist(overrides))
    others = [key for key in ("task", "data.path") if key not in given]
    whence = f"{' and '.join(others)} {source}" if others else "as given"
    return f"task {config.task}, data {config.data.path} ({whence})"


def _newest(folder: Path, config: RunConfig, bench: Workbench) -> Params:
    # Only the shapes of its state are looked at; its slots may be the device's choice.
    config = replace(config, rollout=replace(config.rollout, slots=config.evaluation.slots))
    saved = Checkpoints(folder / "checkpoints").newest(Trainer(bench, config).state)
    if saved is None:
        raise ValueError(f"{folder}: found no checkpoint, allowed: a run that made one")
    return saved.state.params


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    use_compilation_cache()
    with fail_in_one_line():
        evaluate_folder(Path(sys.argv[1]), sys.argv[2:])
