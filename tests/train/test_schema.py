"""The compact schema string, against databases with every kind of key."""

import sqlite3

import pytest

from train.tasks.schema import render_schema


def write(path, *statements):
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def test_tables_and_columns_keep_their_order_and_keys_are_marked(tmp_path):
    path = write(
        tmp_path / "a.sqlite",
        "CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, age INT)",
        "CREATE TABLE concert (title TEXT, singer_id INT REFERENCES singer(singer_id), a INT)",
    )
    assert render_schema(path) == (
        "singer(singer_id,name,age) concert(title,singer_id>singer.singer_id,a)"
    )


def test_composite_and_implicit_keys(tmp_path):
    path = write(
        tmp_path / "a.sqlite",
        "CREATE TABLE p (x INT, y INT, z INT, PRIMARY KEY (y, x))",
        "CREATE TABLE c (a INT, b INT, d INT, FOREIGN KEY (a, b) REFERENCES p)",
        "CREATE TABLE q (A INT, FOREIGN KEY (a) REFERENCES c(d))",
    )
    assert render_schema(path) == "p(x,y,z) c(a>p.y,b>p.x,d) q(A>c.d)"


def test_own_tables_of_sqlite_and_views_are_left_out(tmp_path):
    path = write(
        tmp_path / "my file?.sqlite",
        "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, 'two words' TEXT)",
        "CREATE TABLE sqlitedata (x INT)",
        "CREATE VIEW v AS SELECT 1",
    )
    assert render_schema(path) == "t(id,two words) sqlitedata(x)"


def test_the_file_is_not_written(tmp_path):
    path = write(tmp_path / "a.sqlite", "CREATE TABLE t (x INT)")
    before = path.read_bytes()
    path.chmod(0o444)
    render_schema(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_bad_input_is_named(tmp_path):
    with pytest.raises(ValueError, match="no file at"):
        render_schema(tmp_path / "absent.sqlite")
    (tmp_path / "text.sqlite").write_text("no database at all, only text" * 50)
    with pytest.raises(ValueError, match="not a readable SQLite file"):
        render_schema(tmp_path / "text.sqlite")


def test_published_databases_render(shared_data):
    for path in sorted((shared_data / "spider" / "databases").glob("*.sqlite"))[:20]:
        assert "(" in render_schema(path)
