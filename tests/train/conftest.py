"""What several tests of training start from."""

import sqlite3
from contextlib import closing

import pytest


@pytest.fixture
def database(tmp_path):
    """Path of a SQLite file with one table of one row."""
    path = tmp_path / "t.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS a")
        connection.commit()
    return str(path)
