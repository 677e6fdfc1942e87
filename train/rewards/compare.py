"""Execution match: whether two results of queries say the same.

Results are multisets of rows, or sequences where the gold query orders at its outermost level.
Columns count and stand in the order of the gold query. NULL equals NULL; text, blobs and numbers
never equal each other; 1 equals 1.0; floats are equal within a tolerance.

A tolerance is no equivalence, so sorting or hashing floats directly would pair the wrong rows. Each
column's numbers, those of both results together, are therefore sorted and cut into clusters
wherever two neighbours differ by more than the tolerance; a number is then replaced by its
cluster, and what is left is exact equality. That costs O(n log n), is symmetric, does not depend
on the order of rows, and never parts two numbers within the tolerance.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from train.rewards.sandbox import Result, Row

TOLERANCE = 1e-9

# What may hold the words without meaning them, then what is looked for.
_TOKENS = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\]
      | --[^\n]* | /\*.*?\*/
      | (?P<open>\() | (?P<close>\)) | (?P<word>\w+)""",
    re.VERBOSE | re.DOTALL,
)


def same_result(gold: Result, other: Result, *, ordered: bool) -> bool:
    """Whether `other` has the rows of `gold`.

    Args:
        gold: Result of the gold query.
        other: Result of the query under test.
        ordered: Compare as sequences; otherwise as multisets.
    """
    if gold.width != other.width or len(gold.rows) != len(other.rows):
        return False
    if gold.rows == other.rows:
        return True
    size = len(gold.rows)
    rows = _with_clusters([*gold.rows, *other.rows])
    if ordered:
        return rows[:size] == rows[size:]
    return Counter(rows[:size]) == Counter(rows[size:])


def orders_rows(query: str) -> bool:
    """Whether the query says in which order its rows come: ORDER BY outside all parentheses."""
    depth = 0
    previous = ""
    for token in _TOKENS.finditer(query):
        if token["open"]:
            depth += 1
        elif token["close"]:
            depth -= 1
        elif word := token["word"]:
            if depth == 0 and previous == "ORDER" and word.upper() == "BY":
                return True
            previous = word.upper()
    return False


def _with_clusters(rows: Sequence[Row]) -> list[Row]:
    """The rows with every number of a column that holds floats replaced by its cluster."""
    columns = zip(*rows, strict=True)
    return list(zip(*map(_clustered, columns), strict=True))


def _clustered(column: Sequence[Any]) -> Sequence[Any]:
    if not any(isinstance(cell, float) for cell in column):
        return column
    numbers = sorted({cell for cell in column if isinstance(cell, int | float)})
    cluster = {numbers[0]: 0}
    for lower, upper in pairwise(numbers):
        cluster[upper] = cluster[lower] + (not _close(lower, upper))
    return [cluster[cell] if isinstance(cell, int | float) else cell for cell in column]


def _close(lower: float, upper: float) -> bool:
    if isinstance(lower, int) and isinstance(upper, int):
        return False
    return math.isclose(lower, upper, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
