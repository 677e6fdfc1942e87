"""Arrays that kernels hand on uncounted are the same arrays, and outlive their use."""

import gc
import sys
from typing import NamedTuple

import numpy as np

from ngramrl_jax.host.history import History
from ngramrl_jax.host.kernel import alive, borrowed, kernel
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.types import Int32Array


class Pair(NamedTuple):
    """Two arrays of different shape.

    Attributes:
        one_X: int32.
        two_XY: int32.
    """

    one_X: Int32Array
    two_XY: Int32Array


@kernel
def double(pair):
    """Through borrowed arrays."""
    lent = borrowed(pair)
    lent.one_X[:] *= 2
    lent.two_XY[0] *= 2
    return lent.two_XY.shape


@kernel
def sum_of_own(size):
    """Of arrays that the kernel made itself, with others made and dropped meanwhile."""
    mine = Pair(np.zeros(size, np.int32), np.zeros((size, 1), np.int32))
    lent = borrowed(mine)
    total = 0
    for x in range(size):
        other_X = np.full(size, -1, np.int32)
        lent.one_X[x] += x
        lent.two_XY[x, 0] += x
        total += lent.one_X[x] + lent.two_XY[x, 0] + other_X[x] + 1
    alive(mine)
    return total


def test_borrowed_arrays_are_the_same_arrays():
    pair = Pair(np.arange(4, dtype=np.int32), np.ones((2, 3), np.int32))
    assert double(pair) == (2, 3)
    assert pair.one_X.tolist() == [0, 2, 4, 6]
    assert pair.two_XY.tolist() == [[2, 2, 2], [1, 1, 1]]


def test_arrays_of_the_kernels_own_live_until_they_are_let_go():
    for size in (1, 10, 1000):
        assert sum_of_own(size) == size * (size - 1)


def test_drafting_keeps_no_array_and_frees_none():
    history = History()
    history.observe(0, np.arange(50), 0)
    drafter = NgramDrafter(2, 4, history)
    drafter.start_row(0, 0, np.array([1, 2]))
    drafter.propose(np.array([4, 4], np.int32))
    arrays = [*history.log, *drafter._view()]
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(100):
        drafter.propose(np.array([4, 4], np.int32))
    gc.collect()
    assert [sys.getrefcount(array) for array in arrays] == before
