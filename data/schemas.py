"""How a domain is described, and how its believable rows and its SQLite file are made.

A domain is pure data: tables, and for every column both where its values come from and the words
that a question may use for it. Everything else (rows, files, questions) follows from that and a
seed. Every table has an integer primary key `id`.
"""

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

SEED = 20


@dataclass(frozen=True)
class Label:
    """The column that names a row; its values are unique.

    Args:
        name: Column name.
        values: At least as many different values as the table has rows.
    """

    name: str
    values: Sequence[str]


@dataclass(frozen=True)
class Category:
    """A text column with few values. Values start with a capital: see `train.tokenizer`.

    Args:
        name: Column name, also the singular noun for it.
        plural: "countries".
        of: What follows a noun to say that it has value `{v}`: "from {v}".
        values: The values a row may have.
    """

    name: str
    plural: str
    of: str
    values: Sequence[str]


@dataclass(frozen=True)
class Measure:
    """A whole-number column between `low` and `high` in steps of `step`.

    Args:
        name: Column name.
        phrase: Noun for it: "number of pages".
        low: Smallest value.
        high: Largest value.
        step: Distance of two values.
        above: What follows a noun to say that the value is greater than `{n}`.
        below: The same for less than `{n}`.
        most: Adjective for the row with the greatest value: "longest".
        least: Adjective for the row with the smallest value: "shortest".
        year: A calendar year: neither averaged nor summed, and "later" instead of "greater".
        total: Whether a sum over rows means anything.
    """

    name: str
    phrase: str
    low: int
    high: int
    step: int
    above: str
    below: str
    most: str
    least: str
    year: bool = False
    total: bool = False


@dataclass(frozen=True)
class Link:
    """A foreign key `<parent>_id` to the parent's `id`.

    Args:
        parent: Name of the parent table.
        by: What stands between child and parent: book "by" author.
        verb: Past tense of what the parent did: author "wrote" book.
    """

    parent: str
    by: str
    verb: str

    @property
    def name(self) -> str:
        """Column name."""
        return f"{self.parent}_id"


Column = Label | Category | Measure | Link


@dataclass(frozen=True)
class Table:
    """A table, called by its singular noun `name` and its plural `many`."""

    name: str
    many: str
    rows: int
    columns: tuple[Column, ...]
    who: str = "that"

    @property
    def label(self) -> Label | None:
        """The column that names a row, if there is one."""
        return next((c for c in self.columns if isinstance(c, Label)), None)

    @property
    def categories(self) -> list[Category]:
        """The category columns."""
        return [c for c in self.columns if isinstance(c, Category)]

    @property
    def measures(self) -> list[Measure]:
        """The measure columns."""
        return [c for c in self.columns if isinstance(c, Measure)]

    @property
    def links(self) -> list[Link]:
        """The foreign keys."""
        return [c for c in self.columns if isinstance(c, Link)]


@dataclass(frozen=True)
class Bridge:
    """A table whose rows join two others: member "borrowed" book, through loan.

    Args:
        table: The joining table.
        subject: Who acts: "member".
        object: On what: "book".
        verb: "borrowed".
        passive: "borrowed by".
        via: How a subject is described by it: "with a loan of".
    """

    table: str
    subject: str
    object: str
    verb: str
    passive: str
    via: str


@dataclass(frozen=True)
class Domain:
    """One database."""

    name: str
    tables: tuple[Table, ...]
    bridge: Bridge | None = None

    def table(self, name: str) -> Table:
        """The table of that name."""
        return next(t for t in self.tables if t.name == name)


Row = tuple[int | str, ...]


def make_rows(domain: Domain) -> dict[str, list[Row]]:
    """The rows of every table, a pure function of the domain and `SEED`."""
    rng = random.Random(f"{SEED}/rows/{domain.name}")
    return {table.name: _table_rows(domain, table, rng) for table in domain.tables}


def _table_rows(domain: Domain, table: Table, rng: random.Random) -> list[Row]:
    if table.label is None and len(table.links) == 2:
        links = dict(zip(table.links, _distinct_pairs(domain, table, rng), strict=True))
    else:
        links = {c: _parents(domain, c, table.rows, rng) for c in table.links}
    columns = [
        links[c] if isinstance(c, Link) else _values(c, table.rows, rng) for c in table.columns
    ]
    return list(zip(range(1, table.rows + 1), *columns, strict=True))


def _values(column: Label | Category | Measure, rows: int, rng: random.Random) -> Sequence:
    if isinstance(column, Label):
        return rng.sample(column.values, rows)
    if isinstance(column, Category):
        weights = [1 / (rank + 2) for rank in range(len(column.values))]
        return rng.choices(rng.sample(column.values, len(column.values)), weights, k=rows)
    grid = range(column.low, column.high + 1, column.step)
    # Without repetition where there is room: then "the oldest" and an order are unambiguous.
    return rng.sample(grid, rows) if len(grid) >= rows else rng.choices(grid, k=rows)


def _parents(domain: Domain, link: Link, rows: int, rng: random.Random) -> list[int]:
    """Ids of the parent table, some more often than others, a few never."""
    ids = range(1, domain.table(link.parent).rows + 1)
    used = rng.sample(ids, max(1, round(0.85 * len(ids))))
    return rng.choices(used, [rng.uniform(0.3, 2) for _ in used], k=rows)


def _distinct_pairs(domain: Domain, table: Table, rng: random.Random) -> list[list[int]]:
    first, second = table.links
    draws = 4 * table.rows
    left, right = _parents(domain, first, draws, rng), _parents(domain, second, draws, rng)
    pairs = list(dict.fromkeys(zip(left, right, strict=True)))[: table.rows]
    assert len(pairs) == table.rows, (domain.name, table.name)
    return [list(side) for side in zip(*pairs, strict=True)]


def text_values(domain: Domain) -> list[str]:
    """Every text value of the domain's rows, as often as it stands there."""
    tables = make_rows(domain).values()
    return [cell for rows in tables for row in rows for cell in row if isinstance(cell, str)]


def create_statement(table: Table) -> str:
    """The `CREATE TABLE` statement."""
    lines = ["id INTEGER PRIMARY KEY"]
    for column in table.columns:
        if isinstance(column, Link):
            lines.append(f"{column.name} INTEGER NOT NULL REFERENCES {column.parent}(id)")
        elif isinstance(column, Measure):
            lines.append(f"{column.name} INTEGER NOT NULL")
        else:
            unique = " UNIQUE" if isinstance(column, Label) else ""
            lines.append(f"{column.name} TEXT NOT NULL{unique}")
    return f"CREATE TABLE {table.name} (\n  " + ",\n  ".join(lines) + "\n)"


def fill_database(domain: Domain, connection: sqlite3.Connection) -> None:
    """Makes the domain's tables in an empty database, with their rows."""
    rows = make_rows(domain)
    for table in domain.tables:
        connection.execute(create_statement(table))
        marks = ",".join("?" * (1 + len(table.columns)))
        connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows[table.name])
    connection.commit()


def write_database(domain: Domain, path: Path) -> None:
    """Writes the domain's SQLite file, replacing one that is there."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA page_size = 1024")
        fill_database(domain, connection)
