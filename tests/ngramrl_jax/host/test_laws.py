"""What the history keeps of the policy's laws: likely tokens, and only where there is a choice."""

import numpy as np
import pytest

from ngramrl_jax.host.laws import NEGLIGIBLE, WHOLE, laws_of, no_laws
from ngramrl_jax.types import BestTokens
from tests.support import drafter_reference


def best(ids_NR, probs_NR):
    with np.errstate(divide="ignore"):
        return BestTokens(np.array(ids_NR, np.int32), np.log(np.array(probs_NR, np.float32)))


def entries(laws):
    return laws.count_N.tolist(), laws.ids_M.tolist(), laws.probs_M.tolist()


def test_likely_tokens_are_listed_with_their_probabilities():
    laws = laws_of(
        best([[3, 5, 7], [5, 3, 7]], [[0.5, 0.25, 0.125], [0.5, 0.5, 0]]), np.array([5, 9])
    )
    whole = np.array([0.5, 0.25, 0.125, 0.5, 0.5]) * WHOLE
    assert entries(laws)[:2] == ([3, 2], [3, 5, 7, 5, 3])
    np.testing.assert_allclose(laws.probs_M, whole, atol=0.6)
    assert (laws.count_N.dtype, laws.ids_M.dtype, laws.probs_M.dtype) == (
        np.int32,
        np.int32,
        np.uint16,
    )


def test_a_token_that_was_all_but_certain_needs_no_law():
    sure = 1 - (NEGLIGIBLE - 1) / WHOLE
    certain = best([[3, 5]] * 2, [[1, 0], [sure, 1 - sure]])
    assert entries(laws_of(certain, np.array([3, 3]))) == ([0, 0], [], [])
    assert entries(laws_of(certain, np.array([5, 5])))[:2] == ([1, 1], [3, 3]), "not drawn"
    unsure = best([[3, 5]], [[0.998, 0.002]])
    assert entries(laws_of(unsure, np.array([3])))[:2] == ([2], [3, 5])


def test_impossible_and_unknown_tokens_are_not_listed():
    logps_NR = np.array([[np.log(0.5), -np.inf], [np.nan, np.log(0.5)], [-np.inf, -np.inf]])
    laws = laws_of(BestTokens(np.zeros((3, 2), np.int32), logps_NR), np.array([1, 1, 1]))
    assert entries(laws)[:2] == ([1, 0, 0], [0])


def test_the_listing_is_that_of_counting():
    """Also of laws whose float32 probabilities add up to a little more than 1."""
    rng = np.random.default_rng(0)
    logps_NR = rng.normal(size=(500, 6)) * 5
    logps_NR = -np.sort(np.log(np.exp(logps_NR).sum(1, keepdims=True)) - logps_NR, axis=1)
    given = BestTokens(
        np.array([rng.permutation(6) for _ in range(500)], np.int32), logps_NR.astype(np.float32)
    )
    tokens_N = np.where(rng.random(500) < 0.5, given.ids_NR[:, 0], 6)
    expected = drafter_reference.laws(tokens_N.tolist(), given)
    count_N, ids_M, probs_M = entries(laws_of(given, tokens_N))
    assert count_N == [len(law) for law in expected]
    assert list(zip(ids_M, probs_M, strict=True)) == [entry for law in expected for entry in law]
    assert 0 in count_N
    assert len(set(count_N)) > 3


@pytest.mark.parametrize(
    ("ids_shape", "logps_shape"),
    [((3, 2), (3, 1)), ((2, 2), (2, 2)), ((3, 0), (3, 0)), ((3,), (3,)), ((3, 2, 1), (3, 2, 1))],
)
def test_other_shapes_are_refused(ids_shape, logps_shape):
    wrong = BestTokens(np.zeros(ids_shape, np.int32), np.zeros(logps_shape, np.float32))
    with pytest.raises(ValueError, match=r"^best: found ids .*, allowed: both \[3, 1 or more\]$"):
        laws_of(wrong, np.array([1, 2, 3]))


def test_nothing_known_is_no_entry():
    assert entries(no_laws(3)) == ([0, 0, 0], [], [])
