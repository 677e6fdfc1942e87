"""The folder of a run: its configuration, its checkpoints, what evaluation found, a few samples."""

import errno
import json
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from train.checkpoints import Checkpoints
from train.config import RunConfig
from train.config_file import flatten, load_config, to_yaml
from train.metrics import to_json, write_atomic

# What a resumed run may change: how long it goes on, how it is watched, saved and placed.
_FREE = {
    f"train.{name}"
    for name in (
        "steps",
        "epochs",
        "checkpoint_every",
        "keep_checkpoints",
        "keep_best",
        "max_refused",
        "stuck_after_s",
    )
} | {"trace.enabled", "trace.max_mb", "wandb.project", "wandb.mode"}
_FREE_SECTIONS = ("mesh.", "distributed.")
# Errors of the file system that are no fault of the path given.
_NO_MISTAKE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


class RunFolder:
    """Files of one run.

    Attributes:
        path: The folder.
        checkpoints: Those of the run.
        traces: Folder of the rollout trace.
    """

    def __init__(self, config: RunConfig) -> None:
        """Names the folder; nothing is made yet.

        Raises:
            ValueError: The folder holds a run of another configuration.
        """
        self.path = Path(config.out)
        self.checkpoints = Checkpoints(
            self.path / "checkpoints", config.train.keep_checkpoints, config.train.keep_best
        )
        self.traces = self.path / "traces"
        self._text = to_yaml(config)
        self._stored = self.path / "config.yaml"
        if self._stored.exists():
            _refuse_other(self._stored, self._text)

    def create(self) -> None:
        """Makes the folder, once all else is known to be good, and stores the configuration.

        Raises:
            ValueError: It cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomic(self._stored, self._text)
        except OSError as error:
            if error.errno in _NO_MISTAKE:
                raise
            raise ValueError(
                f"out: found {self.path}: {error.strerror}, allowed: a folder"
            ) from error

    def write_json(self, name: str, value: Any) -> None:
        """Replaces a JSON file of the folder at once."""
        write_atomic(self.path / name, to_json(value, indent=1) + "\n")

    def read_json(self, name: str) -> Any:
        """A JSON file of the folder, or None."""
        path = self.path / name
        return json.loads(path.read_text()) if path.exists() else None


def _refuse_other(stored: Path, text: str) -> None:
    # Read as a configuration: a run made before an entry existed had its default.
    before, now = (flatten(OmegaConf.create(one)) for one in (to_yaml(load_config(stored)), text))
    different = [
        f"{key}: {before.get(key)} -> {now.get(key)}"
        for key in sorted(before | now)
        if key not in _FREE
        and not key.startswith(_FREE_SECTIONS)
        and before.get(key) != now.get(key)
    ]
    if different:
        raise ValueError(
            f"{stored.parent}: found a run of another configuration ({'; '.join(different[:3])}), "
            "allowed: the same one, or another out="
        )
