"""Rows in slices: the same results, in slices that are small enough and divide the rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.rollout import slices


@pytest.mark.parametrize(
    ("rows", "per_row", "limit", "expected"),
    [(8, 10, 100, 8), (8, 10, 79, 4), (8, 10, 20, 2), (8, 10, 5, 1), (7, 10, 60, 1), (6, 1, 4, 3)],
)
def test_the_slice_is_the_largest_divisor_within_the_limit(rows, per_row, limit, expected):
    assert slices.slice_rows(rows, per_row, limit) == expected


def test_slices_say_of_a_row_what_the_whole_says(monkeypatch):
    sizes = []

    def function(value_BV, shift_B):
        sizes.append(len(shift_B))
        return {"sum": value_BV.sum(1) + shift_B, "twice": 2 * value_BV}

    value_BV, shift_B = jnp.arange(60.0).reshape(6, 10), jnp.arange(6.0)
    whole = function(value_BV, shift_B)
    monkeypatch.setattr(slices, "CPU_ELEMENTS", 20)
    mapped = jax.jit(lambda *rows: slices.map_rows(function, *rows, elements_per_row=10))
    got = mapped(value_BV, shift_B)
    assert sizes == [6, 2]
    jax.tree.map(np.testing.assert_array_equal, got, whole)
