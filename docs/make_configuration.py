"""Writes the part of `configuration.md` below its mark: `make docs`.

Every configuration key with its type, its default and what it means, from the dataclasses of
`train/config.py` and their docstrings. What stands above the mark is written by hand.
"""

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType
from typing import Any, get_args

sys.path[0] = str(Path(__file__).resolve().parents[1])

from train.config import RunConfig  # noqa: E402

PAGE = Path(__file__).with_name("configuration.md")
MARK = "<!-- Below: written by `make docs` from train/config.py. -->\n"


def meanings(section: type) -> dict[str, str]:
    """What the docstring of a dataclass says of each attribute, on one line."""
    _, _, listed = inspect.cleandoc(section.__doc__ or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", listed, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def page(handwritten: str) -> str:
    """The whole page; all of `handwritten` up to the mark is kept."""
    above = handwritten.partition(MARK)[0]
    return above + MARK + "".join(_sections(RunConfig()))


def _sections(config: RunConfig) -> Iterator[str]:
    plain = [f for f in dataclasses.fields(config) if not _is_section(getattr(config, f.name))]
    yield from _table("The run", config, [field.name for field in plain], "")
    for field in dataclasses.fields(config):
        section = getattr(config, field.name)
        if _is_section(section):
            names = [entry.name for entry in dataclasses.fields(section)]
            yield from _table(f"`{field.name}`", section, names, f"{field.name}.")


def _table(title: str, section: Any, names: list[str], prefix: str) -> Iterator[str]:
    types = {field.name: field.type for field in dataclasses.fields(section)}
    said = meanings(type(section))
    summary = (type(section).__doc__ or "").splitlines()[0]
    yield f"\n## {title}\n\n{summary}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
    for name in names:
        default = json.dumps(getattr(section, name))
        yield f"| `{prefix}{name}` | {_type(types[name])} | `{default}` | {said[name]} |\n"


def _type(annotation: Any) -> str:
    kinds = get_args(annotation) or (annotation,)
    return " or ".join("null" if kind is NoneType else kind.__name__ for kind in kinds)


def _is_section(value: Any) -> bool:
    return dataclasses.is_dataclass(value)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
