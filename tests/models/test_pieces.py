"""Layers in parts and feed-forward layers in slices: the same gradients in less memory."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from models.feed_forward import SLICES, feed_forward_in_slices
from models.parts import layers_in_parts, parts_pay
from models.qwen3 import LONG_ROW
from train.flops import matmul_flops


def layer(x_BTD, weights):
    mapped = [x_BTD @ weight_DK for weight_DK in weights["columns"]]
    return x_BTD + jnp.tanh(jnp.concatenate(mapped, -1)) * weights["scale_D"].reshape(1, 1, -1)


def scanned_layers(step, x_BTD, weights_L):
    """What JAX makes of it: all inputs and all gradients at the same time."""
    step = jax.checkpoint(step, prevent_cse=False)
    return jax.lax.scan(lambda x, weights: (step(x, weights), None), x_BTD, weights_L)[0]


def stack(layers, tokens=8, width=16):
    keys = jax.random.split(jax.random.key(layers), 10)
    shape = (layers, width, width // 8)
    weights_L = {
        "columns": [jax.random.normal(key, shape) * width**-0.5 for key in keys[:8]],
        "scale_D": jax.random.normal(keys[8], (layers, width)),
    }
    return jax.random.normal(keys[9], (2, tokens, width)), weights_L


def assert_close(got, wanted, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, wanted)


@pytest.mark.parametrize("layers", [1, 3, 20])
def test_parts_change_neither_value_nor_gradients(layers):
    def loss(run, *arguments):
        return jnp.sum(jnp.sin(run(layer, *arguments)))

    got, wanted = (
        jax.jit(jax.value_and_grad(partial(loss, run), (0, 1)))(*stack(layers))
        for run in (layers_in_parts, scanned_layers)
    )
    assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_inputs_of_layers_go_as_their_gradients_come():
    layers, tokens, width = 32, 32, 128  # weights outweigh inputs, as they do in models
    shapes = jax.eval_shape(partial(stack, layers, tokens, width))

    def scratch(run):
        def norm(x_BTD, weights_L):
            grads = jax.grad(lambda w: jnp.sum(jnp.sin(run(layer, x_BTD, w))))(weights_L)
            return optax.tree.norm(grads)

        return jax.jit(norm).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    inputs, gradients = 4 * layers * 2 * tokens * width, 4 * layers * width * width
    planted = scratch(scanned_layers)
    assert planted > gradients + inputs
    assert scratch(layers_in_parts) < planted - 0.5 * inputs


def test_parts_and_slices_compute_no_product_more_often():
    def products(run, *arguments):
        return matmul_flops(jax.make_jaxpr(jax.grad(lambda *xs: jnp.sum(run(*xs))))(*arguments))

    given = stack(layers=20)
    in_parts = products(partial(layers_in_parts, layer), *given)
    assert in_parts == products(partial(scanned_layers, layer), *given)
    given = feed_arguments(8, 16, 24)
    in_slices = products(jax.checkpoint(feed_forward_in_slices), *given)
    assert in_slices == products(jax.checkpoint(feed), *given)


def test_parts_are_made_where_inputs_outweigh_the_largest_array():
    x_BTD, weights_L = stack(
        layers=4, tokens=8, width=16
    )  # an input: 1 kB, a matrix: 128 B a layer
    assert parts_pay(x_BTD, weights_L)
    wide_L = weights_L | {"wide": jnp.zeros((4, 16, 16))}  # 1 kB a layer
    assert not parts_pay(x_BTD, wide_L)
    assert not parts_pay(x_BTD.astype(jnp.bfloat16), wide_L)


def feed(x_BTD, gate_DF, up_DF, down_FD):
    return (jax.nn.silu(x_BTD @ gate_DF) * (x_BTD @ up_DF)) @ down_FD


def feed_arguments(tokens, width, inner, dtype=jnp.float32):
    shapes = [(2, tokens, width), (width, inner), (width, inner), (inner, width)]
    keys = jax.random.split(jax.random.key(0), 4)
    return [
        jax.random.normal(key, shape, dtype) * shape[-2] ** -0.5
        for key, shape in zip(keys, shapes, strict=True)
    ]


@pytest.mark.parametrize("inner", [24, 25])  # a multiple of the slices, and none
def test_slices_change_neither_value_nor_gradients(inner):
    def loss(run, *arguments):
        return jnp.sum(jnp.sin(run(*arguments)))

    got, wanted = (
        jax.value_and_grad(partial(loss, run), (0, 1, 2, 3))(*feed_arguments(8, 16, inner))
        for run in (feed_forward_in_slices, feed)
    )
    assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_slices_are_added_up_in_float32():
    """In bfloat16 they are no further from float32 than the whole product is."""
    arguments = feed_arguments(64, 32, 512)
    narrow = [x.astype(jnp.bfloat16) for x in arguments]

    def gradient_of_x(run, x_BTD, *weights):
        with jax.numpy_dtype_promotion("standard"):
            square = lambda x: jnp.sum(jnp.float32(run(x, *weights)) ** 2)  # noqa: E731
            return jax.grad(square)(x_BTD).astype(jnp.float32)

    exact = jax.jit(gradient_of_x, static_argnums=0)(feed, *arguments)

    def error(run):
        got = jax.jit(gradient_of_x, static_argnums=0)(run, *narrow)
        return float(jnp.abs(got - exact).mean())

    assert feed_forward_in_slices(*narrow).dtype == jnp.bfloat16
    trace = str(jax.make_jaxpr(partial(gradient_of_x, feed_forward_in_slices))(*narrow))
    assert set(re.findall(r":(\w+)\[[\d,]*\] = dot_general", trace)) == {"bf16"}  # sums alone
    assert error(feed_forward_in_slices) < 1.05 * error(feed)


def test_a_slice_exists_at_a_time():
    tokens, width, inner = 512, 16, 256
    shapes = jax.eval_shape(partial(feed_arguments, tokens, width, inner))

    def scratch(run):
        loss = jax.checkpoint(lambda *xs: jnp.sum(jnp.sin(run(*xs))))
        gradient = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
        return gradient.lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    assert scratch(feed_forward_in_slices) < 1.5 / SLICES * scratch(feed)


def test_a_long_row_in_pieces_has_the_gradients_of_a_whole_one(small_policy, small_params):
    tokens_BT = jax.random.randint(jax.random.key(1), (1, LONG_ROW), 0, small_policy.vocab_size)

    def loss(params, policy, remat):
        hidden = policy.hidden(params, tokens_BT, remat=remat)
        return jax.nn.logsumexp(policy.logits(params, hidden), axis=-1).mean()

    gradient = jax.jit(jax.grad(loss), static_argnums=(1, 2))
    whole = gradient(small_params, small_policy, False)

    def apart(policy, remat):
        found, norm = gradient(small_params, policy, remat), jnp.linalg.norm
        return max(jax.tree.leaves(jax.tree.map(lambda a, b: norm(a - b) / norm(b), found, whole)))

    trace = jax.make_jaxpr(loss, static_argnums=(1, 2))(small_params, small_policy, True)
    assert "custom_vjp" in str(trace)  # it does go in parts
    assert apart(small_policy, True) < 1e-5
    narrow = replace(small_policy, dtype=jnp.bfloat16)
    assert apart(narrow, True) < 1.5 * apart(narrow, False)  # bfloat16's own error
