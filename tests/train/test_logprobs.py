"""Chunked log-probabilities against a plain computation of the whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.types import Sampling
from ngramrl_jax.verify.adjust import adjusted_log_probs
from tests.train.fake_policy import FakePolicy
from train.logprobs import token_log_probs

FILTERED = Sampling(temperature=0.8, top_k=6, top_p=0.9)
SAMPLINGS = [Sampling(), Sampling(temperature=0.9), FILTERED]


class TablePolicy:
    """Logits that are given, whatever the tokens."""

    def __init__(self, logits_V):
        self.vocab_size = len(logits_V)

    def hidden(self, params, tokens_BT, *, remat=False):
        return jnp.zeros((*tokens_BT.shape, 1))

    def logits(self, params, hidden_XD):
        return hidden_XD + params.reshape((1,) * (hidden_XD.ndim - 1) + (-1,))


def of_table(logits_V, target_R, sampling):
    logits_V = jnp.asarray(logits_V, jnp.float32)
    tokens_BT = jnp.asarray([[0, *target_R]], jnp.int32)
    policy = TablePolicy(logits_V)
    start_B = jnp.ones(1, jnp.int32)
    return token_log_probs(policy, logits_V, tokens_BT, start_B, len(target_R), sampling)


def batch(policy, rows=3, length=14, positions=6, seed=0):
    rng = np.random.default_rng(seed)
    tokens_BT = jnp.asarray(rng.integers(policy.vocab_size, size=(rows, length)), jnp.int32)
    start_B = jnp.asarray(rng.integers(1, length - positions + 1, size=rows), jnp.int32)
    return tokens_BT, start_B, positions


def plain(policy, params, tokens_BT, start_B, positions, sampling):
    """The whole `[B, T, V]` at once, in the most direct way; -inf outside the support."""
    full_BTV = adjusted_log_probs(policy.logits(params, policy.hidden(params, tokens_BT)), sampling)
    row_BR = np.repeat(np.arange(len(tokens_BT))[:, None], positions, axis=1)
    at_BR = np.asarray(start_B)[:, None] + np.arange(positions)
    return full_BTV[row_BR, at_BR - 1, tokens_BT[row_BR, at_BR]]


def test_the_temperature_is_in_and_the_token_is_the_given_one():
    said = of_table([2.0, 1.0, 0.0], [0, 1, 2], Sampling(temperature=0.9))
    np.testing.assert_allclose(said.logp_BR[0], [-0.363, -1.474, -2.585], atol=1e-3)
    said = of_table([2.0, 1.0, 0.0], [0, 1, 2], Sampling())
    np.testing.assert_allclose(said.logp_BR[0], [-0.408, -1.408, -2.408], atol=1e-3)
    assert not said.outside_BR.any()


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("chunk_tokens", [1, 7, 9, 1000])
def test_any_chunk_gives_the_value_and_gradient_of_the_whole(sampling, chunk_tokens):
    policy = FakePolicy()
    params = policy.init_params()
    tokens_BT, start_B, positions = batch(policy)

    def chunked(params):
        said = token_log_probs(
            policy, params, tokens_BT, start_B, positions, sampling, chunk_tokens=chunk_tokens
        )
        return jnp.sum(jnp.where(said.outside_BR, 0.0, said.logp_BR)), said

    def whole(params):
        logp_BR = plain(policy, params, tokens_BT, start_B, positions, sampling)
        return jnp.sum(jnp.where(jnp.isneginf(logp_BR), 0.0, logp_BR)), logp_BR

    (_, said), grads = jax.jit(jax.value_and_grad(chunked, has_aux=True))(params)
    (_, logp_BR), wanted = jax.jit(jax.value_and_grad(whole, has_aux=True))(params)
    np.testing.assert_array_equal(said.outside_BR, np.isneginf(logp_BR))
    inside_BR = ~np.asarray(said.outside_BR)
    np.testing.assert_allclose(said.logp_BR[inside_BR], logp_BR[inside_BR], atol=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(grad, wanted[name], atol=2e-5, err_msg=name)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_entropy_is_that_of_the_adjusted_distribution(sampling):
    logits_V = np.array([2.0, 1.0, 0.0, -1.0, 0.5, 0.4, -3.0])
    logp_V = np.asarray(
        adjusted_log_probs(jnp.asarray(logits_V, jnp.float32), sampling), np.float64
    )
    inside_V = np.isfinite(logp_V)
    wanted = -(np.exp(logp_V[inside_V]) * logp_V[inside_V]).sum()
    said = of_table(logits_V, [0], sampling)
    np.testing.assert_allclose(said.entropy_BR, [[wanted]], rtol=1e-5)


def test_a_token_outside_the_support_is_counted_and_finite():
    """Tokens 1 and 2 are equal but for a rounding, and top-k keeps one of them."""
    logits_V = [2.0, 1.0, 1.0 - 1e-6, -4.0]
    sampling = Sampling(temperature=0.5, top_k=2)
    said = of_table(logits_V, [0, 1, 2, 3], sampling)
    np.testing.assert_array_equal(said.outside_BR[0], [False, False, True, True])
    assert jnp.isfinite(said.logp_BR).all()
    np.testing.assert_allclose(said.logp_BR[0, 2], said.logp_BR[0, 1], atol=1e-5)
    np.testing.assert_allclose(said.logp_BR[0, 3] - said.logp_BR[0, 0], -6.0 / 0.5, atol=1e-5)
    assert jnp.isfinite(said.entropy_BR).all()

    def total(logits_V):
        return jnp.sum(of_table(logits_V, [0, 1, 2, 3], sampling).logp_BR)

    assert jnp.isfinite(jax.grad(total)(jnp.asarray(logits_V))).all()


def test_nan_logits_are_not_clamped_away():
    said = of_table([jnp.nan, 1.0, 0.0], [1], FILTERED)
    assert jnp.isnan(said.logp_BR).all()


def test_padding_changes_no_real_token():
    policy = FakePolicy()
    params = policy.init_params()
    tokens_BT, start_B, positions = batch(policy)
    short = token_log_probs(policy, params, tokens_BT, start_B, positions, Sampling())
    padded_BT = jnp.pad(tokens_BT, [(0, 0), (0, 16)], constant_values=5)
    long = token_log_probs(policy, params, padded_BT, start_B, positions + 16, Sampling())
    np.testing.assert_allclose(long.logp_BR[:, :positions], short.logp_BR, atol=1e-6)


def test_remat_changes_nothing():
    policy = FakePolicy()
    params = policy.init_params()
    tokens_BT, start_B, positions = batch(policy)

    def total(params, remat):
        said = token_log_probs(policy, params, tokens_BT, start_B, positions, FILTERED, remat=remat)
        return jnp.sum(said.logp_BR)

    for remat in (True, False):
        text = str(jax.make_jaxpr(lambda p, r=remat: policy.hidden(p, tokens_BT, remat=r))(params))
        assert ("remat" in text or "checkpoint" in text) == remat  # the setting does something
    with_remat, without = jax.grad(total)(params, True), jax.grad(total)(params, False)
    for name, grad in with_remat.items():
        np.testing.assert_allclose(grad, without[name], atol=1e-6, err_msg=name)


def test_the_whole_vocabulary_exists_for_one_chunk_only():
    """No array of the compiled gradient holds `[tokens, vocabulary]`; unchunked, one does."""
    policy = FakePolicy(vocab_size=5003, width=4)
    params = policy.init_params()
    tokens_BT, start_B, positions = batch(policy, rows=4, length=40, positions=32)

    def peak_bytes(chunk_tokens):
        def total(params):
            return jnp.sum(
                token_log_probs(
                    policy, params, tokens_BT, start_B, positions, Sampling(),
                    chunk_tokens=chunk_tokens,
                ).logp_BR
            )  # fmt: skip

        compiled = jax.jit(jax.grad(total)).lower(params).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    whole = 4 * 32 * 5003 * 4
    assert peak_bytes(8) < whole
    assert peak_bytes(128) > whole


def test_greedy_has_no_gradient_and_is_refused():
    with pytest.raises(ValueError, match="temperature: found 0"):
        of_table([1.0, 0.0], [0], Sampling(temperature=0.0))
