"""Both verifiers against the oracle, and single rounds with a known right value."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax import stats
from ngramrl_jax.types import Sampling
from ngramrl_jax.verify import oracle
from ngramrl_jax.verify import rejection as rejection_module
from ngramrl_jax.verify.adjust import adjusted_log_probs
from ngramrl_jax.verify.coupled import verify_coupled
from ngramrl_jax.verify.keyed import gumbel
from ngramrl_jax.verify.rejection import (
    Dense,
    OneHot,
    Sparse,
    acceptance_uniform,
    emission_noise,
    verify_rejection,
)

B, K, V = 256, 4, 6
ALPHA = 1e-3
coupled, rejection = jax.jit(verify_coupled), jax.jit(verify_rejection)


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def random_case(seed):
    """Laws with zeros, drafts of every length with zero-probability and impossible ids."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(B, K + 1, V)) * 4
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[..., 0] = np.where(np.isinf(logits).all(-1), 0.0, logits[..., 0])
    q = softmax(rng.normal(size=(B, K, V)) * 2)
    q[rng.random(q.shape) < 0.3] = 0.0
    q[..., 1] += q.sum(-1) == 0
    q /= q.sum(-1, keepdims=True)
    likely = np.argmax(logits[:, :K] + rng.gumbel(size=(B, K, V)) * 0.3, -1)
    drawn = np.argmax(np.log(np.maximum(q, 1e-30)) + rng.gumbel(size=q.shape), -1)
    hostile = rng.choice([-1, V, 2**31 - 1, -(2**31)], size=(B, K))
    draft = np.where(rng.random((B, K)) < 0.8, likely, drawn)
    draft = np.where(rng.random((B, K)) < 0.05, hostile, draft).astype(np.int32)
    length = rng.integers(0, K + 1, B).astype(np.int32)
    logp = np.asarray(adjusted_log_probs(jnp.asarray(logits, jnp.float32), Sampling()))
    return (
        logp,
        draft,
        length,
        q.astype(np.float32),
        jax.random.split(jax.random.key(seed), (B, K + 1)),
    )


