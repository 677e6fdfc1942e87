"""The `name=value` options that the benchmark commands share."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def parse_options(arguments: Sequence[str], defaults: Mapping[str, int | str]) -> dict:
    """Options of a command line: whole numbers from 1 on, or words where the default is one.

    `json` is a file to be written.

    Raises:
        ValueError: Unknown option, a value that is not a positive number, or no folder to write to.
    """
    options: dict = dict(defaults)
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in defaults:
            raise ValueError(f"option: found {argument!r}, allowed: {', '.join(defaults)}")
        word = isinstance(defaults[name], str)
        if not word and not (value.isdigit() and int(value)):
            raise ValueError(f"{name}: found {value!r}, allowed: 1 or more")
        options[name] = value if word else int(value)
    folder = Path(options["json"]).parent
    if not folder.is_dir():
        raise ValueError(f"json: found no folder {folder}, allowed: a file in one that exists")
    return options
