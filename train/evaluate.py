"""Held-out accuracy: `python train/evaluate.py RUN_OR_CHECKPOINT [key=value ...]`.

RUN is a run folder: its newest checkpoint is evaluated under its own configuration. CHECKPOINT is a
checkpoint folder, evaluated under the defaults. `key=value` changes an entry, e.g.
`evaluation.temperature=1.0` or `data.path=../shared/data/spider`.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.policy import Params  # noqa: E402
from train.checkpoints import Checkpoints  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.config import RunConfig, load_config  # noqa: E402
from train.evaluation import Judge, outcomes  # noqa: E402
from train.tasks.registry import open_task  # noqa: E402
from train.trainer import Trainer  # noqa: E402
from train.workbench import Workbench, open_workbench  # noqa: E402


def evaluate_folder(folder: Path, overrides: list[str]) -> None:
    """Prints the accuracy on each held-out set with a 95 % interval."""
    stored = folder / "config.yaml"
    if stored.is_file():
        config = load_config(stored, overrides)
    elif (folder / "config.json").is_file():
        config = load_config(None, [f"model.checkpoint={folder}", *overrides])
    else:
        raise ValueError(f"{folder}: found neither, allowed: a run folder or a checkpoint folder")
    task = open_task(config)
    try:
        bench = open_workbench(config, task)
        if not any(bench.heldout.values()):
            raise ValueError(f"{config.data.path}: found no held-out prompts, allowed: some")
        params = _newest(folder, config, bench) if stored.is_file() else bench.params
        scores = Judge(bench, config)(params)
        for name, right in outcomes(scores, task.accuracy_part).items():
            accuracy = sum(right) / len(right)
            half = 1.96 * (accuracy * (1 - accuracy) / len(right)) ** 0.5
            print(f"{name}: {accuracy:.3f} ± {half:.3f} ({len(right)} items)")
    finally:
        task.close()


def _newest(folder: Path, config: RunConfig, bench: Workbench) -> Params:
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
