"""Our AdamW is optax's up to rounding: values, state, clip, decay, schedule."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from train.adamw import clip_by_global_norm
from train.learner import OptimizerSettings, make_optimizer

SETTINGS = OptimizerSettings(
    1e-2, warmup_steps=2, total_steps=8, clip_norm=1.0, weight_decay=0.1, beta1=0.8, beta2=0.9
)


def of_optax():
    rise = optax.linear_schedule(1e-2 / 3, 1e-2, 2)
    schedule = optax.join_schedules([rise, optax.cosine_decay_schedule(1e-2, 6, alpha=0.1)], [2])
    adamw = optax.adamw(schedule, b1=0.8, b2=0.9, weight_decay=0.1)
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def test_eight_updates_equal_those_of_optax():
    params = {"a": jnp.linspace(-1.0, 1.0, 12).reshape(3, 4), "b": {"c": jnp.ones(5)}}
    draw = np.random.default_rng(0)
    ours, theirs = make_optimizer(SETTINGS), of_optax()
    states = [ours.init(params), theirs.init(params)]
    assert jax.tree.structure(states[0]) == jax.tree.structure(states[1])  # old checkpoints fit
    at: list[Any] = [params, params]
    for size in (10.0, 0.01, 0.0, 1.0, 5.0, 0.3, 0.1, 2.0):  # clipped and not
        grads = jax.tree.map(
            lambda x, size=size: jnp.asarray(size * draw.normal(size=x.shape), x.dtype), params
        )
        for i, optimizer in enumerate((ours, theirs)):
            with jax.numpy_dtype_promotion("standard"):
                changes, states[i] = optimizer.update(grads, states[i], at[i])
            at[i] = optax.apply_updates(at[i], changes)
        for one, other in zip(*map(jax.tree.leaves, at), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
        for one, other in zip(*map(jax.tree.leaves, states), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 4.0])
def test_a_norm_is_at_most_the_one_asked_for(norm):
    grads = {"a": jnp.array([0.6, 0.0]) * norm, "b": jnp.array([0.8]) * norm}
    clipped, _ = clip_by_global_norm(1.0).update(grads, optax.EmptyState())
    expected = jax.tree.map(lambda g: g / max(norm, 1.0), grads)
    for one, other in zip(jax.tree.leaves(clipped), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
