"""The fillings of the attention seam say the same, and the one for TPU lowers for TPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from models.attention import CHUNK, attention, attention_in_chunks
from models.config import preset
from models.policy import Qwen3Policy

# rows, tokens, query heads, key/value heads, head width, key positions
SHAPES = [(3, 1, 4, 2, 16, 40), (2, 5, 9, 3, 64, 130), (1, 40, 8, 2, 32, 256)]


def inputs(rows, tokens, heads, key_heads, width, positions, dtype=jnp.float32):
    """Rows of lengths of their own; queries at the end of each see what comes before them."""
    keys = jax.random.split(jax.random.key(0), 3)
    query = jax.random.normal(keys[0], (rows, tokens, heads, width), dtype)
    key, value = (
        jax.random.normal(k, (rows, key_heads, positions, width), dtype) for k in keys[1:]
    )
    first_B = np.linspace(0, positions - tokens, rows).astype(int)
    position_BT = first_B[:, None] + np.arange(tokens)
    mask = np.arange(positions)[None, None] <= position_BT[:, :, None]
    return query, key, value, jnp.asarray(mask)


def call(name, given):
    with pltpu.force_tpu_interpret_mode():
        return jax.jit(attention, static_argnums=4)(*given, name)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["cudnn", "pallas", "auto"])
def test_fillings_agree(name, shape):
    given = inputs(*shape)
    np.testing.assert_allclose(call(name, given), call("xla", given), atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", ["cudnn", "pallas"])
def test_fillings_agree_in_bfloat16(name):
    given = inputs(*SHAPES[0], dtype=jnp.bfloat16)
    got, expected = (np.asarray(call(n, given), np.float32) for n in (name, "xla"))
    np.testing.assert_allclose(got, expected, atol=0.03, rtol=0)


@pytest.mark.parametrize("leading", [1, 2])
def test_chunks_of_queries_change_neither_values_nor_gradients(leading):
    tokens = 3 * CHUNK
    *arrays, mask = inputs(2, tokens, 4, 2, 8, tokens)
    mask = mask[:leading]

    def loss(attend):
        return lambda *xs: jnp.sum(jnp.sin(attend(*xs, mask)))

    got = jax.value_and_grad(loss(attention_in_chunks), (0, 1, 2))(*arrays)
    wanted = jax.value_and_grad(loss(attention), (0, 1, 2))(*arrays)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5), got, wanted)
    text = jax.jit(loss(attention_in_chunks)).lower(*arrays).as_text()
    assert f"{tokens}x{tokens}xf32" not in text  # no whole rows of scores
    assert f"{tokens}x{tokens}xf32" in jax.jit(loss(attention)).lower(*arrays).as_text()


@pytest.mark.parametrize("name", ["cudnn", "pallas"])
def test_a_mask_that_is_off_by_one_is_noticed(name):
    """The planted fault: every query sees one key too many."""
    query, key, value, mask = given = inputs(*SHAPES[1])
    wrong = mask.at[:, :, 1:].set(mask[:, :, :-1])
    got = call(name, (query, key, value, wrong))
    assert np.abs(got - call("xla", given)).max() > 1e-2


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_kernel_lowers_for_tpu(shape):
    given = inputs(*shape, dtype=jnp.bfloat16)
    traced = jax.jit(functools.partial(attention, name="pallas")).trace(*given)
    assert "tpu_custom_call" in traced.lower(lowering_platforms=("tpu",)).as_text()


def test_a_policy_passes_the_choice_on():
    policy = Qwen3Policy(preset("tiny"), attention="pallas")
    params = jax.eval_shape(policy.init_params, jax.random.key(0))
    cache = jax.eval_shape(lambda: policy.init_cache(2, 256))
    ids, position = jax.ShapeDtypeStruct((2, 3), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32)
    traced = jax.jit(policy.forward, static_argnames="live").trace(
        params, ids, position, cache, live=128
    )
    assert "tpu_custom_call" in traced.lower(lowering_platforms=("tpu",)).as_text()


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="attention: found 'flash', allowed: auto, xla, cudnn"):
        Qwen3Policy(preset("tiny"), attention="flash")  # pyright: ignore[reportArgumentType]
