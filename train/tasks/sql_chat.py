"""Text-to-SQL as a request to an assistant: the prompt in words, the query out of its answer."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

_QUOTED_NAME = re.compile(r"`(\w+)`")
_BLOCK = re.compile(r"```(?:sql|sqlite)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def request(schema: str, question: str) -> str:
    """What the user asks."""
    return (
        f"Given the SQLite database schema:\n{schema}\nQuestion: {question}\n"
        "Answer with one SQLite query only, no explanation."
    )


def create_statements(path: Path) -> str:
    """The statements that made the tables of a SQLite file, one a line.

    White space is collapsed and plain names lose their back-ticks: a name is shorter so, and
    models know it better.

    Raises:
        ValueError: It is not a readable SQLite file.
    """
    query = (
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' "
        "ESCAPE '\\' ORDER BY rowid"
    )
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return "\n".join(_plain(sql) + ";" for (sql,) in connection.execute(query))
    except sqlite3.DatabaseError as error:
        raise ValueError(f"database: {path} is not a readable SQLite file ({error})") from error


def _plain(sql: str) -> str:
    return _QUOTED_NAME.sub(r"\1", " ".join(sql.split()))


def query_of(answer: str) -> str:
    """The query: the first fenced block of an answer, or all of it where there is none."""
    found = _BLOCK.search(answer)
    return found[1] if found else answer
