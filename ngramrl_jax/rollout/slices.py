"""A function of all rows, applied to a few rows at a time, so that what it makes stays small.

What a round makes of its logits is several arrays of rows x tokens x vocabulary. On a CPU they are
slow for being large: beyond the cache they stream through memory, and beyond glibc's 32 MB every
round asks the system for fresh pages. In slices the same work takes less than half the time. An
accelerator wants one large kernel; there the slices only bound the memory.

Legend: B rows, b rows of a slice.
"""

from collections.abc import Callable
from typing import TypeVar

import jax

Result = TypeVar("Result")

CPU_ELEMENTS = 2**21  # of one array of a slice: 8 MB in float32
DEVICE_ELEMENTS = 2**27


def map_rows(function: Callable[..., Result], *arrays: jax.Array, elements_per_row: int) -> Result:
    """`function(*arrays)`, computed in equal slices of the rows, one after the other.

    Args:
        function: Maps arrays `[b, ...]` to a pytree of arrays `[b, ...]` for any b; what it says
            of a row must depend on that row only.
        *arrays: Leading axis B.
        elements_per_row: Elements of the largest array that `function` makes of one row.
    """
    limit = CPU_ELEMENTS if jax.default_backend() == "cpu" else DEVICE_ELEMENTS
    rows = arrays[0].shape[0]
    size = slice_rows(rows, elements_per_row, limit)
    if size == rows:
        return function(*arrays)
    sliced = [array.reshape(rows // size, size, *array.shape[1:]) for array in arrays]
    results = jax.lax.map(lambda slices: function(*slices), sliced)
    return jax.tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[2:]), results)


def slice_rows(rows: int, elements_per_row: int, limit: int) -> int:
    """The largest divisor of `rows` that keeps a slice within the limit, 1 where none does."""
    within = max(1, limit // elements_per_row)
    return max(size for size in range(1, min(rows, within) + 1) if rows % size == 0)
