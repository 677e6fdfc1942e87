"""Spider's published rule of execution match, stated once more for comparison with ours.

The rule is that of the benchmark's test-suite evaluation (Zhong, Yu and Klein, EMNLP 2020) with its
default options, on one database: written from knowledge of what it does, not from its code.
"""

import re
import sqlite3
from collections import Counter
from itertools import permutations

Rows = list[tuple]


def prepared(query: str) -> str:
    """What is done to gold and response alike before they run."""
    query = re.sub(r"year\s*\(\s*curdate\s*\(\s*\)\s*\)", "2020", query, flags=re.IGNORECASE)
    query = re.sub(r"([<>!])\s+=", r"\1=", query)
    return re.sub(r"\bdistinct\b", "", query, flags=re.IGNORECASE)


def rows_of(connection: sqlite3.Connection, query: str) -> Rows | None:
    """All rows, or None where the query fails; what it writes is taken back."""
    connection.text_factory = lambda raw: raw.decode("utf-8", "ignore")
    try:
        return connection.execute(prepared(query)).fetchall()
    except (sqlite3.Error, sqlite3.Warning):
        return None
    finally:
        connection.rollback()


def orders(gold: str) -> bool:
    """Order counts where the words stand anywhere in the gold query."""
    return "order by" in gold.lower()


def same_rows(gold: Rows, other: Rows, *, ordered: bool) -> bool:
    """Equal as sequences or as multisets, after one rearrangement of the columns of all rows."""
    if not gold and not other:
        return True
    if len(gold) != len(other) or len(gold[0]) != len(other[0]):
        return False
    return any(
        moved == gold if ordered else Counter(moved) == Counter(gold)
        for moved in _rearrangements(gold, other)
    )


def _rearrangements(gold: Rows, other: Rows):
    """`other` under each order of its columns that puts no column where its values differ."""
    values = [Counter(column) for column in zip(*gold, strict=True)]
    found = [Counter(column) for column in zip(*other, strict=True)]
    for order in permutations(range(len(found))):
        if all(found[column] == values[place] for place, column in enumerate(order)):
            yield [tuple(row[column] for column in order) for row in other]


def execution_match(connection: sqlite3.Connection, gold: str, response: str) -> bool:
    """The whole rule."""
    expected, found = rows_of(connection, gold), rows_of(connection, response)
    assert expected is not None, gold
    return found is not None and same_rows(expected, found, ordered=orders(gold))
