"""The adjusted distribution equals its float64 oracle and the values of known cases."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.types import Sampling
from ngramrl_jax.verify.adjust import adjusted_log_probs, best, first_argmax
from ngramrl_jax.verify.oracle import adjusted_probs

adjust = jax.jit(adjusted_log_probs, static_argnums=1)


def probs_of(logits, sampling):
    return np.exp(np.asarray(adjust(jnp.asarray(logits, jnp.float32), sampling)))


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (1, 1.0), (3, 1.0), (0, 0.7), (5, 0.6), (100, 0.95)]
)
def test_equals_the_oracle(temperature, top_k, top_p):
    """Logits with many exact ties, so that every edge is settled by id."""
    sampling = Sampling(temperature, top_k, top_p)
    rng = np.random.default_rng(top_k)
    logits = np.round(rng.normal(size=(200, 3, 13)) * 2, 1)
    expected = np.apply_along_axis(adjusted_probs, -1, logits, sampling)
    np.testing.assert_allclose(probs_of(logits, sampling), expected, atol=2e-6)


def test_log_probs_of_a_temperature():
    """CASES B30."""
    actual = adjust(jnp.array([2.0, 1.0, 0.0]), Sampling(0.9))
    np.testing.assert_allclose(actual, [-0.363, -1.474, -2.585], atol=1e-3)


def test_temperature_comes_before_top_p():
    """CASES B7."""
    logits = np.log([0.6, 0.3, 0.1])
    np.testing.assert_allclose(
        probs_of(logits, Sampling(2.0, top_p=0.85)), [0.473, 0.334, 0.193], atol=1e-3
    )


def test_top_p_counts_within_top_k():
    # Of [.4, .3, .2, .1], top-k 2 leaves [.571, .429]: top-p 0.55 keeps one, not two.
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    np.testing.assert_array_equal(probs_of(logits, Sampling(1.0, 2, 0.55)), [1, 0, 0, 0])


def test_the_tightest_filters_leave_what_greedy_says():
    logits = np.random.default_rng(0).normal(size=(50, 5))
    greedy = probs_of(logits, Sampling(0.0))
    for sampling in (Sampling(1.5, top_k=1), Sampling(1.5, top_p=1e-6)):
        np.testing.assert_array_equal(probs_of(logits, sampling), greedy)
        np.testing.assert_array_equal([adjusted_probs(row, sampling) for row in logits], greedy)


def test_a_mass_that_is_reached_exactly_is_enough():
    flat, sampling = np.zeros(4), Sampling(top_p=0.5)
    np.testing.assert_array_equal(probs_of(flat, sampling), [0.5, 0.5, 0, 0])
    np.testing.assert_array_equal(adjusted_probs(flat, sampling), [0.5, 0.5, 0, 0])


def test_a_top_p_of_one_keeps_a_tail_that_no_float32_sum_can_see():
    logp = adjust(jnp.array([0.0, -30.0]), Sampling(top_p=1.0))
    np.testing.assert_allclose(logp, [0.0, -30.0])


@pytest.mark.parametrize("top_k", [0, 4, 99])
def test_filters_that_filter_nothing_cost_nothing(top_k):
    """CASES B9: the same distribution bit for bit, by the same program."""
    logits = jnp.array([[3.0, 1.0, 1.0, -2.0]])
    sampling = Sampling(0.7, top_k, 1.0)
    np.testing.assert_array_equal(adjust(logits, sampling), adjust(logits, Sampling(0.7)))
    programs = [
        str(jax.make_jaxpr(functools.partial(adjusted_log_probs, sampling=given))(logits))
        for given in (sampling, Sampling(0.7))
    ]
    assert programs[0] == programs[1]


@pytest.mark.parametrize("sampling", [Sampling(0.7, 3), Sampling(top_p=0.6), Sampling(2.0, 5, 0.9)])
def test_a_row_is_adjusted_alike_in_whatever_company(sampling):
    """Alone too, where there are fewer rows than ids; with ties at the edges."""
    logits = np.round(np.random.default_rng(0).normal(size=(9, 7)))
    together = probs_of(logits, sampling)
    for row in range(9):
        alone = probs_of(logits[row : row + 1], sampling)
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-45])
def test_greedy_ties_go_to_the_lowest_id(temperature):
    """CASES B8: P(arg-max) = 1, also at temperatures that float32 cannot divide by."""
    logits = np.array([[1.0, 1.0, 0.0], [3.0, 0.0, 0.0], [0.0, 2.0, 2.0]])
    expected = [[1, 0, 0], [1, 0, 0], [0, 1, 0]]
    np.testing.assert_array_equal(probs_of(logits, Sampling(temperature)), expected)


def test_ties_at_the_edges_keep_lower_ids():
    flat = np.zeros(6)
    np.testing.assert_array_equal(probs_of(flat, Sampling(top_k=2)) > 0, [1, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(probs_of(flat, Sampling(top_p=0.4)) > 0, [1, 1, 1, 0, 0, 0])


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.0), Sampling(1.0, 3, 0.9)])
def test_forbidden_ids_stay_forbidden_and_bad_rows_say_so(sampling):
    inf, nan = np.inf, np.nan
    logits = jnp.array(
        [[-inf, 0.0, 1.0, -inf], [0.0, nan, 1.0, 2.0], [0.0, inf, 1.0, 2.0], [-inf] * 4]
    )
    logp = np.asarray(adjust(logits, sampling))
    assert (logp[0] == -inf).tolist() == [True, sampling.greedy, False, True]
    assert np.isnan(logp[1:]).any(axis=1).all()


def test_bfloat16_logits_are_adjusted_in_float32():
    logits = jax.random.normal(jax.random.key(0), (64,)).astype(jnp.bfloat16)
    logp = adjust(logits, Sampling(0.8))
    assert logp.dtype == jnp.float32
    assert float(jnp.sum(jnp.exp(logp))) == pytest.approx(1.0, abs=1e-6)


def test_gradient_is_that_of_log_softmax():
    logits = jax.random.normal(jax.random.key(1), (8,))
    ours = jax.grad(lambda x: adjusted_log_probs(x, Sampling(0.5))[3])(logits)
    theirs = jax.grad(lambda x: jax.nn.log_softmax(x / 0.5)[3])(logits)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    filtered = jax.grad(lambda x: adjusted_log_probs(x, Sampling(0.5, 3, 0.9)).max())(logits)
    assert np.isfinite(filtered).all()


def test_first_argmax():
    scores = jnp.array([[0.0, 2.0, 2.0], [-jnp.inf] * 3, [jnp.nan] * 3])
    assert first_argmax(scores).tolist() == [1, 0, 2]
    for vocab in (2048, 4096, 5003):  # fewer blocks than ids in one, as many, and more
        many = np.round(np.random.default_rng(0).normal(size=(2, 50, vocab))).astype(np.float32)
        np.testing.assert_array_equal(first_argmax(jnp.asarray(many)), many.argmax(-1))


@pytest.mark.parametrize("vocab", [4, 2048, 4096, 5003, 49_152])
@pytest.mark.parametrize("ties", [False, True])
def test_the_best_are_those_of_top_k(vocab, ties):
    """Whole blocks of the vocabulary are left out, but never one with a better or an equal id."""
    score = np.random.default_rng(vocab).normal(size=(3, 2, vocab)).astype(np.float32)
    if ties:
        score = np.round(score)
        score[0] = -np.inf  # nothing but equal values
    for count in (0, 1, 4):
        expected = jax.lax.top_k(jnp.asarray(score), count)
        for got, wanted in zip(best(jnp.asarray(score), count), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
