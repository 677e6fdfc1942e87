"""Tests of goodness of fit: is what was sampled what should have been sampled?

Shared by the test suite and by a user's own check, hence NumPy alone.

A p-value is the probability, if all is right, of data at least as far off as these. Whoever calls
p < alpha a failure is wrong, with everything right, in a share alpha of all runs: the error rate.
Over several tests, `holm` keeps the chance of even one false alarm at alpha. The chi-square law is
an approximation that needs about five expected counts in a cell: cells that fall short are merged.

Legend: C cells.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEAST_EXPECTED = 5.0


class ChiSquareResult(NamedTuple):
    """Outcome of a chi-square test.

    Attributes:
        statistic: Sum of (observed - expected)^2 / expected.
        dof: Degrees of freedom after merging cells; 0 where nothing was left to compare.
        p_value: Probability of a statistic at least this large if the hypothesis holds.
    """

    statistic: float
    dof: int
    p_value: float


def chi_square(observed_C: ArrayLike, expected_probs_C: ArrayLike) -> ChiSquareResult:
    """Pearson's test that counts were drawn from a known law.

    Args:
        observed_C: Counts of independent draws.
        expected_probs_C: Probability of each cell, summing to 1. Cells with fewer than five
            expected counts are merged, the smallest first. A count in a cell of probability 0 is
            a contradiction: p-value 0.

    Raises:
        ValueError: Shapes differ, a count is negative, or the probabilities do not sum to 1.
    """
    observed = _counts(observed_C, "observed")
    probs = np.asarray(expected_probs_C, np.float64)
    if probs.shape != observed.shape:
        raise ValueError(f"expected_probs: found shape {probs.shape}, allowed: {observed.shape}")
    if probs.size == 0 or np.any(probs < 0) or abs(probs.sum() - 1.0) > 1e-5:
        raise ValueError(f"expected_probs: found sum {probs.sum()}, allowed: 0 or more, sum 1")
    if np.any(observed[probs == 0] > 0):
        return ChiSquareResult(math.inf, max(observed.size - 1, 0), 0.0)
    order = np.argsort(probs)
    observed, expected = observed[order], probs[order] / probs.sum() * observed.sum()
    # Cells in rising order: merge as many as the first needs, and a first that never gets there.
    first = int(np.searchsorted(np.cumsum(expected), LEAST_EXPECTED))
    merged = max(first + 1, int(np.searchsorted(expected, LEAST_EXPECTED)))
    observed = np.append(observed[:merged].sum(), observed[merged:])
    expected = np.append(expected[:merged].sum(), expected[merged:])
    return _result(observed, expected, observed.size - 1)


def homogeneity(first_C: ArrayLike, second_C: ArrayLike) -> ChiSquareResult:
    """Tests that two samples of counts over the same cells come from one law, whatever it is.

    Raises:
        ValueError: Shapes differ or a count is negative.
    """
    first, second = _counts(first_C, "first"), _counts(second_C, "second")
    if first.shape != second.shape:
        raise ValueError(f"second: found shape {second.shape}, allowed: {first.shape}")
    return independence(np.stack([first, second]))


def independence(table: ArrayLike) -> ChiSquareResult:
    """Tests that the row and the column of a count in a contingency table are independent.

    Empty rows and columns are dropped; then the lightest two lines along the longer side are
    merged until every cell expects five counts or a 2 x 2 table is left.

    Raises:
        ValueError: Not a table, or a count is negative.
    """
    counts = _counts(table, "table", dimensions=2)
    counts = counts[counts.sum(1) > 0][:, counts.sum(0) > 0]
    while max(counts.shape, default=0) > 2 and _expected(counts).min() < LEAST_EXPECTED:
        counts = _merge_lightest_rows(counts if counts.shape[0] > counts.shape[1] else counts.T)
    return _result(counts, _expected(counts), (counts.shape[0] - 1) * (counts.shape[1] - 1))


def holm(p_values: Sequence[float], alpha: float) -> list[bool]:
    """Which of several tests fail, by Holm's step-down rule (Scand. J. Statist. 6, 1979).

    If every hypothesis holds, the chance that any is rejected is at most alpha, however the tests
    depend on each other.

    Returns:
        True for each rejected hypothesis, in the order given.

    Raises:
        ValueError: A p-value is not in 0 .. 1.
    """
    for p_value in p_values:
        if not 0 <= p_value <= 1:
            raise ValueError(f"p_values: found {p_value}, allowed: 0 to 1")
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def total_variation(first_C: ArrayLike, second_C: ArrayLike) -> float:
    """Half the summed difference of two laws or of two counts, each divided by its own sum."""
    first, second = np.asarray(first_C, np.float64), np.asarray(second_C, np.float64)
    return 0.5 * float(np.abs(first / first.sum() - second / second.sum()).sum())


def chi_square_tail(statistic: float, dof: int) -> float:
    """Probability that a chi-square variable with `dof` degrees of freedom reaches `statistic`.

    With a = dof / 2 and x = statistic / 2 this is Q(a, x), built up from Q(1/2, x) = erfc(sqrt x)
    or Q(0, x) = 0 by Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1) (DLMF 8.8.6).
    """
    if dof <= 0 or statistic <= 0:
        return 1.0
    x, a = statistic / 2, (dof % 2) / 2
    tail = math.erfc(math.sqrt(x)) if dof % 2 else 0.0
    for _ in range(dof // 2):
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(tail, 1.0)


def _result(observed: NDArray, expected: NDArray, dof: int) -> ChiSquareResult:
    if dof <= 0:
        return ChiSquareResult(0.0, 0, 1.0)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return ChiSquareResult(statistic, dof, chi_square_tail(statistic, dof))


def _counts(value: ArrayLike, name: str, dimensions: int = 1) -> NDArray[np.float64]:
    counts = np.asarray(value, np.float64)
    if counts.ndim != dimensions:
        raise ValueError(f"{name}: found {counts.ndim} dimensions, allowed: {dimensions}")
    if not np.all(counts >= 0):
        raise ValueError(f"{name}: found a count of {counts.min()}, allowed: 0 or more")
    return counts


def _expected(counts: NDArray) -> NDArray:
    return np.outer(counts.sum(1), counts.sum(0)) / max(counts.sum(), 1.0)


def _merge_lightest_rows(counts: NDArray) -> NDArray:
    order = np.argsort(counts.sum(1))
    return np.concatenate([counts[order[:2]].sum(0, keepdims=True), counts[order[2:]]])
