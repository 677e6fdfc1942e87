"""The folder of a run: its configuration, its checkpoints, what evaluation found, a few samples.

A checkpoint is everything needed to go on exactly: parameters, optimizer, rollout history and the
next step. Data order and noise are pure functions of (seed, step), so the step stands for both.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from omegaconf import OmegaConf

from train.config import RunConfig, flatten, to_yaml
from train.learner import TrainState
from train.metrics import to_json, write_atomic

# What a resumed run may change: how long it goes on and how often it reports.
_FREE = ("train.steps", "train.epochs", "train.checkpoint_every", "train.keep_checkpoints")


class RunFolder:
    """Files of one run.

    Attributes:
        path: The folder.
    """

    def __init__(self, config: RunConfig) -> None:
        """Opens or makes the folder and stores the resolved configuration.

        Raises:
            ValueError: The folder holds a run of another configuration.
        """
        self.path = Path(config.out)
        self.path.mkdir(parents=True, exist_ok=True)
        text = to_yaml(config)
        stored = self.path / "config.yaml"
        if stored.exists():
            _refuse_other(stored, text)
        write_atomic(stored, text)
        self._manager = ocp.CheckpointManager(
            (self.path / "checkpoints").resolve(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=config.train.keep_checkpoints, enable_async_checkpointing=False
            ),
        )

    def save(self, next_step: int, state: TrainState, history: dict[str, np.ndarray]) -> None:
        """Writes the checkpoint from which step `next_step` can run."""
        self._manager.save(
            next_step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state), history=ocp.args.StandardSave(history)
            ),
        )

    def latest(self, like: TrainState) -> tuple[int, TrainState, dict[str, np.ndarray]] | None:
        """The newest checkpoint as (next step, state, history), or None.

        Args:
            like: A state of the same shapes; it is only looked at.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(target), history=ocp.args.StandardRestore()
            ),
        )
        return step, restored["state"], restored["history"]

    def close(self) -> None:
        """Waits for checkpoints being written."""
        self._manager.close()

    def write_json(self, name: str, value: Any) -> None:
        """Replaces a JSON file of the folder at once."""
        write_atomic(self.path / name, to_json(value, indent=1) + "\n")

    def read_json(self, name: str) -> Any:
        """A JSON file of the folder, or None."""
        path = self.path / name
        return json.loads(path.read_text()) if path.exists() else None


def _refuse_other(stored: Path, text: str) -> None:
    before, now = flatten(OmegaConf.load(stored)), flatten(OmegaConf.create(text))
    different = [
        f"{key}: {before.get(key)} -> {now.get(key)}"
        for key in sorted(before | now)
        if key not in _FREE and before.get(key) != now.get(key)
    ]
    if different:
        raise ValueError(
            f"{stored.parent}: found a run of another configuration ({'; '.join(different[:3])}), "
            "allowed: the same one, or another out="
        )
