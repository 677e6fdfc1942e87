"""Weights & Biases, for those who keep their runs there: an option, never a need."""

import importlib
from collections.abc import Mapping
from types import ModuleType, TracebackType
from typing import Any, Self

from train.config import WandbSection
from train.metrics import Row
from train.run_folder import RunFolder

FILE = "wandb.json"
MODES = ("online", "offline")


class Tracker:
    """Sends the rows of a run; does nothing where there is nobody to send them to."""

    def __init__(self, run: Any = None) -> None:
        """`run` is a `wandb` run, finished on leaving the context."""
        self._run = run

    def log(self, row: Row) -> None:
        """Sends the numbers of one step; vectors become one number an index."""
        if self._run is None:
            return
        flat = {}
        for name, value in row.items():
            values = enumerate(value) if isinstance(value, list) else [(None, value)]
            for i, item in values:
                if isinstance(item, int | float):
                    flat[name if i is None else f"{name}/{i:02d}"] = item
        self._run.log(flat, step=row["step"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if kind is None else 1)


def open_tracker(section: WandbSection, folder: RunFolder, config: Mapping[str, Any]) -> Tracker:
    """The tracker of a run; a run that is resumed goes on under its id, kept in `wandb.json`.

    Raises:
        ValueError: `wandb` is asked for and not installed, or the mode is unknown.
    """
    if not section.project:
        return Tracker()
    if section.mode not in MODES:
        raise ValueError(f"wandb.mode: found {section.mode}, allowed: {', '.join(MODES)}")
    known = folder.read_json(FILE) or {}
    run = _wandb().init(
        project=section.project,
        name=folder.path.name,
        id=known.get("id"),
        resume="allow",
        dir=str(folder.path),
        mode=section.mode,
        config=dict(config),
    )
    folder.write_json(FILE, {"id": run.id})
    return Tracker(run)


def _wandb() -> ModuleType:
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise ValueError(
            "wandb.project: found no package wandb, allowed: empty, or pip install wandb"
        ) from None
