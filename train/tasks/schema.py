"""A SQLite file's schema as the one compact string that a prompt shows.

`singer(singer_id,name) concert(concert_id,title,singer_id>singer.singer_id)`: tables in order of
creation, columns in their own order and without types, a foreign key marked by `>` and its target.
"""

import sqlite3
from pathlib import Path


def render_schema(path: Path) -> str:
    """Reads the schema over a read-only connection.

    Args:
        path: A SQLite database file.

    Returns:
        The compact string; empty for a database without tables.

    Raises:
        ValueError: If there is no such file or it is not a SQLite database.
    """
    if not path.is_file():
        raise ValueError(f"database: found no file at {path}, expected a SQLite file")
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        return schema_text(connection)
    except sqlite3.DatabaseError as error:
        raise ValueError(f"database: {path} is not a readable SQLite file ({error})") from error
    finally:
        connection.close()


def schema_text(connection: sqlite3.Connection) -> str:
    """The compact string of an open database."""
    return " ".join(_render_table(connection, table) for table in _tables(connection))


def _tables(connection: sqlite3.Connection) -> list[str]:
    # sqlite_schema's row order is creation order; names that begin with sqlite_ are SQLite's own.
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' "
        "ESCAPE '\\' ORDER BY rowid"
    )
    return [name for (name,) in rows]


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, int]]:
    """Name and place in the primary key (from 1, 0 outside it) of every column."""
    rows = connection.execute("SELECT name, pk FROM pragma_table_info(?) ORDER BY cid", (table,))
    return rows.fetchall()


def _targets(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    """Where each foreign-key column points, by lower-case name: SQLite ignores case there."""
    rows = connection.execute(
        'SELECT "from", "table", "to", seq FROM pragma_foreign_key_list(?) ORDER BY id, seq',
        (table,),
    ).fetchall()
    targets: dict[str, str] = {}
    for column, parent, target, position in rows:
        if target is None:  # REFERENCES parent, without a column: the parent's primary key
            key = sorted((place, name) for name, place in _columns(connection, parent) if place)
            target = key[position][1] if position < len(key) else "rowid"
        targets[column.lower()] = f"{parent}.{target}"
    return targets


def _render_table(connection: sqlite3.Connection, table: str) -> str:
    targets = _targets(connection, table)
    columns = [
        f"{name}>{targets[name.lower()]}" if name.lower() in targets else name
        for name, _ in _columns(connection, table)
    ]
    return f"{table}({','.join(columns)})"
