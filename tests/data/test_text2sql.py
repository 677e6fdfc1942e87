"""The committed data set: what every item promises, and that the build reproduces it."""

import json
import re
import sqlite3
from contextlib import closing
from itertools import combinations

import pytest

from data.build import FOLDER, TRAINING, build
from data.candidates import Candidate
from data.domains import HELD_OUT
from data.questions import KINDS
from train.tasks.schema import render_schema

PARTS = ("train", "heldout_paraphrases", "heldout_questions", "heldout_database")
ITEMS = {
    part: [
        json.loads(line)
        for line in (FOLDER / "text2sql" / f"{part}.jsonl").read_text().splitlines()
    ]
    for part in PARTS
}
WARM_START = [
    json.loads(line) for line in (FOLDER / "text2sql" / "warm_start.jsonl").read_text().splitlines()
]
DATABASES = {path.stem: path for path in (FOLDER / "text2sql" / "databases").glob("*.sqlite")}


def pairs(items, *names):
    return {tuple(item[name] for name in names) for item in items}


def connect(path):
    return closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True))


def dump(path):
    with connect(path) as connection:
        return list(connection.iterdump())


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    build(folder)
    return folder


def test_the_build_reproduces_every_committed_byte(rebuilt):
    names = [f"text2sql/{part}.jsonl" for part in (*PARTS, "warm_start")]
    for name in [*names, "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"]:
        assert (rebuilt / name).read_bytes() == (FOLDER / name).read_bytes(), name
    for name, path in DATABASES.items():
        assert dump(rebuilt / "text2sql" / "databases" / f"{name}.sqlite") == dump(path)


def test_sizes():
    assert len(ITEMS["train"]) >= 1000
    assert all(len(ITEMS[part]) >= 200 for part in PARTS[1:])
    assert sum(map(len, ITEMS.values())) >= 1600
    assert len(DATABASES) >= 12


def test_parts_are_disjoint():
    for one, other in combinations(PARTS, 2):
        asked = pairs(ITEMS[one], "database", "question")
        assert not asked & pairs(ITEMS[other], "database", "question")
    train = ITEMS["train"]
    known = pairs(train, "database", "query")
    assert pairs(ITEMS["heldout_paraphrases"], "database", "query") <= known
    assert pairs(ITEMS["heldout_paraphrases"], "intent") <= pairs(train, "intent")
    assert not pairs(ITEMS["heldout_questions"], "database", "query") & known
    assert not pairs(ITEMS["heldout_questions"], "intent") & pairs(train, "intent")
    assert pairs(ITEMS["heldout_questions"], "database") <= pairs(train, "database")
    assert not pairs(ITEMS["heldout_database"], "database") & pairs(train, "database")


def test_one_question_has_one_query_and_one_intent_has_one_query():
    everything = [item for part in PARTS for item in ITEMS[part]]
    assert len(pairs(everything, "database", "question")) == len(everything)
    assert len(pairs(everything, "intent", "query")) == len(pairs(everything, "intent"))


def test_wordings_of_one_intent_differ_by_two_words_or_more():
    wordings = {}
    for part in PARTS:
        for item in ITEMS[part]:
            words = frozenset(item["question"].lower().strip("?.").split())
            wordings.setdefault(item["intent"], []).append(words)
    assert all(
        len(one ^ other) >= 2
        for group in wordings.values()
        for one, other in combinations(group, 2)
    )
    train = pairs(ITEMS["train"], "intent", "question")
    assert len(train) == 3 * len(pairs(ITEMS["train"], "intent"))


@pytest.mark.parametrize("part", PARTS)
def test_every_query_answers(part):
    trivial = 0
    connections = {
        name: sqlite3.connect(f"file:{p}?mode=ro", uri=True) for name, p in DATABASES.items()
    }
    for database, query in sorted(pairs(ITEMS[part], "database", "query")):
        rows = connections[database].execute(query).fetchall()
        assert rows, query
        assert all(cell is not None for row in rows for cell in row), query
        assert rows != [(0,)], query
        trivial += rows == [(1,)]
    for connection in connections.values():
        connection.close()
    assert trivial <= 0.05 * len(ITEMS[part])


def test_every_kind_of_query_is_there():
    queries = [item["query"] for item in ITEMS["train"]]
    forms = ("COUNT(", "DISTINCT", "MIN(", "MAX(", "AVG(", "SUM(", "GROUP BY", "HAVING", "LIMIT")
    forms += (" IN (SELECT", "NOT IN (SELECT", "(SELECT AVG", "UNION", "INTERSECT", "EXCEPT")
    assert not [form for form in forms if sum(form in query for query in queries) < 10]
    assert {query.count(" JOIN ") for query in queries} == {0, 1, 2}
    assert {item["intent"].split("/", 1)[1].rsplit("/", 1)[0] for item in ITEMS["train"]} == set(
        KINDS
    )


def test_databases_are_small_linked_and_consistent():
    assert set(DATABASES) == {domain.name for domain in (*TRAINING, *HELD_OUT)}
    for path in DATABASES.values():
        assert path.stat().st_size < 100_000
        assert render_schema(path).count(">") >= 2
        with connect(path) as connection:
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            tables = connection.execute("SELECT name FROM sqlite_master WHERE sql LIKE 'CREATE T%'")
            for (table,) in tables.fetchall():
                (rows,) = connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()
                assert 20 <= rows <= 200, (path.stem, table)


def table_names(schema):
    return set(re.findall(r"(\w+)\(", schema))


def test_schemas_of_the_warm_start_are_many_and_none_is_a_held_out_database():
    schemas = [line["schema"] for line in WARM_START]
    assert len(set(schemas)) == len(schemas) >= 100
    assert min(len(line["examples"]) for line in WARM_START) >= 40
    for domain in HELD_OUT:
        unseen = {table.name for table in domain.tables}
        assert max(len(unseen & table_names(schema)) for schema in schemas) == 1


def test_names_of_the_held_out_databases_have_been_seen_apart():
    seen = set(re.findall(r"\w+", " ".join(line["schema"] for line in WARM_START)))
    for domain in HELD_OUT:
        assert set(re.findall(r"\w+", render_schema(DATABASES[domain.name]))) <= seen


def test_queries_of_the_warm_start_fit_their_schema():
    for line in WARM_START:
        with closing(sqlite3.connect(":memory:")) as connection:
            for table, columns in re.findall(r"(\w+)\(([^)]*)\)", line["schema"]):
                names = [column.partition(">")[0] for column in columns.split(",")]
                connection.execute(f"CREATE TABLE {table} ({', '.join(names)})")
            for question, query in line["examples"]:
                assert question[-1] in ".?", question
                connection.execute(query)


@pytest.mark.parametrize(
    ("query", "whole", "keys"),
    [
        ("SELECT x FROM t WHERE x > 9", None, None),  # no row
        ("SELECT COUNT(*) FROM t WHERE x > 9", None, None),  # counts nothing
        ("SELECT MAX(x) FROM t WHERE x > 9", None, None),  # NULL
        ("SELECT x FROM t WHERE x > 0", "SELECT x FROM t", None),  # filters nothing
        ("SELECT x FROM t ORDER BY y LIMIT 1", None, "SELECT y FROM t ORDER BY y LIMIT 2"),  # tie
    ],
)
def test_unfair_candidates_are_refused(query, whole, keys):
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript("CREATE TABLE t (x, y); INSERT INTO t VALUES (1, 5), (2, 5)")
        assert not Candidate("count", query, {}, whole, keys).proves_itself(connection)
        assert Candidate("count", "SELECT x FROM t", {}).proves_itself(connection)
