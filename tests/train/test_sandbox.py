"""One query at a time: what it may do, what it may use, and that nothing of it remains."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from train.rewards.sandbox import Limits, QueryError, Sandbox

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
GROWN = "'0000000000'"
for _ in range(6):
    GROWN = f"replace({GROWN}, '0', '0000000000')"

DENIED = [
    "ATTACH 'new.sqlite' AS e",
    "DETACH main",
    "PRAGMA user_version",
    "PRAGMA writable_schema = 1",
    "SELECT * FROM pragma_table_info('t')",
    "VACUUM INTO 'new.sqlite'",
    "INSERT INTO t VALUES (9, 'x', 1.0)",
    "INSERT INTO t VALUES (9, 'x', 1.0) RETURNING *",
    "UPDATE t SET a = 1",
    "DELETE FROM t",
    "DROP TABLE t",
    "CREATE TABLE u (a)",
    "CREATE TEMP TABLE u (a)",
    "ALTER TABLE t RENAME TO u",
    "REINDEX",
    "ANALYZE",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT s",
    "SELECT load_extension('x')",
    "SELECT Load_Extension('x')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT random()",
]
BROKEN = [
    "",
    "-- nothing",
    "hello",
    "SELECT 'open",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP TABLE t",
    "SELECT '\udcff'",
    "SELECT '\0'",
    "SELECT " + "(" * 5_000 + "1",
    "SELECT no_such_column FROM t",
]
TOO_MUCH = [
    ENDLESS + " SELECT * FROM c",
    ENDLESS + " SELECT COUNT(*) FROM c",
    ENDLESS + " SELECT x FROM c LIMIT 1000000",
    ENDLESS + " SELECT COUNT(*) FROM c a, c b, c d",
    "SELECT COUNT(*) FROM t a, t b, t c, t d, t e, t f, t g, t h, t i, t j",
    "SELECT randomblob(1000000000)",
    "SELECT zeroblob(1000000000)",
    "SELECT printf('%1000000000d', 1)",
    "SELECT length(printf('%.*c', 2147483647, 'x'))",
    f"SELECT {GROWN}",
    "SELECT '" + "x" * 1_000_000 + "'",
    ENDLESS + ", d(x, y) AS (SELECT x, hex(x) || '" + "y" * 9_000 + "' FROM c LIMIT 10000)"
    " SELECT * FROM d",
]


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "a b#?.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER, b TEXT, c REAL)")
        rows = [(i, f"name {i}", i / 2) for i in range(30)]
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        connection.execute("INSERT INTO t VALUES (99, CAST(x'ff' AS TEXT), NULL)")
        connection.commit()
    return str(path)


@pytest.fixture
def sandbox(database):
    folder = _contents(database)
    with closing(Sandbox(Limits())) as sandbox:
        yield sandbox
        assert sandbox.run(database, "SELECT a FROM t WHERE a < 2").rows == [(0,), (1,)]
    assert _contents(database) == folder, "the sandbox left a trace on disk"


def _contents(database):
    files = sorted(path for path in _folder(database).iterdir() if path.is_file())
    return [(path.name, hashlib.sha256(path.read_bytes()).digest()) for path in files]


def _folder(database):
    return Path(database).parent


def test_reads_rows_in_order_with_their_width(database, sandbox):
    result = sandbox.run(database, "SELECT a, c, b FROM t ORDER BY a DESC LIMIT 2;")
    assert result.rows == [(99, None, "\udcff"), (29, 14.5, "name 29")]
    assert result.width == 3
    empty = sandbox.run(database, "SELECT a, b FROM t WHERE 0")
    assert (empty.width, empty.rows) == (2, [])


@pytest.mark.parametrize("query", DENIED + BROKEN + TOO_MUCH, ids=lambda query: query[:40])
def test_refuses(query, database, sandbox, monkeypatch):
    monkeypatch.chdir(_folder(database))
    with pytest.raises(QueryError):
        sandbox.run(database, query)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT COUNT(*), AVG(c), group_concat(b) FROM t GROUP BY a % 2 HAVING COUNT(*) > 1",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 9) SELECT * FROM c",
        "SELECT a, row_number() OVER (ORDER BY c DESC) FROM t",
        "SELECT a FROM t UNION SELECT 5 EXCEPT SELECT 3",
        "SELECT strftime('%Y', '2020-02-03'), round(2.567, 1), abs(-3), upper(b) FROM t",
        "SELECT a FROM t WHERE b LIKE 'name%' AND a IN (SELECT a FROM t WHERE c > 3) -- comment",
        "VALUES (1, 'x')",
    ],
)
def test_allows_every_kind_of_reading(query, database, sandbox):
    assert sandbox.run(database, query).rows


def test_each_limit_binds(database):
    query = "SELECT a, b FROM t LIMIT 10"
    cases = {
        "rows": (10, 9),
        "result_bytes": (10 * (8 + 6), 10 * (8 + 6) - 1),
        "query_length": (len(query), len(query) - 1),
    }
    for name, (enough, too_little) in cases.items():
        with closing(Sandbox(Limits(**{name: enough}))) as sandbox:
            assert len(sandbox.run(database, query).rows) == 10
        with closing(Sandbox(Limits(**{name: too_little}))) as sandbox, pytest.raises(QueryError):
            sandbox.run(database, query)


def test_time_limit_binds_where_the_instruction_limit_does_not(database):
    limits = Limits(instructions=10**12, cpu_seconds=0.05)
    with closing(Sandbox(limits)) as sandbox, pytest.raises(QueryError, match="interrupted"):
        sandbox.run(database, ENDLESS + " SELECT COUNT(*) FROM c")


def test_keeps_no_more_connections_than_told(tmp_path):
    paths = [tmp_path / f"{i}.sqlite" for i in range(4)]
    for i, path in enumerate(paths):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"CREATE TABLE t AS SELECT {i} AS a")
            connection.commit()
    with closing(Sandbox(Limits(), open_databases=2)) as sandbox:
        for i in [0, 1, 2, 3, 3, 1, 0]:
            assert sandbox.run(str(paths[i]), "SELECT a FROM t").rows == [(i,)]
            assert len(sandbox._connections) <= 2


def test_missing_database_is_no_score_but_an_error(tmp_path):
    with closing(Sandbox(Limits())) as sandbox, pytest.raises(FileNotFoundError, match="none"):
        sandbox.run(str(tmp_path / "none.sqlite"), "SELECT 1")
    assert not list(tmp_path.iterdir())
