"""The model says what `transformers` says: whole rows, through a prefill, and in ragged rounds."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.config import ModelConfig
from models.huggingface import from_huggingface
from models.policy import Qwen3Policy
from models.rope_scaling import RopeScaling


def tokens(shape, vocab=64, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, vocab, shape), jnp.int32)


@partial(jax.jit, static_argnums=0)
def full_logits(policy, params, tokens_BT):
    return policy.logits(params, policy.hidden(params, tokens_BT))


# one compilation cache for all tests: the policy is a static argument
forward = jax.jit(Qwen3Policy.forward, static_argnums=0, static_argnames="live")


def decode_in_rounds(policy, params, tokens_BT, *, seed=0, capacity=48):
    """Logits of every position through rounds of mixed widths, rows at different lengths.

    Each round runs T tokens of every row; the first few are the row's true ones, the rest garbage
    that must be overwritten later: what a rejected draft leaves behind.
    """
    rng = np.random.default_rng(seed)
    rows, length = tokens_BT.shape
    cache = policy.init_cache(rows, capacity)
    position_B = np.zeros(rows, np.int32)
    logits_BTV = np.full((rows, length, policy.vocab_size), np.nan, np.float32)
    while (position_B < length).any():
        width = int(rng.choice([1, 6]))
        run_BT = rng.integers(0, policy.vocab_size, (rows, width)).astype(np.int32)
        keep_B = np.minimum(rng.integers(1, width + 1, rows), length - position_B)
        for row, (start, keep) in enumerate(zip(position_B, keep_B, strict=True)):
            run_BT[row, :keep] = tokens_BT[row, start : start + keep]
        live = 24 if position_B.max() + width <= 24 else capacity
        out, cache = forward(
            policy, params, jnp.array(run_BT), jnp.array(position_B), cache, live=live
        )
        cache = policy.commit(cache, jnp.array(position_B), jnp.array(keep_B))
        for row, (start, keep) in enumerate(zip(position_B, keep_B, strict=True)):
            logits_BTV[row, start : start + keep] = np.asarray(out)[row, :keep]
        position_B = position_B + keep_B.astype(np.int32)
    return logits_BTV


def test_whole_rows_equal_transformers(reference):
    logits = full_logits(reference.policy, reference.params, jnp.asarray(reference.tokens_BT))
    np.testing.assert_allclose(logits, reference.logits_BTV, atol=1e-4, rtol=0)


def test_prefill_equals_transformers(reference):
    rows, length = reference.tokens_BT.shape
    cache = reference.policy.init_cache(rows, length)
    logits, _ = forward(
        reference.policy,
        reference.params,
        jnp.asarray(reference.tokens_BT),
        jnp.zeros(rows, jnp.int32),
        cache,
        live=length,
    )
    np.testing.assert_allclose(logits, reference.logits_BTV, atol=1e-4, rtol=0)


def test_ragged_rounds_equal_transformers(reference):
    logits = decode_in_rounds(reference.policy, reference.params, reference.tokens_BT)
    np.testing.assert_allclose(logits, reference.logits_BTV, atol=1e-4, rtol=0)


def test_training_and_rollout_log_probabilities_agree(small_policy, small_params):
    tokens_BT = tokens((3, 40))
    trained = jax.nn.log_softmax(full_logits(small_policy, small_params, tokens_BT))
    rolled = jax.nn.log_softmax(
        jnp.asarray(decode_in_rounds(small_policy, small_params, np.asarray(tokens_BT)))
    )
    np.testing.assert_allclose(rolled, trained, atol=1e-4, rtol=0)


@pytest.mark.parametrize("garbage", [0.0, 1e4, np.nan])
def test_what_lies_past_a_row_is_never_attended(small_policy, small_params, garbage):
    cache = small_policy.init_cache(2, 24)
    prompt_BT, next_BT = tokens((2, 8)), tokens((2, 3), seed=1)
    _, cache = forward(
        small_policy, small_params, prompt_BT, jnp.zeros(2, jnp.int32), cache, live=24
    )
    position_B = jnp.array([5, 8], jnp.int32)
    past_BS = jnp.arange(24)[None, :] >= position_B[:, None]
    spoilt = jax.tree.map(
        lambda leaf: jnp.where(past_BS[None, :, None, :, None], garbage, leaf), cache
    )
    clean, _ = forward(small_policy, small_params, next_BT, position_B, cache, live=24)
    logits, _ = forward(small_policy, small_params, next_BT, position_B, spoilt, live=24)
    np.testing.assert_array_equal(logits, clean)


def test_batch_of_two_equals_two_batches_of_one(small_policy, small_params):
    tokens_BT = np.asarray(tokens((2, 20)))
    both = decode_in_rounds(small_policy, small_params, tokens_BT)
    for row in range(2):
        alone = decode_in_rounds(small_policy, small_params, tokens_BT[row : row + 1], seed=row)
        np.testing.assert_allclose(both[row], alone[0], atol=1e-5, rtol=0)


def test_permuting_rows_permutes_outputs(small_policy, small_params):
    tokens_BT, order = tokens((4, 11)), jnp.array([2, 0, 3, 1])
    logits = full_logits(small_policy, small_params, tokens_BT)
    permuted = full_logits(small_policy, small_params, tokens_BT[order])
    np.testing.assert_allclose(permuted, logits[order], atol=1e-5, rtol=0)


def test_right_padding_changes_nothing(small_policy, small_params):
    tokens_BT = tokens((2, 9))
    padded_BT = jnp.concatenate([tokens_BT, tokens((2, 7), seed=1)], axis=1)
    logits = full_logits(small_policy, small_params, tokens_BT)
    padded = full_logits(small_policy, small_params, padded_BT)[:, :9]
    np.testing.assert_allclose(padded, logits, atol=1e-5, rtol=0)


def test_no_logit_depends_on_a_later_token(small_policy, small_params):
    def last_but_two(embedding):
        params = {**small_params, "embedding_VD": embedding}
        return full_logits(small_policy, params, jnp.arange(6, dtype=jnp.int32)[None])[0, 3].sum()

    used = jnp.abs(jax.grad(last_but_two)(small_params["embedding_VD"])).sum(axis=1) > 0
    np.testing.assert_array_equal(used[:6], [True, True, True, True, False, False])


CHANGES = {
    "model_type": "llama",
    "rope_scaling": RopeScaling(8.0, 1.0, 4.0, 16),
    "vocab_size": 65,
    "hidden_size": 40,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 4,
    "head_dim": 14,
    "rope_theta": 5e6,
    "rms_norm_eps": 1e-2,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("field", ModelConfig.__dataclass_fields__)
def test_every_field_matters(small, small_policy, small_params, field):
    changed = Qwen3Policy(replace(small, **{field: CHANGES[field]}))
    shapes = jax.tree.map(jnp.shape, changed.init_params(jax.random.key(0)))
    if shapes == jax.tree.map(jnp.shape, small_params):
        tokens_BT = tokens((1, 12))
        before = full_logits(small_policy, small_params, tokens_BT)
        after = full_logits(changed, small_params, tokens_BT)
        assert float(jnp.abs(before - after).max()) > 1e-3


def test_changing_a_tied_embedding_changes_the_logits(small):
    policy = Qwen3Policy(replace(small, tie_word_embeddings=True))
    params = policy.init_params(jax.random.key(0))
    hidden = jnp.ones((1, 1, small.hidden_size))
    doubled = {**params, "embedding_VD": params["embedding_VD"] * 2}
    np.testing.assert_allclose(
        policy.logits(doubled, hidden), 2 * policy.logits(params, hidden), rtol=1e-6
    )


def test_remat_changes_no_gradient(small_policy, small_params):
    tokens_BT = tokens((2, 10))

    @partial(jax.jit, static_argnums=1)
    @jax.grad
    def gradient(params, remat):
        hidden = small_policy.hidden(params, tokens_BT, remat=remat)
        return jax.nn.logsumexp(small_policy.logits(params, hidden), axis=-1).mean()

    kept, again = gradient(small_params, False), gradient(small_params, True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-4), kept, again)


def test_half_precision_computes_in_its_own_dtype_and_speaks_float32(small, small_params):
    policy = Qwen3Policy(small, dtype=jnp.bfloat16)
    hidden = policy.hidden(small_params, tokens((2, 10)))
    logits = policy.logits(small_params, hidden)
    cache = policy.init_cache(2, 10)
    assert (hidden.dtype, logits.dtype) == (jnp.bfloat16, jnp.float32)
    assert cache.key_LBJSE.dtype == jnp.bfloat16
    exact = full_logits(Qwen3Policy(small), small_params, tokens((2, 10)))
    assert float(jnp.abs(logits - exact).mean()) < 0.05 * float(jnp.abs(exact).mean())


def test_a_policy_is_a_static_argument(small):
    assert hash(Qwen3Policy(small)) == hash(Qwen3Policy(replace(small)))
    assert Qwen3Policy(small) == Qwen3Policy(replace(small))
    assert Qwen3Policy(small) != Qwen3Policy(small, dtype=jnp.bfloat16)


def test_every_tensor_is_used_exactly_once(reference):
    config, tensors = reference.policy.config, reference.tensors
    some = "model.layers.1.self_attn.k_proj.weight"
    with pytest.raises(ValueError, match=f"{some}: missing"):
        from_huggingface(config, {k: v for k, v in tensors.items() if k != some})
    with pytest.raises(ValueError, match="unknown tensor"):
        from_huggingface(config, {**tensors, "model.layers.9.mlp.up_proj.weight": np.ones(1)})


def test_a_tied_model_may_bring_its_head_and_another_keeps_its_own(reference):
    config, tensors = reference.policy.config, reference.tensors
    embedding = tensors["model.embed_tokens.weight"]
    params = from_huggingface(config, {**tensors, "lm_head.weight": embedding})
    if not config.tie_word_embeddings:
        np.testing.assert_array_equal(params["head"]["kernel"], embedding.T)
        return
    assert "head" not in params
    with pytest.raises(ValueError, match="differs"):
        from_huggingface(config, {**tensors, "lm_head.weight": embedding + 1})
