"""Text-to-SQL: a schema and a question in, one SQLite query out, rewarded by running it.

Two layouts of folder are read, told apart by the file of the training part:

    train.jsonl        test.jsonl or heldout_<set>.jsonl   databases/<name>.sqlite
    train_spider.json  dev.json                            database/<name>/<name>.sqlite

The first is that of the embedded data and of Spider as JSON lines, the second is Spider as the
benchmark publishes it. Beside `train.jsonl` there may be `warm_start.jsonl`, for supervised
training alone. Its queries are never run, so it needs no database: a line holds the text of a
schema and pairs of question and query, `{"schema": "...", "examples": [["...", "..."], ...]}`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from train.rewards.sandbox import Limits
from train.rewards.sql import SqlJob, SqlReward
from train.tasks import sql_chat
from train.tasks.base import Item, Score
from train.tasks.records import choose, read_records
from train.tasks.schema import render_schema

SQLITE_HEADER = b"SQLite format 3\0"


@dataclass(frozen=True)
class SqlExample:
    """Payload of an item: a question to a database and its gold query.

    An example for supervised training alone has no database; it states the schema instead.
    """

    database: str
    question: str
    query: str
    schema: str = ""


@dataclass(frozen=True)
class Layout:
    """How one kind of folder is read.

    Attributes:
        train: Path of the training part.
        heldout: Path of each held-out set, by its name.
        warm_start: Path of the examples for supervised training alone, if there are any.
        database_path: The SQLite file of a database's name.
        fields: The names that the files give to the fields of `SqlExample`.
    """

    train: Path
    heldout: Mapping[str, Path]
    warm_start: Path | None
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
        chat: Ask in words, as one asks an assistant, and take the query out of a fenced block.

    Attributes:
        accuracy_part: The result of the response equals the gold query's.
        train_items: In the order of the file.
        heldout: Sets by name: what stands between `heldout_` and `.jsonl`, `test`, or `dev`.
        warm_start_items: For supervised training alone: they have no database to run on.

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
        chat: bool = False,
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
        self.train_items: Sequence[Item] = choose(parts.pop(""), train_limit, seed, _text)
        self.heldout: Mapping[str, Sequence[Item]] = {
            name: choose(items, heldout_limit, seed, _text) for name, items in parts.items()
        }
        warm_start = _schema_examples(layout.warm_start) if layout.warm_start else ()
        self.warm_start_items: Sequence[Item] = [
            Item(count + i, example) for i, example in enumerate(warm_start)
        ]
        self._chat = chat
        self._schemas: dict[str, str] = {}
        self._reward = SqlReward(run_credit=run_credit, workers=workers, limits=limits)

    def prompt(self, item: Item) -> str:
        """The schema and the question, up to where the query begins."""
        example: SqlExample = item.payload
        schema = example.schema or self._schema(example.database)
        if self._chat:
            return sql_chat.request(schema, example.question)
        return f"<|schema|>{schema}<|question|>{example.question}<|sql|>"

    def _schema(self, database: str) -> str:
        if database not in self._schemas:
            render = sql_chat.create_statements if self._chat else render_schema
            self._schemas[database] = render(self._databases[database])
        return self._schemas[database]

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
                    sql_chat.query_of(text) if self._chat else text,
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
            warm_start=None,
            database_path=lambda name: folder / "database" / name / f"{name}.sqlite",
            fields=("db_id", "question", "query"),
        )
    if (folder / "train.jsonl").is_file():
        heldout = [*sorted(folder.glob("heldout_*.jsonl")), *folder.glob("test.jsonl")]
        return Layout(
            train=folder / "train.jsonl",
            heldout={file.stem.removeprefix("heldout_"): file for file in heldout},
            warm_start=next(folder.glob("warm_start.jsonl"), None),
            database_path=lambda name: folder / "databases" / f"{name}.sqlite",
            fields=("database", "question", "query"),
        )
    found = "a folder without them" if folder.is_dir() else "no such folder"
    allowed = "a folder with train.jsonl or train_spider.json"
    raise ValueError(f"text-to-SQL data {folder}: found {found}, allowed: {allowed}")


def _examples(file: Path, fields: tuple[str, str, str]) -> Iterator[SqlExample]:
    for place, record in read_records(file):
        values = [record.get(field) if isinstance(record, dict) else None for field in fields]
        for field, value in zip(fields, values, strict=True):
            if not isinstance(value, str) or not value.strip():
                found = f"no {field}" if value is None else f"{field} = {value!r}"
                allowed = f"an object with the texts {', '.join(fields)}"
                raise ValueError(f"{place}: found {found}, allowed: {allowed}")
        yield SqlExample(*map(str, values))


def _schema_examples(file: Path) -> Iterator[SqlExample]:
    for place, record in read_records(file):
        match record:
            case {"schema": str(schema), "examples": [*pairs]} if all(map(_is_pair, pairs)):
                yield from (SqlExample("", question, query, schema) for question, query in pairs)
            case _:
                found, allowed = "another record", "a schema and examples, pairs of texts"
                raise ValueError(f"{place}: found {found}, allowed: {allowed}")


def _is_pair(value: object) -> bool:
    match value:
        case [str(question), str(query)]:
            return bool(question.strip() and query.strip())
    return False


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


def _text(item: Item) -> str:
    example: SqlExample = item.payload
    return "\0".join([example.database, example.question, example.query])
