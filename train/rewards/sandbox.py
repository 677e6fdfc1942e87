"""Runs one untrusted query on a SQLite database that it can neither change nor exhaust.

Four guards stand one behind the other: the file is opened read-only and immutable (no lock, no
journal, no new file); an authorizer lets a statement read tables and call harmless functions and
nothing else; SQLite's own limits bound the length of the query and of every value, and the heap;
and a progress handler, called every thousand instructions, bounds the work. What can still run
away, a single call of a C function (`instr` on two long texts) or the reading of a query whose
parts multiply, is for the pool's hard kill. The limit on instructions is meant to be met first, so
that a score depends on the query and not on how busy the machine is.
"""

import itertools
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]

READS = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)
# Native code, memory addresses, an allocation or a loop as large as an argument says, or chance,
# which would make the reward of a text differ from call to call.
DENIED_FUNCTIONS = frozenset(
    {
        "load_extension",
        "fts3_tokenizer",
        "printf",
        "format",
        "zeroblob",
        "randomblob",
        "random",
    }
)
INSTRUCTIONS_PER_CHECK = 1_000
CACHE_KIB = 512  # of every open database; the operating system keeps the rest of the file


@dataclass(frozen=True)
class Limits:
    """What one query may use.

    Attributes:
        instructions: Instructions of SQLite's virtual machine, about 0.15 s on one core. The
            longest gold query of Spider takes 58 thousand.
        cpu_seconds: Processor time, the backstop where single instructions are heavy.
        rows: Rows of the result.
        result_bytes: Text and blobs of the result, plus eight bytes for any other cell.
        value_bytes: One text, blob or stored row.
        query_length: Characters of the query itself.
        heap_bytes: Memory that SQLite may hold in one process.
    """

    instructions: int = 12_000_000
    cpu_seconds: float = 0.5
    rows: int = 20_000
    result_bytes: int = 8_000_000
    value_bytes: int = 1_000_000
    query_length: int = 50_000
    heap_bytes: int = 128_000_000


@dataclass(frozen=True)
class Result:
    """Rows of a query, in the order in which SQLite returned them.

    Attributes:
        width: Number of columns, known even where there is no row.
        rows: One tuple a row of None, int, float, str or bytes.
        size: Bytes of the cells, as `Limits.result_bytes` counts them.
    """

    width: int
    rows: list[Row]
    size: int


class QueryError(Exception):
    """The query did not run to its end within the limits; the text says why."""


class Sandbox:
    """Runs queries one at a time on any number of databases, keeping the last ones open.

    Args:
        limits: Bounds of every query.
        open_databases: Connections kept; the one used longest ago is closed first.
    """

    def __init__(self, limits: Limits, open_databases: int = 32) -> None:
        self._limits = limits
        self._open_databases = open_databases
        self._connections: OrderedDict[str, sqlite3.Connection] = OrderedDict()

    def run(self, database: str, query: str) -> Result:
        """The whole result of one statement.

        Args:
            database: Absolute path of a SQLite file that nobody writes to; a write-ahead log
                beside it is not read.
            query: One SQL statement, of any origin.

        Raises:
            QueryError: The statement is not a single readable query, fails, or passes a limit.
            FileNotFoundError: There is no such database.
        """
        connection = self._connection(database)
        try:
            with _bounded(connection, self._limits):
                return _read_all(connection, query, self._limits)
        except (sqlite3.Error, ValueError, MemoryError) as error:
            # ValueError: text that is not Unicode. MemoryError: SQLite's heap limit.
            raise QueryError(str(error) or type(error).__name__) from error

    def _connection(self, database: str) -> sqlite3.Connection:
        connection = self._connections.pop(database, None) or _connect(database, self._limits)
        self._connections[database] = connection
        if len(self._connections) > self._open_databases:
            self._connections.popitem(last=False)[1].close()
        return connection

    def close(self) -> None:
        """Closes every connection; the sandbox may be used again."""
        while self._connections:
            self._connections.popitem()[1].close()


def _connect(database: str, limits: Limits) -> sqlite3.Connection:
    path = Path(database)
    if not path.is_file():
        raise FileNotFoundError(f"database: found no file {database}, allowed: a SQLite file")
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro&immutable=1",
        uri=True,
        isolation_level=None,
        cached_statements=0,
    )
    # Published databases hold text that is not UTF-8; as surrogates it still compares equal.
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    connection.execute("PRAGMA temp_store = MEMORY")
    # The heap is one for all connections: what others keep must not decide what a query may use.
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute(f"PRAGMA hard_heap_limit = {limits.heap_bytes}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.value_bytes)
    connection.set_authorizer(_authorize)
    return connection


def _authorize(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    if action not in READS:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (name or "").lower() in DENIED_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


@contextmanager
def _bounded(connection: sqlite3.Connection, limits: Limits) -> Iterator[None]:
    """Interrupts what runs on the connection once the instructions or the time are used up."""
    checks = itertools.count()
    most_checks = limits.instructions // INSTRUCTIONS_PER_CHECK
    deadline = time.process_time() + limits.cpu_seconds

    def exhausted() -> bool:
        return next(checks) >= most_checks or time.process_time() > deadline

    connection.set_progress_handler(exhausted, INSTRUCTIONS_PER_CHECK)
    try:
        yield
    finally:
        connection.set_progress_handler(None, 0)


def _read_all(connection: sqlite3.Connection, query: str, limits: Limits) -> Result:
    # Not SQLite's own limit, which would bind when it reads the schema's statements as well.
    if len(query) > limits.query_length:
        raise QueryError(f"the query passes {limits.query_length} characters")
    cursor = connection.execute(query)
    try:
        if cursor.description is None:
            raise QueryError("the text holds no query")
        rows: list[Row] = []
        size = 0
        for row in cursor:
            rows.append(row)
            size += sum(len(cell) if isinstance(cell, str | bytes) else 8 for cell in row)
            if len(rows) > limits.rows or size > limits.result_bytes:
                raise QueryError(f"the result passes {limits.rows} rows or {limits.result_bytes} B")
        return Result(len(cursor.description), rows, size)
    finally:
        cursor.close()
