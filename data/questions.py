"""Which questions a domain gets: how many of every kind, each with its gold query."""

import random
import sqlite3
from dataclasses import dataclass

from data.candidates import (
    Kind,
    aggregate,
    aggregate_where,
    count_all,
    count_where,
    cross,
    difference,
    group_aggregate,
    group_having,
    intersect,
    join_project,
    list_two,
    list_where,
    lookup,
    min_max,
    order_by,
    order_label,
    parent_count,
    parent_having,
    parent_top,
    per_category,
    project,
    top,
    top_where,
    union,
)
from data.filters import Source
from data.schemas import SEED, Domain, make_rows


@dataclass(frozen=True)
class Intent:
    """One gold query and the questions that ask for it."""

    name: str
    query: str
    questions: tuple[str, ...]


# Each kind with how many intents of it a domain gets.
KINDS: dict[str, tuple[Kind, int]] = {
    "count_all": (count_all, 2),
    **{
        f"count/{family}": (count_where(family), quota)
        for family, quota in {
            "category": 1,
            "measure": 2,
            "category_and_measure": 1,
            "between": 1,
            "not_equal": 1,
            "parent_named": 2,
            "parent_where": 2,
            "both_parents": 1,
            "no_child": 1,
        }.items()
    },
    **{
        f"list/{family}": (list_where(family), quota)
        for family, quota in {
            "category": 2,
            "measure": 2,
            "category_and_measure": 1,
            "either": 1,
            "not_equal": 1,
            "initial": 1,
            "versus_average": 1,
            "versus_named": 1,
            "parent_named": 1,
            "parent_where": 1,
            "across_bridge": 2,
            "has_child": 2,
            "no_child": 1,
        }.items()
    },
    "the/parent_of": (list_where("parent_of", "the"), 1),
    "list_two": (list_two, 1),
    "project": (project, 1),
    "lookup": (lookup, 2),
    "distinct": (per_category("distinct", "SELECT DISTINCT {c} FROM {t}"), 1),
    "count_distinct": (
        per_category("count_distinct", "SELECT COUNT(DISTINCT {c}) FROM {t}"),
        1,
    ),
    "order": (order_by, 1),
    "order_label": (order_label, 1),
    "top_one": (top(1), 2),
    "top_three": (top(3), 1),
    "top_where": (top_where, 1),
    "aggregate": (aggregate, 2),
    "aggregate/category": (aggregate_where("category"), 1),
    "aggregate/parent_named": (aggregate_where("parent_named"), 1),
    "aggregate/parent_where": (aggregate_where("parent_where"), 1),
    "min_max": (min_max, 1),
    "group_count": (per_category("group_count", "SELECT {c}, COUNT(*) FROM {t} GROUP BY {c}"), 1),
    "group_aggregate": (group_aggregate, 1),
    "group_having": (group_having, 1),
    "most_common": (
        per_category(
            "most_common", "SELECT {c} FROM {t} GROUP BY {c} ORDER BY COUNT(*) DESC LIMIT 1"
        ),
        1,
    ),
    "least_common": (
        per_category("least_common", "SELECT {c} FROM {t} GROUP BY {c} ORDER BY COUNT(*) LIMIT 1"),
        1,
    ),
    "join_project": (join_project, 1),
    "parent_count": (parent_count, 1),
    "parent_having": (parent_having, 1),
    "parent_top": (parent_top, 1),
    "union": (union, 1),
    "intersect": (intersect, 1),
    "except": (difference, 1),
    "cross_union": (cross("UNION"), 1),
    "cross_intersect": (cross("INTERSECT"), 1),
    "cross_except": (cross("EXCEPT"), 1),
}


def make_intents(domain: Domain, connection: sqlite3.Connection) -> list[Intent]:
    """All intents of a domain; no query and no question occurs twice.

    Args:
        domain: The domain.
        connection: Its database.
    """
    rows = make_rows(domain)
    seen: set[str] = set()
    intents = []
    for name, (kind, quota) in KINDS.items():
        found = 0
        for candidate in kind(Source(domain, rows, random.Random(f"{SEED}/{domain.name}/{name}"))):
            questions = candidate.questions()
            texts = {candidate.query, *questions}
            if seen & texts or not candidate.proves_itself(connection):
                continue
            seen |= texts
            intents.append(Intent(f"{domain.name}/{name}/{found}", candidate.query, questions))
            found += 1
            if found == quota:
                break
    return intents
