"""Data files as records, and the choice of some of the items made of them."""

import hashlib
import heapq
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from train.tasks.base import Item


def read_records(file: Path) -> Iterator[tuple[str, object]]:
    """Every record of a file of JSON lines, or of one JSON array (`.json`), and where it stands.

    Raises:
        ValueError: The file cannot be read, or holds something else.
    """
    text = read_text(file)
    if file.suffix == ".json":
        records = _parse(str(file), text)
        if not isinstance(records, list):
            found = type(records).__name__
            raise ValueError(f"{file}: found a JSON {found}, allowed: a JSON array")
        yield from ((f"{file}, item {number}", r) for number, r in enumerate(records, start=1))
    else:
        yield from json_lines(str(file), text)


def read_text(file: Path | zipfile.Path) -> str:
    """The text of a file, which may lie in a ZIP archive.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError, KeyError) as error:  # KeyError: no such member of an archive
        raise ValueError(f"{file}: found {error}, allowed: a readable UTF-8 file") from error


def json_lines(name: str, text: str) -> Iterator[tuple[str, object]]:
    """Every record of the text of a file of JSON lines, and where it stands.

    Raises:
        ValueError: A line is no JSON.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            place = f"{name}, line {number}"
            yield place, _parse(place, line)


def choose(items: list[Item], limit: int, seed: int, text: Callable[[Item], str]) -> list[Item]:
    """`limit` of the items, the same ones in whatever order the file lists them; 0 keeps all.

    Args:
        items: In the order of their indices.
        limit: Items at most.
        seed: Another one chooses other items.
        text: What tells an item from the others.
    """
    if not limit:
        return items

    def rank(item: Item) -> bytes:
        return hashlib.blake2b(f"{seed}\0{text(item)}".encode(errors="surrogatepass")).digest()

    return sorted(heapq.nsmallest(limit, items, key=rank), key=lambda item: item.index)


def _parse(place: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place}: found {error} in {text[:40]!r}, allowed: JSON") from error
