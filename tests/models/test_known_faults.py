"""Faults of other systems (CASES) in models and their conversion: the right value of each."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.attention import attention
from models.config import preset
from models.huggingface import from_huggingface
from models.policy import Qwen3Policy


@partial(jax.jit, static_argnums=0)
def logits_of(policy, params, tokens_BT):
    return policy.logits(params, policy.hidden(params, tokens_BT))


@pytest.mark.parametrize(
    ("name", "query", "key"),
    [
        ("qwen3_0_6b", (2048, 1024), (1024, 1024)),
        ("qwen3_4b", (4096, 2560), (1024, 2560)),
        ("qwen3_32b", (64 * 128, 5120), (8 * 128, 5120)),
    ],
)
def test_the_head_width_is_not_the_model_width_by_the_heads(name, query, key):
    """B41: shapes as Hugging Face stores them, outputs first."""
    policy = Qwen3Policy(preset(name))
    params = jax.eval_shape(lambda: policy.init_params(jax.random.key(0)))
    layers = params["layers"]
    assert layers["query"]["kernel"].shape[1:] == query[::-1]
    assert layers["key"]["kernel"].shape[1:] == key[::-1]
    assert layers["value"]["kernel"].shape[1:] == key[::-1]
    assert layers["output"]["kernel"].shape[1:] == query
    assert layers["query_norm"]["scale"].shape[1:] == (128,)


def test_scores_are_scaled_by_the_head_width():
    """B41: E = 128 gives 128 ** -0.5, whatever the number of heads."""
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 128)).astype(np.float32), rng.normal(size=(3, 128))
    attended = attention(
        jnp.asarray(query)[None, None],
        jnp.asarray(key, jnp.float32)[None, None],
        jnp.eye(3, 128)[None, None],
        jnp.ones((1, 1, 3), bool),
    )
    score = query @ key.T * 128**-0.5
    weight = np.exp(score) / np.exp(score).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(attended[0, 0, :, :3], weight, atol=1e-5)


def test_each_group_of_query_heads_reads_its_own_key_value_head():
    """B49: four query heads over two key/value heads; values tell which one was read."""
    value_BJSE = jnp.stack([jnp.full((1, 2), 7.0), jnp.full((1, 2), 9.0)])[None]
    attended = attention(
        jnp.ones((1, 1, 4, 2)), jnp.ones((1, 2, 1, 2)), value_BJSE, jnp.ones((1, 1, 1), bool)
    )
    np.testing.assert_array_equal(attended[0, 0, :, 0], [7, 7, 9, 9])


def test_a_tied_head_may_be_in_the_file_or_not_and_an_untied_one_is_used(reference):
    """B42: both files of a tied model give the same logits; an untied head is not the embedding."""
    config, tensors = reference.policy.config, reference.tensors
    tokens_BT = jnp.asarray(reference.tokens_BT)
    logits_BTV = logits_of(reference.policy, reference.params, tokens_BT)
    embedding = tensors["model.embed_tokens.weight"]
    copied = from_huggingface(config, {**tensors, "lm_head.weight": embedding})
    with_copy_BTV = logits_of(reference.policy, copied, tokens_BT)
    assert np.array_equal(with_copy_BTV, logits_BTV) == config.tie_word_embeddings


def test_compiled_logits_follow_a_changed_embedding(small):
    """B43: nothing of the parameters is caught in the compiled function."""
    policy = Qwen3Policy(replace(small, tie_word_embeddings=True))
    params = policy.init_params(jax.random.key(0))
    tokens_BT = jnp.arange(6, dtype=jnp.int32)[None]
    before = logits_of(policy, params, tokens_BT)
    changed = {**params, "embedding_VD": params["embedding_VD"] + 0.5}
    assert float(jnp.abs(logits_of(policy, changed, tokens_BT) - before).max()) > 0.1
    np.testing.assert_array_equal(logits_of(policy, params, tokens_BT), before)


def test_parameters_hold_weights_and_nothing_else(small_params):
    """B71: no cache, counter or random key that a checkpoint would be asked for."""
    for path, leaf in jax.tree.leaves_with_path(small_params):
        assert jnp.issubdtype(leaf.dtype, jnp.floating), path
        assert str(path[-1].key) in {"embedding_VD", "kernel", "scale"}, path
