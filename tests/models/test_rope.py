"""Rotary phases: exact enough far out, and relative."""

import jax.numpy as jnp
import numpy as np
import pytest

from models.rope import rope_phases, rotate


def phases64(position, head_dim, theta):
    return position * theta ** (-np.arange(0, head_dim, 2) / head_dim)


@pytest.mark.parametrize("theta", [1e4, 1e6, 5e6])
@pytest.mark.parametrize("position", [0, 1, 1000, 8191])
def test_phases_equal_float64(theta, position):
    cos, sin = rope_phases(jnp.array([[position]], jnp.int32), 128, theta)
    exact = phases64(position, 128, theta)
    assert cos.dtype == sin.dtype == jnp.float32
    np.testing.assert_allclose(cos[0, 0], np.cos(exact), atol=1e-3, rtol=0)
    np.testing.assert_allclose(sin[0, 0], np.sin(exact), atol=1e-3, rtol=0)


def test_half_precision_phases_would_be_caught():
    """The planted fault (CASES B36): frequencies in bfloat16 are off by more than a radian."""
    exact = phases64(1000, 128, 1e6)
    coarse = np.asarray(phases64(1, 128, 1e6).astype(jnp.bfloat16), np.float64) * 1000
    assert np.abs(coarse - exact).max() > 1


def test_scores_depend_on_distance_alone():
    rng = np.random.default_rng(0)
    query, key = (jnp.asarray(rng.normal(size=(1, 1, 1, 16)), jnp.float32) for _ in range(2))

    def score(at_query, at_key):
        turned = [
            rotate(x, *rope_phases(jnp.array([[at]], jnp.int32), 16, 1e4))
            for x, at in ((query, at_query), (key, at_key))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-4)
    assert abs(score(7, 3) - score(3, 7)) > 1e-2


def test_position_zero_changes_nothing():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 1, 3, 8)), jnp.bfloat16)
    turned = rotate(x, *rope_phases(jnp.zeros((2, 1), jnp.int32), 8, 1e4))
    assert turned.dtype == jnp.bfloat16
    np.testing.assert_array_equal(turned, x)
