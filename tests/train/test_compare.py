"""Execution match as an equivalence of results, with planted differences it must see."""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.clocks import thread_seconds
from train.rewards.compare import orders_rows, same_result
from train.rewards.sandbox import Result

CELLS = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.sampled_from([0.0, 0.5, 1.0, -2.25, 1e6, 1e-3]),
    st.sampled_from(["", "a", "b", "1"]),
    st.sampled_from([b"", b"a"]),
)


@st.composite
def tables(draw, min_rows=0):
    width = draw(st.integers(1, 3))
    return draw(st.lists(st.tuples(*[CELLS] * width), min_size=min_rows, max_size=8))


def _result(rows, width=None):
    return Result(width or len(rows[0]) if rows else width or 1, list(rows), 0)


def _same(gold, other, ordered=False):
    return same_result(_result(gold), _result(other), ordered=ordered)


@given(tables(), st.randoms())
def test_order_counts_only_where_asked(rows, random):
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert _same(rows, shuffled)
    assert _same(rows, shuffled, ordered=True) == (rows == shuffled)


@given(tables(), tables(), st.booleans())
def test_symmetric(rows, others, ordered):
    assert _same(rows, others, ordered) == _same(others, rows, ordered)


@given(tables(min_rows=1), st.data(), st.booleans())
def test_duplicates_count(rows, data, ordered):
    row = data.draw(st.sampled_from(rows))
    assert not _same(rows, [*rows, row], ordered)
    assert not _same([*rows, row], rows, ordered)


@given(tables(min_rows=1), st.data(), st.booleans())
def test_one_changed_cell_is_seen(rows, data, ordered):
    row = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, len(rows[0]) - 1))
    changed = [list(cells) for cells in rows]
    changed[row][column] = data.draw(st.sampled_from(["other", 77, 77.5, b"other"]))
    assert not _same(rows, [tuple(cells) for cells in changed], ordered)


@given(tables(min_rows=1), st.randoms())
def test_noise_within_the_tolerance_is_not_seen(rows, random):
    noisy = [
        tuple(
            cell * (1 + random.uniform(-2e-10, 2e-10)) if isinstance(cell, float) else cell
            for cell in row
        )
        for row in rows
    ]
    assert _same(rows, noisy, ordered=True)
    random.shuffle(noisy)
    assert _same(rows, noisy)


@given(st.floats(-1e9, 1e9, allow_nan=False), st.booleans())
def test_a_millionth_is_seen(value, ordered):
    assert not _same([(value,)], [(value + max(abs(value), 1.0) * 1e-6,)], ordered)


def test_rows_are_not_paired_by_the_noise_of_their_floats():
    gold = [(1.0, 2.0, "a"), (1.0 + 1e-12, 1.0, "b")]
    other = [(1.0 + 1e-12, 2.0, "a"), (1.0, 1.0, "b")]
    assert _same(gold, other)
    assert not _same(gold, [(1.0, 1.0, "a"), (1.0, 2.0, "b")])


@pytest.mark.parametrize(
    ("gold", "other", "same"),
    [
        ([(1,), (1,)], [(1,)], False),
        ([(1, 2)], [(2, 1)], False),
        ([(1,)], [(1.0,)], True),
        ([(1,)], [("1",)], False),
        ([("a",)], [(b"a",)], False),
        ([("a",)], [("A",)], False),
        ([(None,)], [(None,)], True),
        ([(None,)], [(0,)], False),
        ([(None, 0.5)], [(None, 0.5 + 1e-13)], True),
        ([(10**15, 0.5)], [(10**15 + 1, 0.5)], False),
        ([(2**62,), (0.5,)], [(2**62 + 1,), (0.5,)], False),
        ([(float("inf"),)], [(float("inf"),)], True),
        ([(float("inf"),)], [(1e308,)], False),
        ([(float("inf"),)], [(float("-inf"),)], False),
    ],
)
def test_cells(gold, other, same):
    assert _same(gold, other) is same
    assert _same(gold, other, ordered=True) is same


def test_empty_results_need_the_same_width():
    assert same_result(_result([], 2), _result([], 2), ordered=False)
    assert not same_result(_result([], 2), _result([], 1), ordered=False)


def test_cost_is_near_linear():
    """Pairing these rows one by one would take 200 million comparisons, well over ten seconds."""
    gold = [(i % 7, i * 0.1, f"n{i % 11}") for i in range(20_000)]
    other = [(a, b * (1 + 1e-14), c) for a, b, c in reversed(gold)]
    assert _same(gold, other)
    assert thread_seconds(lambda: _same(gold, other), tries=2) < 3.0


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order\n\tby a limit 1", True),
        ("SELECT a FROM t UNION SELECT b FROM u ORDER BY 1", True),
        ("SELECT a FROM t ORDER /* ( */ BY a", True),
        ("SELECT ')' FROM t WHERE b = '(' ORDER BY a", True),
        ("SELECT a FROM t", False),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3)", False),
        ("WITH c AS (SELECT a FROM t ORDER BY a) SELECT * FROM c", False),
        ("SELECT row_number() OVER (ORDER BY a) FROM t", False),
        ("SELECT a FROM t WHERE b = 'x ORDER BY y'", False),
        ("SELECT a FROM t WHERE b = 'it''s ORDER BY y'", False),
        ('SELECT "ORDER BY" FROM t', False),
        ("SELECT `ORDER BY`, [ORDER BY] FROM t", False),
        ("SELECT a FROM t -- ORDER BY a", False),
        ("SELECT reorder, by FROM t", False),
    ],
)
def test_outermost_order(query, ordered):
    assert orders_rows(query) is ordered


@settings(max_examples=30)
@given(st.lists(st.text(max_size=30), max_size=5))
def test_outermost_order_takes_any_text(parts):
    query = "".join(chain.from_iterable((part, "'", "(") for part in parts))
    assert orders_rows(query) in (True, False)
