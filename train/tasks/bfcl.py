"""BFCL's single-turn Python categories, read where they lie.

The benchmark's folder (`bfcl_eval/data` in the `bfcl-eval` wheel), or the wheel itself, which is a
ZIP archive: `pip download bfcl-eval --no-deps` gets it, nothing of it is installed or imported.
Questions and functions stand in `BFCL_v4_<category>.json`, accepted calls in a file of the same
name under `possible_answer`; both are JSON lines in the same order.
"""

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.rewards.calls import PYTHON_TYPES, ExpectedCall, Function, Parameter
from train.tasks.records import json_lines, read_text

CATEGORIES = ("simple_python", "multiple", "parallel")


@dataclass(frozen=True)
class CallExample:
    """Payload of an item: a question, the functions on offer and the expected calls."""

    id: str
    question: str
    functions: tuple[Function, ...]
    expected: tuple[ExpectedCall, ...]


def read_bfcl(path: Path) -> list[CallExample]:
    """All examples, category by category, in the order of the files.

    Args:
        path: The folder or the wheel.

    Raises:
        ValueError: A file or a field is missing or broken.
    """
    folder = _folder(path)
    return [example for category in CATEGORIES for example in _category(folder, category)]


def _folder(path: Path) -> Path | zipfile.Path:
    if path.suffix == ".whl":
        try:
            return zipfile.Path(path, "bfcl_eval/data/")
        except (OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: found {error}, allowed: the bfcl-eval wheel") from error
    if not path.is_dir():
        raise ValueError(f"BFCL data {path}: found no such folder, allowed: a folder or a wheel")
    return path


def _category(folder: Path | zipfile.Path, category: str) -> Iterator[CallExample]:
    name = f"BFCL_v4_{category}.json"
    asked, answered = (
        list(json_lines(str(file), read_text(file)))
        for file in (folder / name, folder / "possible_answer" / name)
    )
    if len(asked) != len(answered):
        found = f"{len(asked)} questions and {len(answered)} answers"
        raise ValueError(f"{folder / name}: found {found}, allowed: as many of both")
    for (place, question), (_, answer) in zip(asked, answered, strict=True):
        yield _example(place, question, answer)


def _example(place: str, question: object, answer: object) -> CallExample:
    match question, answer:
        case (
            {
                "id": str(id_),
                "question": [[{"role": "user", "content": str(content)}]],
                "function": [_, *_] as documents,
            },
            {"id": answer_id, "ground_truth": [_, *_] as calls},
        ) if id_ == answer_id:
            functions = {one.name: one for one in (_function(place, each) for each in documents)}
            expected = tuple(_expected(place, call, functions) for call in calls)
            return CallExample(id_, content, tuple(functions.values()), expected)
    raise _broken(place, "another record", "a question of one turn, and its accepted calls")


def _function(place: str, document: Any) -> Function:
    match document:
        case {"name": str(name), "parameters": {"properties": dict(properties), **schema}}:
            required = schema.get("required", [])
            return Function(
                name,
                {
                    key: _parameter(place, f"{name}, {key}", value, key in required)
                    for key, value in properties.items()
                },
            )
    raise _broken(place, f"{document!r:.60}", "a function with a name and parameters")


def _parameter(place: str, name: str, schema: Any, required: bool) -> Parameter:
    match schema:
        case {"type": "array" | "tuple" as kind, "items": {"type": str(inner), **rest}}:
            choices = rest.get("enum", ())
        case {"type": str(kind), **rest}:
            inner, choices = None, rest.get("enum", ())
        case _:
            raise _broken(place, f"{name}: {schema!r:.60}", "a type")
    for one in (kind, inner):
        if one is not None and one not in PYTHON_TYPES:
            raise _broken(place, f"{name} of type {one}", ", ".join(PYTHON_TYPES))
    return Parameter(kind, inner, required, tuple(map(str, choices)))


def _expected(place: str, call: Any, functions: Mapping[str, Function]) -> ExpectedCall:
    if isinstance(call, dict) and len(call) == 1:
        ((name, accepted),) = call.items()
        lists = isinstance(accepted, dict) and all(isinstance(v, list) for v in accepted.values())
        if name in functions and lists:
            return ExpectedCall(functions[name], accepted)
    raise _broken(
        place, f"answer {call!r:.60}", "a call of its functions, each argument with a list"
    )


def _broken(place: str, found: str, allowed: str) -> ValueError:
    return ValueError(f"{place}: found {found}, allowed: {allowed}")
