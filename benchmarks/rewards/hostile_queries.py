"""Responses that a text-to-SQL policy must get nothing for, by what they try.

They run against a database with a table `singer(id, name, country, age)` of a dozen rows or more;
without that table some fail sooner. All are scored 0, the ones in `ENDLESS_CALL` only by the
hard kill.
"""

COUNT = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"


def _grown(factor: int) -> str:
    """A text of `10 ** (factor + 1)` characters that a short query makes."""
    text = "'0000000000'"
    for _ in range(factor):
        text = f"replace({text}, '0', '0000000000')"
    return text


def _doubled(depth: int, body: str) -> str:
    """Table expressions each of which uses the one before twice: `2 ** depth` copies to compile."""
    parts = [f", c{i}(x) AS ({body.format(c=f'c{i - 1}')})" for i in range(1, depth)]
    return f"WITH c0(x) AS (SELECT 1){''.join(parts)} SELECT COUNT(*) FROM c{depth - 1}"


# One call of one function that would take half a minute.
ENDLESS_CALL = f"SELECT instr(s, substr(s, 1, 500000) || '1') FROM (SELECT {_grown(5)} AS s)"

HOSTILE: dict[str, str] = {
    "endless rows": f"{COUNT} SELECT * FROM c",
    "endless count": f"{COUNT} SELECT COUNT(*) FROM c",
    "endless distinct": f"{COUNT} SELECT COUNT(DISTINCT x || '{'z' * 3000}') FROM c",
    "endless text": f"{COUNT} SELECT group_concat(hex(x)) FROM c",
    "endless json": f"{COUNT} SELECT json_group_array(x) FROM c",
    "endless window": f"{COUNT} SELECT SUM(x) OVER (ORDER BY x DESC) FROM c",
    "million rows": f"{COUNT} SELECT x FROM c LIMIT 1000000",
    "billion-row join": f"SELECT COUNT(*) FROM {', '.join(f'singer s{i}' for i in range(10))}",
    "wide rows": f"{COUNT} SELECT {', '.join(['x'] * 1900)} FROM c",
    "long rows": f"{COUNT}, d(y) AS (SELECT hex(x) || '{'y' * 9000}' FROM c LIMIT 9999)"
    " SELECT * FROM d",
    "endless call": ENDLESS_CALL,
    "multiplying joins": _doubled(30, "SELECT 1 FROM {c} AS p, {c} AS q"),
    "multiplying unions": _doubled(30, "SELECT x FROM {c} UNION ALL SELECT x FROM {c}"),
    "deep brackets": "SELECT " + "(" * 20_000,
    "deep cases": "SELECT " + "CASE WHEN 1 THEN " * 900 + "1" + " END" * 900,
    "attach": "ATTACH 'new.sqlite' AS e",
    "attach in memory": "ATTACH ':memory:' AS e",
    "detach": "DETACH main",
    "pragma": "PRAGMA journal_mode = DELETE",
    "pragma as table": "SELECT * FROM pragma_database_list",
    "load_extension": "SELECT load_extension('./evil')",
    "tokenizer pointer": "SELECT fts3_tokenizer('simple')",
    "read a file": "SELECT readfile('/etc/passwd')",
    "write a file": "SELECT writefile('new.sqlite', 'x')",
    "database pages": "SELECT * FROM sqlite_dbpage",
    "insert": "INSERT INTO singer VALUES (9, 'x', 'y', 1)",
    "insert returning": "INSERT INTO singer VALUES (9, 'x', 'y', 1) RETURNING *",
    "update": "UPDATE singer SET age = 1",
    "delete": "DELETE FROM singer",
    "drop": "DROP TABLE singer",
    "create": "CREATE TABLE e (x)",
    "create temporary": "CREATE TEMP VIEW e AS SELECT 1",
    "vacuum": "VACUUM",
    "vacuum into": "VACUUM INTO 'new.sqlite'",
    "reindex": "REINDEX",
    "analyze": "ANALYZE",
    "begin": "BEGIN",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
    "savepoint": "SAVEPOINT s",
    "two statements": "SELECT 1; DELETE FROM singer",
    "two selects": "SELECT 1; SELECT 1",
    "invalid UTF-8": "SELECT '\udcff\udcfe'",
    "NUL": "SELECT '\0'",
    "1 MB query": "SELECT '" + "x" * 1_000_000 + "'",
    "1 MB of brackets": "(" * 1_000_000,
    "open quote": "SELECT 'open",
    "open comment": "SELECT 1 " + "/*" * 20_000 + " FROM nowhere",
    "chance": "SELECT random()",
    "big blob": "SELECT randomblob(1000000000)",
    "big zeros": "SELECT zeroblob(1000000000)",
    "big format": "SELECT printf('%1000000000d', 1)",
    "big fill": "SELECT printf('%.*c', 2147483647, 'x')",
    "big replace": f"SELECT {_grown(7)}",
    "nothing": "",
    "semicolons": ";;",
    "prose": "The answer is SELECT 12",
}  # fmt: skip
