"""Memory and operations of a run, before there is a device: `make plan CONFIG=... [ARGS=...]`.

`python train/plan.py CONFIG [memory=GB] [key=value ...]` compiles rollout round and update for the
configuration's mesh on virtual CPU devices, without weights, and says what each device must hold
and whether that fits: `memory=80` is an H100 or A100, 141 an H200, 95 a TPU v5p, 32 a TPU v6e. The
architecture is that of the checkpoint, or where that is not there yet, the preset that its folder
is named after. Exit status 1: it does not fit. What is temporary is an upper bound. With
`rollout.slots=0` it says how many slots a run would take on such a device.
"""

import os
import sys
from math import prod
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.config import PRESETS, ModelConfig  # noqa: E402
from train.config import RunConfig  # noqa: E402
from train.config_file import load_config  # noqa: E402
from train.ending import fail_in_one_line  # noqa: E402

GB = 10**9
DEFAULT_GB = 80


def main(arguments: list[str]) -> int:
    """Prints the plan; the exit status."""
    path, rest = Path(arguments[0]), arguments[1:]
    given = [word.removeprefix("memory=") for word in rest if word.startswith("memory=")]
    config = load_config(path, [word for word in rest if not word.startswith("memory=")])
    limit = _gigabytes(given[-1] if given else str(DEFAULT_GB))
    _virtual_devices(config)

    from train.planning import make_plan  # only now: jax counts its devices once
    from train.report_plan import describe
    from train.slots import with_slots

    model = _architecture(config)
    plan = make_plan(with_slots(config, model, limit * GB), model)
    print(describe(plan, limit * GB))
    return int(plan.peak > limit * GB)


def _gigabytes(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"memory: found {text}, allowed: gigabytes of one device, e.g. 80")
    return int(text)


def _virtual_devices(config: RunConfig) -> None:
    devices = prod((config.mesh.data, config.mesh.fsdp, config.mesh.tensor))
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"


def _architecture(config: RunConfig) -> ModelConfig:
    folder = Path(config.model.checkpoint)
    if (folder / "config.json").is_file():
        return ModelConfig.from_json(folder / "config.json")
    if folder.name not in PRESETS:
        raise ValueError(
            f"model.checkpoint: found no {folder}/config.json, allowed: a checkpoint, or a folder "
            f"named after one of {', '.join(PRESETS)}"
        )
    return PRESETS[folder.name]


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if len(sys.argv) > 1 else 2)
    with fail_in_one_line():
        sys.exit(main(sys.argv[1:]))
