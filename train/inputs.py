"""Whether the files that a run reads are those that it began with.

A run may go on with a mended reward or with other prompts, so a change is told, not refused.
"""

import hashlib
from pathlib import Path
from typing import Any

from train.config import RunConfig
from train.run_folder import RunFolder
from train.tasks.own_file import file_of

FILE = "inputs.json"


def input_files(config: RunConfig) -> list[Path]:
    """A user's task file and the prompts: `data.path`, or the JSON files that lie in it."""
    files = [file_of(config.task)] if ".py:" in config.task else []
    data = Path(config.data.path)
    if data.is_dir():
        files += sorted(path for path in data.iterdir() if path.suffix in (".json", ".jsonl"))
    elif data.is_file():
        files.append(data)
    return files


def note_inputs(folder: RunFolder, config: RunConfig) -> list[str]:
    """Stores what the files hold now; the names of those that held something else before."""
    before: dict[str, Any] = folder.read_json(FILE) or {}
    now = {str(path): _digest(path) for path in input_files(config)}
    folder.write_json(FILE, now)
    return [name for name in now if before.get(name, now[name]) != now[name]]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