def check_row(verdict, row, expected):
    """CASES B6: a tokens kept, exactly one emitted; B31, B32: each with its log-probability."""
    count = int(verdict.accepted_B[row]) + 1
    assert count == expected.accepted + 1
    assert verdict.tokens_BT[row, :count].tolist() == expected.tokens
    np.testing.assert_allclose(verdict.logp_BT[row, :count], expected.logps, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_coupled_equals_the_oracle(seed):
    logp, draft, length, _, keys = random_case(seed)
    noise = np.asarray(gumbel(keys, V))
    verdict = jax.device_get(coupled(logp, draft, length, noise))
    for row in range(B):
        expected = oracle.coupled_verdict(np.exp(logp[row]), draft[row], length[row], noise[row])
        check_row(verdict, row, expected)
    assert set(verdict.accepted_B.tolist()) == set(range(K + 1))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("form", ["one-hot", "sparse", "dense"])
def test_rejection_equals_the_oracle(form, seed):
    logp, draft, length, q_BKV, keys = random_case(seed)
    uniform, noise = np.asarray(acceptance_uniform(keys)), np.asarray(emission_noise(keys, V))
    if form == "one-hot":
        law, q_BKV = None, np.stack([oracle.one_hot_q(row, V) for row in draft])
    elif form == "dense":
        law = Dense(jnp.asarray(q_BKV))
    else:
        law = Sparse(*sparse(q_BKV))
    verdict = jax.device_get(rejection(logp, draft, length, keys, law))
    for row in range(B):
        expected = oracle.rejection_verdict(
            np.exp(logp[row].astype(np.float64)),
            draft[row],
            length[row],
            q_BKV[row],
            uniform[row],
            noise[row],
        )
        check_row(verdict, row, expected)
    assert set(verdict.accepted_B.tolist()) == set(range(K + 1))


def sparse(q_BKV):
    """The ids of `q_BKV` by falling probability; empty places hold impossible ids."""
    ids = np.argsort(-q_BKV, -1).astype(np.int32)
    probs = np.take_along_axis(q_BKV, ids, -1)
    ids = np.where(probs > 0, ids, np.where(ids % 2, -1, V)).astype(np.int32)
    return jnp.asarray(ids), jnp.asarray(probs)


def test_a_row_is_decided_alike_in_whatever_company():
    """Alone, too: nothing of a row's verdict, not even a fallback, comes from another row."""
    logp, draft, length, q_BKV, keys = random_case(8)
    for q in (OneHot(), Dense(jnp.asarray(q_BKV)), Sparse(*sparse(q_BKV))):
        together = jax.device_get(rejection(logp, draft, length, keys, q))
        for row in range(20):
            only = slice(row, row + 1)
            law = jax.tree.map(lambda array, only=only: array[only], q)
            alone = rejection(logp[only], draft[only], length[only], keys[only], law)
            count = int(together.accepted_B[row]) + 1
            assert alone.accepted_B.tolist() == [count - 1]
            np.testing.assert_array_equal(
                alone.tokens_BT[0, :count], together.tokens_BT[row, :count]
            )


def test_forms_of_q_agree_where_they_coincide():
    logp, draft, length, q_BKV, keys = random_case(7)
    draft = np.where((draft < 0) | (draft >= V), 0, draft)
    one_hot = jnp.asarray(draft[..., None] == np.arange(V), jnp.float32)
    same = (
        [
            OneHot(),
            None,
            Dense(one_hot),
            Sparse(jnp.asarray(draft[..., None]), jnp.ones((B, K, 1))),
        ],
        [Dense(jnp.asarray(q_BKV)), Sparse(*sparse(q_BKV))],
    )
    for laws in same:
        first, *others = (jax.device_get(rejection(logp, draft, length, keys, q)) for q in laws)
        for other in others:
            for ours, theirs in zip(first, other, strict=True):
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("seed", range(3))
def test_coupled_commits_what_plain_decoding_says(seed):
    """Whatever the draft: with the same noise, the tokens of K = 0, position by position."""
    logp, draft, length, _, keys = random_case(seed)
    noise = gumbel(keys, V)
    verdict = jax.device_get(coupled(logp, draft, length, noise))
    empty = jnp.zeros((B, 0), jnp.int32)
    for t in range(K + 1):
        plain = coupled(logp[:, t : t + 1], empty, jnp.zeros_like(length), noise[:, t : t + 1])
        committed = t <= verdict.accepted_B
        np.testing.assert_array_equal(
            np.asarray(plain.tokens_BT[:, 0])[committed], verdict.tokens_BT[committed, t]
        )


def test_slots_past_the_length_do_not_count():
    """CASES B10: p puts all its mass on what a wrapped pad id would point at."""
    logp = np.full((2, 4, V), -np.inf, np.float32)
    logp[0, 0, 5] = logp[0, 1:, V - 1] = 0.0
    logp[1, :, 3] = 0.0  # the pads even hold the token that the target says
    draft = jnp.array([[5, -1, -1], [3, 3, 3]], jnp.int32)
    length = jnp.array([1, 1], jnp.int32)
    keys = jax.random.split(jax.random.key(0), (2, 4))
    for verdict in (
        coupled(logp, draft, length, gumbel(keys, V)),
        rejection(logp, draft, length, keys, None),
    ):
        assert verdict.accepted_B.tolist() == [1, 1]
        assert verdict.tokens_BT[:, :2].tolist() == [[5, V - 1], [3, 3]]


def test_greedy_rows_ignore_noise_and_draft():
    logits = jnp.asarray(np.round(np.random.default_rng(0).normal(size=(B, K + 1, V)), 0))
    logp = adjusted_log_probs(logits, Sampling(0.0))
    best = np.argmax(np.asarray(logits), -1)
    _, draft, length, _, keys = random_case(0)
    for verdict in (
        coupled(logp, draft, length, gumbel(keys, V)),
        rejection(logp, draft, length, keys, None),
    ):
        verdict = jax.device_get(verdict)
        kept = np.arange(K + 1) <= verdict.accepted_B[:, None]
        np.testing.assert_array_equal(verdict.tokens_BT[kept], best[kept])
        np.testing.assert_array_equal(verdict.logp_BT[kept], 0.0)


def test_the_largest_number_rejects_no_token_that_q_does_not_favour(monkeypatch):
    """It is 1 in float32, and 1 is not below 1."""
    top = jnp.uint32(2**32 - 1)
    monkeypatch.setattr(
        rejection_module, "random_bits", lambda key, count: jnp.full((*key.shape, count), top)
    )
    logp = jnp.log(jnp.full((1, 2, V), 1 / V))
    even, above = jnp.exp(logp[:, :1]), jnp.full((1, 1, V), 0.5)
    keys, one = jax.random.split(jax.random.key(0), (1, 2)), jnp.ones(1, jnp.int32)
    for q_BKV, accepted in ((even, 1), (above, 0)):
        verdict = verify_rejection(logp, one[:, None], one, keys, Dense(q_BKV))
        assert int(verdict.accepted_B[0]) == accepted


def test_the_test_of_a_token_and_the_next_one_share_no_randomness():
    """With one stream for both, the first id's noise would be that of the uniform number."""
    keys = jax.random.split(jax.random.key(0), 1000)
    first = np.exp(-np.exp(-np.asarray(emission_noise(keys, V)[:, 0])))
    assert np.abs(first - np.asarray(acceptance_uniform(keys))).max() > 0.9


def test_mass_of_q_on_ids_outside_the_vocabulary_takes_nothing_from_the_target():
    ids, probs = jnp.array([[[-1, 1, V]]]), jnp.array([[[0.5, 0.3, 0.2]]])
    q_V = Sparse(ids, probs).at(jnp.zeros(1, jnp.int32), jnp.zeros((1, 1), jnp.int32), V)[0]
    np.testing.assert_array_equal(q_V, np.float32([0, 0.3, 0, 0, 0, 0]))


def test_no_form_of_q_gives_mass_to_an_id_outside_the_vocabulary():
    """Dense rows end there, and a list that does not name an id says 0."""
    outside = jnp.array([[-1, V]])
    uniform = jnp.full((1, 2, V), 1 / V)
    ids = jnp.broadcast_to(jnp.arange(V), uniform.shape)
    for q in (Dense(uniform), Sparse(ids, uniform)):
        np.testing.assert_array_equal(q.of_draft(outside), [[0.0, 0.0]])


def test_nothing_left_to_draw_from_falls_back_to_the_target():
    """q = p except for a token that p forbids: the rejection leaves no residual."""
    p = np.array([0.25, 0.75, 0.0, 0.0, 0.0, 0.0], np.float32)
    logp = jnp.broadcast_to(jnp.log(p), (B, 2, V))
    q = Dense(jnp.broadcast_to(jnp.array([0.25, 0.75, 0.5, 0.0, 0.0, 0.0]), (B, 1, V)))
    keys = jax.random.split(jax.random.key(0), (B, 2))
    draft = jnp.full((B, 1), 2, jnp.int32)
    verdict = jax.device_get(rejection(logp, draft, jnp.ones(B, jnp.int32), keys, q))
    assert not verdict.accepted_B.any()
    assert set(verdict.tokens_BT[:, 0].tolist()) == {0, 1}
    assert np.isfinite(verdict.logp_BT).all()


def test_a_nan_row_is_seen_and_its_tokens_are_ids():
    logp = adjusted_log_probs(jnp.full((1, 2, V), jnp.nan), Sampling())
    keys = jax.random.split(jax.random.key(0), (1, 2))
    for verdict in (
        coupled(logp, jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32), gumbel(keys, V)),
        rejection(logp, jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32), keys, None),
    ):
        assert 0 <= int(verdict.tokens_BT[0, 0]) < V
        assert np.isnan(verdict.logp_BT[0, 0])


