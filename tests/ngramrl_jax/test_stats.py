"""The chi-square tests themselves: right numbers, right error rate, power."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from ngramrl_jax import stats


@pytest.mark.parametrize("dof", [1, 2, 3, 10, 63, 255, 4096])
def test_tail_equals_scipy(dof):
    for x in (1e-3, 0.5 * dof, dof, 2 * dof, dof + 100.0):
        expected = scipy_stats.chi2.sf(x, dof)
        assert stats.chi_square_tail(x, dof) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_chi_square_equals_scipy():
    observed, probs = np.array([43, 52, 105]), np.array([0.25, 0.25, 0.5])
    ours = stats.chi_square(observed, probs)
    theirs = scipy_stats.chisquare(observed, probs * observed.sum())
    assert ours.dof == 2
    assert ours.statistic == pytest.approx(theirs.statistic)
    assert ours.p_value == pytest.approx(theirs.pvalue)


def test_independence_equals_scipy():
    table = np.array([[30, 14, 25], [11, 40, 22]])
    ours = stats.independence(table)
    theirs = scipy_stats.chi2_contingency(table, correction=False)
    assert (ours.dof, ours.p_value) == (2, pytest.approx(theirs.pvalue))
    assert stats.homogeneity(table[0], table[1]) == ours


def test_small_cells_are_merged():
    # Expected 50, 44, 3, 2, 1: the last three make one cell of 6.
    result = stats.chi_square([50, 44, 6, 0, 0], [0.50, 0.44, 0.03, 0.02, 0.01])
    assert (result.dof, result.statistic, result.p_value) == (2, 0.0, 1.0)
    # Expected 90, 8, 2: the last two make one cell of 10.
    assert stats.chi_square([90, 10, 0], [0.9, 0.08, 0.02]).dof == 1
    # Nothing to compare: fewer than five counts in all.
    assert stats.chi_square([1, 2], [0.5, 0.5]) == (0.0, 0, 1.0)
    assert stats.independence([[500, 300, 1], [400, 350, 2], [1, 0, 3]]).dof <= 2
    assert stats.independence([[5, 0], [7, 0]]).dof == 0


def test_an_impossible_outcome_is_a_contradiction():
    assert stats.chi_square([99, 1], [1.0, 0.0]).p_value == 0.0
    assert stats.chi_square([100, 0], [1.0, 0.0]).p_value == 1.0


@pytest.mark.stat
def test_error_rate_is_alpha_and_a_biased_law_is_found():
    """1000 true and 1000 biased samples at alpha 0.05.

    The count of false alarms lies in 23 .. 81 with probability 1 - 1e-4.
    """
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(20))
    biased = probs * np.where(np.arange(20) % 2, 1.25, 1.0)
    alarms, found = (
        sum(stats.chi_square(rng.multinomial(2000, law), probs).p_value < 0.05 for _ in range(1000))
        for law in (probs, biased / biased.sum())
    )
    assert 23 <= alarms <= 81
    assert found > 900


def test_holm_rejects_step_by_step():
    assert stats.holm([0.010, 0.040, 0.030, 0.005], 0.05) == [True, False, False, True]
    assert stats.holm([0.04, 0.04], 0.05) == [False, False]
    assert stats.holm([], 0.05) == []
    with pytest.raises(ValueError, match="p_values: found nan"):
        stats.holm([float("nan"), 0.001], 0.05)


def test_total_variation():
    assert stats.total_variation([0.5, 0.5, 0.0], [0.5, 0.0, 0.5]) == 0.5
    assert stats.total_variation([10, 30], [0.25, 0.75]) == 0.0


@pytest.mark.parametrize(
    ("observed", "probs", "message"),
    [
        ([1, 2], [0.5, 0.25, 0.25], "expected_probs: found shape"),
        ([1, -2], [0.5, 0.5], "observed: found a count of -2"),
        ([1, 2], [0.5, 0.4], "expected_probs: found sum 0.9"),
    ],
)
def test_bad_input_is_named(observed, probs, message):
    with pytest.raises(ValueError, match=message):
        stats.chi_square(observed, probs)
