"""The oracle itself, held to exact laws by enumeration: what is committed follows p."""

import itertools

import numpy as np
import pytest

from ngramrl_jax.types import Sampling
from ngramrl_jax.verify import oracle

K, V = 2, 4


def random_model(seed, zeros=0.25):
    """`p(prefix)` and `q(prefix)` for every prefix: float64 laws, some of them with zeros."""
    rng = np.random.default_rng(seed)

    def table():
        laws = {}
        for size in range(K + 1):
            for prefix in itertools.product(range(V), repeat=size):
                law = rng.dirichlet(np.ones(V)) * (rng.random(V) > zeros)
                laws[prefix] = law / law.sum() if law.any() else np.eye(V)[0]
        return laws.__getitem__

    return table(), table()


def sequences(p):
    """The law of K + 1 tokens of plain decoding."""
    law = {}
    for tokens in itertools.product(range(V), repeat=K + 1):
        law[tokens] = float(np.prod([p(tokens[:t])[tokens[t]] for t in range(K + 1)]))
    return law


def completed(law, p):
    """The law of K + 1 tokens, where plain decoding goes on after the committed ones."""
    full = dict.fromkeys(itertools.product(range(V), repeat=K + 1), 0.0)
    for committed, mass in law.items():
        for rest in itertools.product(range(V), repeat=K + 1 - len(committed)):
            tokens = (*committed, *rest)
            steps = [p(tokens[:t])[tokens[t]] for t in range(len(committed), K + 1)]
            full[tokens] += mass * float(np.prod(steps))
    return full


def law_of_round(p, q, draft, length, one_hot):
    probs = np.stack([p(tuple(np.clip(draft[:t], 0, V - 1))) for t in range(K + 1)])
    if one_hot:
        q_KV = oracle.one_hot_q(draft, V)
    else:
        q_KV = np.stack([q(tuple(draft[:t])) for t in range(K)])
    return oracle.round_law(probs, np.array(draft), length, q_KV)


def test_one_id_kept_is_the_best():
    law = oracle.adjusted_probs(np.array([0.5, 2.0, 2.0, -1.0]), Sampling(top_k=1))
    assert law.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_mass_that_is_reached_exactly_is_enough():
    law = oracle.adjusted_probs(np.zeros(4), Sampling(top_p=0.5))
    assert law.tolist() == [0.5, 0.5, 0.0, 0.0]


@pytest.mark.parametrize("seed", range(5))
def test_a_chosen_draft_leaves_the_law_alone(seed):
    """Every draft, ids outside the vocabulary included, at every length: equal within 1e-12."""
    p, q = random_model(seed)
    expected = sequences(p)
    for draft in itertools.product([-1, *range(V), V], repeat=K):
        for length in range(K + 1):
            actual = completed(law_of_round(p, q, draft, length, one_hot=True), p)
            assert actual == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_a_drawn_draft_leaves_the_law_alone(seed):
    p, q = random_model(seed)
    expected = sequences(p)
    for length in range(K + 1):
        actual = dict.fromkeys(expected, 0.0)
        for draft in itertools.product(range(V), repeat=K):
            mass = float(np.prod([q(draft[:t])[draft[t]] for t in range(K)]))
            law = law_of_round(p, q, draft, length, one_hot=False)
            for tokens, given in completed(law, p).items():
                actual[tokens] += mass * given
        assert actual == pytest.approx(expected, abs=1e-12)


def test_law_of_a_round_by_hand():
    """FACTS 0.2: P(j, b) = S_j p(b), b other than the next draft token unless the draft is over."""
    p = np.array([[0.5, 0.5], [0.25, 0.75]])
    law = oracle.round_law(p, np.array([1]), 1, oracle.one_hot_q([1], 2))
    assert law == pytest.approx({(0,): 0.5, (1, 0): 0.125, (1, 1): 0.375})


def test_verdicts_follow_the_law():
    """10,000 noise draws of each verifier lie within 0.02 of the exact law in total variation.

    The expected distance is about 0.01 for at most ten outcomes, its deviation 0.003.
    """
    rng = np.random.default_rng(1)
    probs, q = rng.dirichlet(np.ones(V), K + 1), rng.dirichlet(np.ones(V), K)
    draft = np.array([0, 1])
    rows = 10_000
    uniforms, noises = rng.random((rows, K)), rng.gumbel(size=(rows, K + 1, V))
    one_hot = oracle.one_hot_q(draft, V)
    verdicts = {
        "coupled": (one_hot, [oracle.coupled_verdict(probs, draft, K, n) for n in noises]),
        "drawn": (
            q,
            [
                oracle.rejection_verdict(probs, draft, K, q, u, n)
                for u, n in zip(uniforms, noises, strict=True)
            ],
        ),
    }
    for q_KV, rounds in verdicts.values():
        law = oracle.round_law(probs, draft, K, q_KV)
        assert sum(law.values()) == pytest.approx(1.0)
        counts = dict.fromkeys(law, 0)
        for verdict in rounds:
            counts[tuple(verdict.tokens)] += 1
        distance = 0.5 * sum(abs(counts[tokens] / rows - mass) for tokens, mass in law.items())
        assert distance < 0.02


def test_a_token_is_accepted_below_its_probability_and_not_at_it():
    """And where q does not favour it, whatever the number: one in float32 may round to 1."""
    p, q = np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([[0.5, 0.5]])
    noise = [[0.0, 0.0], [0.0, 0.0]]
    for draft, uniform, accepted in ((0, 0.499, 1), (0, 0.5, 0), (1, 1.0, 1)):
        assert oracle.rejection_verdict(p, [draft], 1, q, [uniform], noise).accepted == accepted
    even = np.array([[0.25, 0.75]])
    assert oracle.rejection_verdict(p, [0], 1, even, [1.0], noise).accepted == 1
    sure = np.array([[1.0, 0.0], [0.5, 0.5]])
    for draft, accepted in ((0, 1), (1, 0)):  # what neither of them can say is no draft
        verdict = oracle.rejection_verdict(sure, [draft], 1, sure[:1], [0.5], noise)
        assert verdict.accepted == accepted


def test_adjusted_probs_of_any_logits():
    """Plain lists, forbidden ids, and logits whose exponentials nothing holds."""
    for offset in (-2000, 0, 2000):
        logits = [offset, offset + 1, -np.inf]
        expected = np.array([1, np.e, 0]) / (1 + np.e)
        np.testing.assert_allclose(oracle.adjusted_probs(logits, Sampling()), expected)
        np.testing.assert_array_equal(oracle.adjusted_probs(logits, Sampling(0.0)), [0, 1, 0])


def test_adjusted_probs_by_hand():
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    np.testing.assert_allclose(
        oracle.adjusted_probs(logits, Sampling(top_p=0.65)), [4 / 7, 3 / 7, 0, 0]
    )
    np.testing.assert_allclose(
        oracle.adjusted_probs(logits, Sampling(0.5, top_k=2)), [0.64, 0.36, 0, 0]
    )
