"""GSPO and CISPO: values worked by hand, gradients by finite differences, against TRL's losses."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.correction import Correction, importance_weights
from train.objectives import cispo, dapo, dr_grpo, grpo, gspo, token_losses

TRL = json.loads((Path(__file__).parents[1] / "fixtures" / "trl_losses.json").read_text())
OURS = {
    "grpo": grpo(),
    "dr_grpo": dr_grpo(max_length=6),
    "dapo": dapo(),
    "gspo": gspo(),
    "gspo, wide": gspo(clip_low=0.2, clip_high=0.2),
    "cispo": cispo(),
}


def lengths_mask(*lengths, width=4):
    return np.arange(width)[None] < np.array(lengths)[:, None]


def loss(objective, logp_BR, old_BR, advantage_B, mask_BR, correction_BR=None):
    losses = token_losses(
        objective, logp_BR, old_BR, None, advantage_B, jnp.asarray(mask_BR), correction_BR
    )
    return jnp.sum(objective.weights(np.asarray(mask_BR)) * losses.loss_BR)


def test_the_ratio_of_a_response_is_the_geometric_mean_of_its_tokens():
    """Log-ratios 0.3 and −0.1 over two tokens: s = e^0.1; a third token off the mask is nothing."""
    logp_BR = jnp.array([[0.3, -0.1, 9.0]])
    zero_BR, mask_BR = jnp.zeros((1, 3)), lengths_mask(2, width=3)
    wide = gspo(clip_low=1.0, clip_high=1.0)
    value = loss(wide, logp_BR, zero_BR, jnp.array([2.0]), mask_BR)
    assert float(value) == pytest.approx(-2 * np.exp(0.1), rel=1e-6)


def test_the_ratio_of_a_response_of_one_token_is_that_token_s():
    losses = token_losses(
        gspo(clip_low=1.0, clip_high=1.0), jnp.array([[0.3, 9.0]]), jnp.zeros((1, 2)), None,
        jnp.array([2.0]), jnp.asarray(lengths_mask(1, width=2)),
    )  # fmt: skip
    np.testing.assert_allclose(losses.loss_BR, [[-2 * np.exp(0.3), 0.0]], rtol=1e-6)


@pytest.mark.parametrize(
    ("mean", "advantage", "clipped"),
    [(0.0003, 1.0, False), (0.0005, 1.0, True), (-0.0002, -1.0, False), (-0.0005, -1.0, True)],
)
def test_gspo_clips_whole_responses_at_the_bounds_of_its_paper(mean, advantage, clipped):
    logp_BR = jnp.array([[mean + 0.5, mean - 0.5, 0.0]])
    mask_BR = jnp.asarray(lengths_mask(2, width=3))

    def value(x_BR):
        return loss(gspo(), x_BR, jnp.zeros((1, 3)), jnp.array([advantage]), mask_BR)

    grad_BR = jax.grad(value)(logp_BR)
    expected = 0.0 if clipped else -advantage * np.exp(mean) / 2
    np.testing.assert_allclose(grad_BR[0], [expected, expected, 0.0], rtol=1e-4)
    losses = token_losses(gspo(), logp_BR, jnp.zeros((1, 3)), None, jnp.array([advantage]), mask_BR)
    np.testing.assert_array_equal(losses.clipped_BR[0], [clipped, clipped, False])


@pytest.mark.parametrize("ratio", [0.01, 0.9, 4.9, 5.1, 100.0])
def test_cispo_bounds_the_weight_of_a_token_and_keeps_its_gradient(ratio):
    log_ratio = jnp.log(jnp.float32(ratio))
    mask_BR = jnp.ones((1, 1), bool)

    def value(x):
        return loss(cispo(), x[None, None], jnp.zeros((1, 1)), jnp.array([2.0]), mask_BR)

    assert float(jax.grad(value)(log_ratio)) == pytest.approx(-2 * min(ratio, 5.0), rel=1e-5)
    losses = token_losses(
        cispo(), log_ratio[None, None], jnp.zeros((1, 1)), None, jnp.array([2.0]), mask_BR
    )
    assert losses.clipped_BR.tolist() == [[ratio > 5.0]]


@pytest.mark.parametrize("name", OURS)
def test_losses_and_gradients_are_those_of_trl(name):
    """`tests/fixtures/make_trl_losses.py` asked TRL for them."""
    case = TRL["cases"][name]
    given = {key: jnp.asarray(TRL[key], jnp.float32) for key in ("logp", "old", "advantage")}
    mask_BR = np.asarray(TRL["mask"], bool)

    def value(logp_BR):
        return loss(OURS[name], logp_BR, given["old"], given["advantage"], mask_BR)

    found, grad_BR = jax.value_and_grad(value)(given["logp"])
    assert float(found) == pytest.approx(case["loss"], rel=1e-5)
    np.testing.assert_allclose(grad_BR, np.asarray(case["gradient"]), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("objective", [gspo(), cispo()])
def test_nothing_off_the_mask_reaches_value_or_gradient(objective):
    mask_BR = np.zeros((2, 3), bool)
    bad_BR = jnp.full((2, 3), jnp.nan)
    value, grad_BR = jax.value_and_grad(
        lambda x_BR: loss(objective, x_BR, bad_BR, jnp.ones(2), mask_BR)
    )(bad_BR)
    assert value == 0.0
    assert (grad_BR == 0.0).all()


def gaps():
    """Two rows: weights 3 and 1/2 (product 3/2), and 2 alone."""
    old_BR = jnp.log(jnp.array([[3.0, 0.5, 7.0], [2.0, 7.0, 7.0]]))
    return old_BR, jnp.zeros((2, 3)), jnp.asarray(lengths_mask(2, 1, width=3))


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (Correction("off"), [[3, 0.5, 0], [2, 0, 0]]),
        (Correction("truncate"), [[2, 0.5, 0], [2, 0, 0]]),
        (Correction("mask"), [[0, 0.5, 0], [2, 0, 0]]),
        (Correction("truncate", "sequence", 1.75), [[1.5, 1.5, 0], [1.75, 0, 0]]),
        (Correction("mask", "sequence", 1.75), [[1.5, 1.5, 0], [0, 0, 0]]),
    ],
)
def test_importance_weights_by_hand(correction, expected):
    np.testing.assert_allclose(importance_weights(correction, *gaps()), expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_a_weight_at_the_cap_stays_as_it_is(mode):
    """Equal policies: weights of exactly 1, and a cap of 1; a cap below it is allowed too."""
    zero_BR, mask_BR = jnp.zeros((1, 2)), jnp.ones((1, 2), bool)
    at_one, below = (Correction(mode, cap=cap) for cap in (1.0, 0.5))
    assert importance_weights(at_one, zero_BR, zero_BR, mask_BR).tolist() == [[1.0, 1.0]]
    expected = 0.5 if mode == "truncate" else 0.0
    assert importance_weights(below, zero_BR, zero_BR, mask_BR).tolist() == [[expected] * 2]


def test_importance_weights_make_the_gradient_that_of_the_policy_itself():
    """Sequence weights without a bound: the expectation over what `rollout` samples, by
    enumeration of two-token responses over three ids, is the policy gradient; without weights it
    is not."""
    rng = np.random.default_rng(0)
    logits_V, other_V = rng.normal(size=(2, 3))
    reward_VV = rng.normal(size=(3, 3))

    def log_probs(x_V):
        return jax.nn.log_softmax(jnp.asarray(x_V, jnp.float32))

    tokens_NR = np.array([[a, b] for a in range(3) for b in range(3)])
    advantage_N = jnp.asarray(reward_VV.reshape(-1), jnp.float32)
    mask_NR = jnp.ones((9, 2), bool)
    rollout_NR = log_probs(other_V)[tokens_NR]
    share_N = jnp.exp(rollout_NR.sum(axis=1))

    def surrogate(x_V, correction):
        logp_NR = log_probs(x_V)[tokens_NR]
        factor_NR = None
        if correction is not None:
            factor_NR = importance_weights(correction, logp_NR, rollout_NR, mask_NR)
        old_NR = jax.lax.stop_gradient(logp_NR)
        losses = token_losses(grpo(), logp_NR, old_NR, None, advantage_N, mask_NR, factor_NR)
        return jnp.sum(share_N[:, None] * losses.loss_BR)

    def expected_reward(x_V):
        return -jnp.sum(jnp.exp(log_probs(x_V)[tokens_NR].sum(axis=1)) * advantage_N)

    x_V = jnp.asarray(logits_V, jnp.float32)
    wanted_V = jax.grad(expected_reward)(x_V)
    unbounded = Correction("truncate", "sequence", 1e6)
    np.testing.assert_allclose(jax.grad(surrogate)(x_V, unbounded), wanted_V, rtol=1e-4, atol=1e-6)
    assert not np.allclose(jax.grad(surrogate)(x_V, None), wanted_V, atol=1e-2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "clip"}, "mode: found clip, allowed: off, truncate, mask"),
        ({"level": "batch"}, "level: found batch, allowed: token, sequence"),
        ({"cap": 0.0}, "cap: found 0.0, allowed: above 0"),
        ({"cap": float("inf")}, "cap: found inf"),
    ],
)
def test_a_bad_correction_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Correction(**settings)
