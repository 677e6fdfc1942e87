"""Text-to-SQL: a schema and a question in, one SQLite query out, rewarded by running it.

Two layouts of folder are read, told apart by the file of the training part:

    train.jsonl        test.jsonl or heldout_<set>.jsonl   databases/<name>.sqlite
    train_spider.json  dev.json                            database/<name>/<name>.sqlite

The first is that of the embedded data and of Spider as JSON lines, the second is Spider as the
benchmark publishes it.
"""

import hashlib
import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from train.rewards.sandbox import Limits
from train.rewards.sql import SqlJob, SqlReward
from train.tasks.base import Item, Score
from train.tasks.schema import render_schema

SQLITE_HEADER = b"SQLite format 3\0"


@dataclass(frozen=True)
class SqlExample:
    """Payload of an item: a question to a database and its gold query."""

    database: str
    question: str
    query: str


@dataclass(frozen=True)
class Layout:
    """How one kind of folder is read.

    Attributes:
        train: Path of the training part.
        heldout: Path of each held-out set, by its name.
        database_path: The SQLite file of a database's name.
        fields: The names that the files give to the fields of `SqlExample`.
    """

    train: Path
    heldout: Mapping[str, Path]
    database_path: Callable[[str], Path]
    fields: tuple[str, str, str]


class TextToSql:
    """The text-to-SQL task over one folder.

    Args:
        path: The folder, in one of the two layouts.
        train_limit: Training items at most; 0 keeps all.
        heldout_limit: Items of each held-out set at most; 0 keeps all.
        seed: Chooses the items under a limit, whatever their order in the files.
        run_credit: Reward of a query that runs but does not match.
        workers: Processes that run queries; they start with the first score.
        limits: Bounds of every query.

    Attributes:
        accuracy_part: The result of the response equals the gold query's.
        train_items: In the order of the file.
        heldout: Sets by name: what stands between `heldout_` and `.jsonl`, `test`, or `dev`.

    Raises:
        ValueError: The folder, one of its lines, a field or a database is missing or broken.
    """

    accuracy_part = "execution_match"

    def __init__(
        self,
        path: str | Path,
        *,
        train_limit: int = 0,
        heldout_limit: int = 0,
        seed: int = 0,
        run_credit: float = 0.1,
        workers: int = 2,
        limits: Limits | None = None,
    ) -> None:
        if min(train_limit, heldout_limit) < 0:
            found = f"{train_limit}, {heldout_limit}"
            raise ValueError(f"train_limit, heldout_limit: found {found}, allowed: 0 (all) or more")
        layout = _layout(Path(path).resolve())
        parts: dict[str, list[Item]] = {}
        count = 0
        for name, file in {"": layout.train, **layout.heldout}.items():
            examples = list(_examples(file, layout.fields))
            parts[name] = [Item(count + i, example) for i, example in enumerate(examples)]
            count += len(examples)
        if not parts[""]:
            raise ValueError(f"{layout.train}: found no items, allowed: one or more")
        self._databases = _databases(layout, parts)
        self.train_items: Sequence[Item] = _chosen(parts.pop(""), train_limit, seed)
        self.heldout: Mapping[str, Sequence[Item]] = {
            name: _chosen(items, heldout_limit, seed) for name, items in parts.items()
        }
        self._schemas: dict[str, str] = {}
        self._reward = SqlReward(run_credit=run_credit, workers=workers, limits=limits)

    def prompt(self, item: Item) -> str:
        """The schema and the question, up to where the query begins."""
        example: SqlExample = item.payload
        if example.database not in self._schemas:
            self._schemas[example.database] = render_schema(self._databases[example.database])
        schema = self._schemas[example.database]
        return f"<|schema|>{schema}<|question|>{example.question}<|sql|>"

    def response(self, item: Item) -> str:
        """The gold query."""
        query: str = item.payload.query
        return query

    def score(self, items: Sequence[Item], texts: Sequence[str]) -> list[Score]:
        """Runs the responses; white space around and one `;` do not count.

        Parts: `execution_match`, `runs`; faults: `killed`, `gold_failed` (see `SqlReward`).
        """
        return self._reward(
            [
                SqlJob(
                    str(self._databases[item.payload.database]),
                    item.payload.query,
                    text,
                )
                for item, text in zip(items, texts, strict=True)
            ]
        )

    def close(self) -> None:
        """Ends the worker processes."""
        self._reward.close()


def _layout(folder: Path) -> Layout:
    if (folder / "train_spider.json").is_file():
        return Layout(
            train=folder / "train_spider.json",
            heldout={"dev": folder / "dev.json"},
            database_path=lambda name: folder / "database" / name / f"{name}.sqlite",
            fields=("db_id", "question", "query"),
        )
    if (folder / "train.jsonl").is_file():
        heldout = [*sorted(folder.glob("heldout_*.jsonl")), *folder.glob("test.jsonl")]
        return Layout(
            train=folder / "train.jsonl",
            heldout={file.stem.removeprefix("heldout_"): file for file in heldout},
            database_path=lambda name: folder / "databases" / f"{name}.sqlite",
            fields=("database", "question", "query"),
        )
    found = "a folder without them" if folder.is_dir() else "no such folder"
    allowed = "a folder with train.jsonl or train_spider.json"
    raise ValueError(f"text-to-SQL data {folder}: found {found}, allowed: {allowed}")


def _examples(file: Path, fields: tuple[str, str, str]) -> Iterator[SqlExample]:
    for place, record in _records(file):
        values = [record.get(field) if isinstance(record, dict) else None for field in fields]
        for field, value in zip(fields, values, strict=True):
            if not isinstance(value, str) or not value.strip():
                found = f"no {field}" if value is None else f"{field} = {value!r}"
                allowed = f"an object with the texts {', '.join(fields)}"
                raise ValueError(f"{place}: found {found}, allowed: {allowed}")
        yield SqlExample(*map(str, values))


def _records(file: Path) -> Iterator[tuple[str, object]]:
    """Every record of a file of JSON lines or of one JSON array, and where it stands."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{file}: found {error}, allowed: a readable UTF-8 file") from error
    if file.suffix == ".json":
        records = _parse(str(file), text)
        if not isinstance(records, list):
            found = type(records).__name__
            raise ValueError(f"{file}: found a JSON {found}, allowed: a JSON array")
        yield from ((f"{file}, item {number}", r) for number, r in enumerate(records, start=1))
    else:
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                place = f"{file}, line {number}"
                yield place, _parse(place, line)


def _parse(place: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place}: found {error} in {text[:40]!r}, allowed: JSON") from error


def _databases(layout: Layout, parts: Mapping[str, Sequence[Item]]) -> dict[str, Path]:
    """The file of every database that an item names, checked to be one."""
    names = sorted({item.payload.database for items in parts.values() for item in items})
    paths = {name: layout.database_path(name) for name in names}
    for name, path in paths.items():
        found = "no file" if not path.is_file() else "no SQLite file"
        if not path.is_file() or not _is_sqlite(path):
            raise ValueError(f"database {name}: found {found} at {path}, allowed: a SQLite file")
    return paths


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE_HEADER)) == SQLITE_HEADER


def _chosen(items: list[Item], limit: int, seed: int) -> list[Item]:
    """`limit` of the items, the same ones in whatever order the file lists them."""
    if not limit:
        return items

    def rank(item: Item) -> bytes:
        example: SqlExample = item.payload
        text = "\0".join([str(seed), example.database, example.question, example.query])
        return hashlib.blake2b(text.encode()).digest()

    return sorted(heapq.nsmallest(limit, items, key=rank), key=lambda item: item.index)
