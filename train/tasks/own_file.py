"""A user's own Python file, and the object in it that `path/to/file.py:Name` names."""

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any


def file_of(named: str) -> Path:
    """The file that `path/to/file.py:Name` names."""
    return Path(named.rpartition(":")[0])


def load_name(named: str) -> Any:
    """Runs the file and returns the object.

    The file may import its neighbours; where a name is taken by this project or a library, that
    one wins.

    Args:
        named: `path/to/file.py:Name`; the path is relative to the working folder.

    Raises:
        ValueError: No such file or name, or the file fails while it runs.
    """
    path, _, name = named.rpartition(":")
    file = Path(path).resolve()
    if not file.is_file():
        raise ValueError(f"task: found no file {path}, allowed: path/to/file.py:Name")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    spec = importlib.util.spec_from_file_location(f"own_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"task: found {path}, allowed: path/to/file.py:Name")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end the program
        raise ValueError(f"task: {path} cannot be loaded: {told(error, file)}") from error
    if not hasattr(module, name):
        known = ", ".join(key for key, value in vars(module).items() if _is_own(module, value))
        raise ValueError(f"task: found no {name!r} in {path}, allowed: {known or 'nothing there'}")
    return getattr(module, name)


def told(error: BaseException, file: Path) -> str:
    """An exception on one line, with the line of the user's file that it came through."""
    words = f"{type(error).__name__}: {' '.join(str(error).split())}"
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == file
    ]
    return f"{words} ({file.name}, line {lines[-1]})" if lines else words


def _is_own(module: Any, value: Any) -> bool:
    """Whether a class or function is defined in the module itself."""
    return callable(value) and getattr(value, "__module__", None) == module.__name__