# One round with K = 1, a million rows: the first committed token follows p. Each case of CASES
# gives logits or probabilities, a sampling, a draft token or a law to draw it from, and p.
N = 1_000_000
CASES = {
    "B1": (np.log([0.5, 0.3, 0.2]), Sampling(top_k=2), [0.2, 0.3, 0.5], [0.625, 0.375, 0.0]),
    "B2": (np.log([0.5, 0.3, 0.2]), Sampling(), 0, [0.5, 0.3, 0.2]),
    "B3": ([2.0, 1.5, 1.0], Sampling(), 0, softmax(np.array([2.0, 1.5, 1.0]))),
    "B5": ([1.0, 0.0, -np.inf], Sampling(0.5), 0, [0.8808, 0.1192, 0.0]),
    "B7": (np.log([0.6, 0.3, 0.1]), Sampling(2.0, top_p=0.85), 2, [0.4727, 0.3343, 0.1930]),
    "B8": ([3.0, 0.0, 0.0], Sampling(0.0), 1, [1.0, 0.0, 0.0]),
    "hostile": (np.log([0.5, 0.5, 1e-9]), Sampling(top_p=0.9), 2, [0.5, 0.5, 0.0]),
    "outside": (np.log([0.5, 0.3, 0.2]), Sampling(), -1, [0.5, 0.3, 0.2]),
    "mismatch": (np.log([0.7, 0.3, 1e-9]), Sampling(top_k=2), [0.0, 0.1, 0.9], [0.7, 0.3, 0.0]),
}


def _coupled(logp, draft, length, keys, q):
    del q
    return verify_coupled(logp, draft, length, gumbel(keys, 3))


