"""What train/rewards/README.md says of our rule and Spider's is measured, pair by pair."""

import re
import sqlite3
from collections import Counter
from contextlib import closing
from itertools import permutations

import pytest

from tests.support import spider_rule
from train.rewards.compare import orders_rows, same_result
from train.rewards.sandbox import Limits, Sandbox
from train.rewards.sql import SqlJob, SqlJudge
from train.tasks.text2sql import TextToSql

CITIES = [
    ("Basel", "CH", 178, 23.8),
    ("Bern", "CH", 134, 51.6),
    ("Graz", "AT", 291, 127.6),
    ("Linz", "AT", None, 96.0),
    ("Lyon", "FR", 522, 47.9),
    ("Nice", "FR", 348, 71.9),
]


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "city.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE city (name TEXT, country TEXT, people INTEGER, area REAL)")
        connection.executemany("INSERT INTO city VALUES (?, ?, ?, ?)", CITIES)
        connection.commit()
    return str(path)


@pytest.fixture
def page(repository):
    return (repository / "train" / "rewards" / "README.md").read_text()


def pairs(page):
    """The rows `gold, response, ours, Spider's` of the page's table."""
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \| (yes|no) \| (yes|no) \|$", page, re.MULTILINE)
    return [
        (gold, response, ours == "yes", theirs == "yes") for gold, response, ours, theirs in rows
    ]


def test_every_pair_of_the_table_is_judged_as_it_says(page, database):
    judge = SqlJudge(Limits())
    with closing(sqlite3.connect(database)) as connection:
        for gold, response, ours, theirs in pairs(page):
            text = response.removesuffix(";")
            verdict = judge(SqlJob(database, gold, text))
            assert not verdict.gold_failed, gold
            assert verdict.execution_match is ours, (gold, response)
            assert spider_rule.execution_match(connection, gold, response) is theirs, (
                gold,
                response,
            )


def test_the_counts_under_the_table_are_right(page):
    count = Counter((ours, theirs) for *_, ours, theirs in pairs(page))
    alike = count[True, True] + count[False, False]
    assert min(count.values()) >= 3
    assert len(count) == 4
    stated = (
        f"{count.total()} pairs: alike {alike}, only Spider's says yes {count[False, True]}, "
        f"only ours says yes {count[True, False]}."
    )
    assert stated in page


def test_both_rules_on_pairs_of_spiders_own_queries(shared_data, page):
    """Each test query of Spider as the response to every other question of its database."""
    count: Counter[tuple[bool, bool]] = Counter()
    with closing(TextToSql(shared_data / "spider")) as task, closing(Sandbox(Limits())) as sandbox:
        by_database: dict[str, set[str]] = {}
        for item in task.heldout["test"]:
            by_database.setdefault(item.payload.database, set()).add(item.payload.query)
        for name, queries in by_database.items():
            path = str(task._databases[name])
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
                results = {
                    q: (sandbox.run(path, q), spider_rule.rows_of(connection, q)) for q in queries
                }
            for gold, response in permutations(sorted(queries), 2):
                (mine, theirs), (mine_2, theirs_2) = results[gold], results[response]
                ours = same_result(mine, mine_2, ordered=orders_rows(gold))
                ordered = spider_rule.orders(gold)
                count[ours, spider_rule.same_rows(theirs, theirs_2, ordered=ordered)] += 1
    stated = (
        f"of {count.total():,} pairs both say yes to {count[True, True]:,}, only Spider's to "
        f"{count[False, True]:,}, only ours to {count[True, False]:,}."
    )
    assert stated in " ".join(page.split()), stated
