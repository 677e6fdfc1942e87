"""Make a starting checkpoint: `python train/sft.py [CONFIG] [key=value ...]`.

Supervised training from scratch. CONFIG is `configs/sft_tiny.yaml` by default. The checkpoint is
written to `model.checkpoint`, which must not exist; its tokenizer, architecture and length of
training are the `warm_start` section.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from train.command import main  # noqa: E402
from train.config import RunConfig  # noqa: E402
from train.tasks.registry import open_task  # noqa: E402
from train.warm_start import make_checkpoint  # noqa: E402


def sft(config: RunConfig) -> None:
    """Makes `model.checkpoint`."""
    task = open_task(config)
    try:
        make_checkpoint(config, task)
    finally:
        task.close()


if __name__ == "__main__":
    main(sft, "configs/sft_tiny.yaml", str(__doc__))