@functools.partial(jax.jit, static_argnums=0)
def first_tokens(verify, logp_V, draft_N, q_V, key):
    """How often each token is committed first; `q_V` is None for a chosen draft."""
    rows = draft_N.shape[0]
    logp = jnp.broadcast_to(logp_V, (rows, 2, 3))
    q = None if q_V is None else Dense(jnp.broadcast_to(q_V, (rows, 1, 3)))
    keys = jax.random.split(key, (rows, 2))
    verdict = verify(logp, draft_N[:, None], jnp.ones(rows, jnp.int32), keys, q)
    return jnp.bincount(verdict.tokens_BT[:, 0], length=3)


@pytest.mark.stat
def test_known_cases_keep_the_right_law():
    """1e6 rows for each case and verifier; Holm at 1e-3 over all of them."""
    p_values = {}
    for number, (name, (logits, sampling, draft, expected)) in enumerate(CASES.items()):
        logp = adjusted_log_probs(jnp.asarray(logits, jnp.float32), sampling)
        np.testing.assert_allclose(np.exp(logp), expected, atol=1e-4)
        key = jax.random.key(number)
        if isinstance(draft, list):
            q_logp = adjusted_log_probs(jnp.log(jnp.array(draft)), sampling)
            draft_N = jax.random.categorical(jax.random.fold_in(key, 1), q_logp, shape=(N,))
            verifiers, q = {"dense": verify_rejection}, jnp.exp(q_logp)
        else:
            draft_N = jnp.full(N, draft, jnp.int32)
            verifiers, q = {"coupled": _coupled, "one-hot": verify_rejection}, None
        law = np.exp(np.asarray(logp, np.float64))
        for verifier, verify in verifiers.items():
            count = first_tokens(verify, logp, draft_N, q, key)
            p_values[name, verifier] = stats.chi_square(count, law / law.sum()).p_value
            assert stats.total_variation(count, law) < 5e-3
        if name == "B1":  # the fault: a ratio with the unprocessed q
            raw = first_tokens(verify_rejection, logp, draft_N, jnp.array(draft), key)
            np.testing.assert_allclose(raw / N, [0.531, 0.469, 0.0], atol=0.003)
    rejected = stats.holm(list(p_values.values()), ALPHA)
    assert not any(rejected), p_values


@pytest.mark.stat
def test_a_draft_drawn_in_bfloat16_is_tested_with_that_law():
    """CASES B4: total variation over 1e6 draws under 5e-3; the float32 law of q is caught."""
    logp = jnp.log(jnp.array([0.2, 0.5, 0.3]))
    logits = jnp.array([201.0, 200.4, 200.0])  # bfloat16 knows whole numbers here
    drawn = adjusted_log_probs(logits.astype(jnp.bfloat16), Sampling())
    meant = adjusted_log_probs(logits, Sampling())
    draft_N = jax.random.categorical(jax.random.key(6), drawn, shape=(N,))
    right, wrong = (
        first_tokens(verify_rejection, logp, draft_N, jnp.exp(q), jax.random.key(7))
        for q in (drawn, meant)
    )
    assert stats.total_variation(right, np.exp(logp)) < 5e-3
    assert stats.total_variation(wrong, np.exp(logp)) > 5e-3


@pytest.mark.stat
def test_accepted_counts_of_both_verifiers_follow_one_law():
    """Not only what is committed: also how much of a draft is. Error rate 1e-3."""
    p = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
    draft, length = [0, 1], 2
    keys = jax.random.split(jax.random.key(8), (N // 4, 3))
    args = (
        jnp.broadcast_to(jnp.log(jnp.asarray(p, jnp.float32)), (N // 4, 3, 3)),
        jnp.broadcast_to(jnp.array(draft, jnp.int32), (N // 4, 2)),
        jnp.full(N // 4, length, jnp.int32),
    )
    by_coupled = np.bincount(coupled(*args, gumbel(keys, 3)).accepted_B, minlength=3)
    by_rejection = np.bincount(rejection(*args, keys, None).accepted_B, minlength=3)
    exact = np.zeros(3)
    for tokens, mass in oracle.round_law(p, draft, length, oracle.one_hot_q(draft, 3)).items():
        exact[len(tokens) - 1] += mass
    np.testing.assert_allclose(exact, [0.4, 0.3, 0.3])
    p_values = [stats.chi_square(count, exact).p_value for count in (by_coupled, by_rejection)]
    p_values.append(stats.homogeneity(by_coupled, by_rejection).p_value)
    assert not any(stats.holm(p_values, ALPHA)), p_values
