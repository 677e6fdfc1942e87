"""Values of the losses, their gradients against finite differences, and their normalisers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from train.objectives import (
    OBJECTIVES,
    cispo,
    constant_mean,
    dapo,
    dr_grpo,
    grpo,
    gspo,
    kl_k3,
    sequence_mean,
    soft_overlong_penalty,
    supervised,
    token_losses,
    token_mean,
)

ALL = [grpo(), dr_grpo(max_length=10), dapo(), gspo(), cispo(), supervised()]


def lengths_mask(*lengths, width=8):
    return np.arange(width)[None] < np.array(lengths)[:, None]


def loss(objective, logp_BR, old_BR, advantage_B, mask_BR, reference_BR=None):
    losses = token_losses(
        objective, logp_BR, old_BR, reference_BR, jnp.asarray(advantage_B), jnp.asarray(mask_BR)
    )
    return jnp.sum(objective.weights(np.asarray(mask_BR)) * losses.loss_BR)


def ratio_case(ratio, advantage, objective):
    """Token loss, its gradient in logp, and the clip flag at one ratio."""
    mask_BR = jnp.ones((1, 1), bool)

    def of(logp):
        losses = token_losses(
            objective, logp[None, None], jnp.zeros((1, 1)), None, jnp.array([advantage]), mask_BR
        )
        return losses.loss_BR[0, 0], losses.clipped_BR[0, 0]

    (value, clipped), slope = jax.value_and_grad(of, has_aux=True)(jnp.log(jnp.float32(ratio)))
    return float(value), float(slope), bool(clipped)


def test_means_over_sequences_tokens_and_a_constant():
    """Lengths 2 and 8, token losses 1 and 0."""
    mask_NR = lengths_mask(2, 8)
    loss_NR = np.array([[1.0], [0.0]])
    assert (sequence_mean(mask_NR) * loss_NR).sum() == pytest.approx(0.5)
    assert (token_mean(mask_NR) * loss_NR).sum() == pytest.approx(0.2)
    assert (constant_mean(mask_NR, max_length=16) * loss_NR).sum() == pytest.approx(2 / 32)


@pytest.mark.parametrize("lengths", [[1], [1, 0], [2, 8], [3, 1, 1]])
def test_the_weights_of_a_mean_add_up_to_one(lengths):
    """Down to one token in the whole batch; the constant divides by what could have been said."""
    mask_NR = lengths_mask(*lengths)
    for mean in (sequence_mean, token_mean):
        assert mean(mask_NR).sum() == pytest.approx(1.0)
    share = sum(lengths) / np.count_nonzero(lengths)
    assert constant_mean(mask_NR, max_length=1).sum() == pytest.approx(share)


@pytest.mark.parametrize("objective", ALL)
def test_rows_without_tokens_change_no_weight(objective):
    mask_NR = lengths_mask(2, 8, 5)
    padded_NR = np.concatenate([mask_NR, np.zeros((3, 8), bool)])
    weight_NR = objective.weights(padded_NR)
    assert weight_NR.dtype == np.float32
    np.testing.assert_array_equal(weight_NR[:3], objective.weights(mask_NR))
    assert (weight_NR[3:] == 0).all()


@pytest.mark.parametrize("objective", ALL)
def test_all_masked_is_zero_with_finite_gradients(objective):
    mask_BR = np.zeros((2, 3), bool)
    bad_BR = jnp.full((2, 3), jnp.nan)
    advantage_B = np.ones(2, np.float32)
    value, grad_BR = jax.value_and_grad(
        lambda logp_BR: loss(objective, logp_BR, bad_BR, advantage_B, mask_BR, bad_BR)
    )(bad_BR)
    assert value == 0.0
    assert (grad_BR == 0.0).all()


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [(1.0, 1.0, False), (1.3, 1.0, True), (1.3, -1.0, False), (0.7, 1.0, False), (0.7, -1.0, True)],
)
def test_clipping_cuts_only_what_would_gain(ratio, advantage, clipped):
    value, slope, flag = ratio_case(ratio, advantage, grpo())
    bound = min(max(ratio, 0.8), 1.2) if clipped else ratio
    assert value == pytest.approx(-bound * advantage, rel=1e-5)
    assert slope == pytest.approx(0.0 if clipped else -ratio * advantage, rel=1e-5)
    assert flag == clipped


def test_dapo_clips_higher_above_than_below():
    assert ratio_case(1.25, 1.0, dapo())[2] is False
    assert ratio_case(1.29, 1.0, dapo())[2] is True
    assert ratio_case(0.79, -1.0, dapo())[2] is True
    assert ratio_case(1.25, 1.0, grpo())[2] is True


def test_on_policy_gradient_is_advantage_times_score():
    rng = np.random.default_rng(0)
    logp_BR = jnp.asarray(rng.normal(size=(2, 8)), jnp.float32)
    mask_BR = lengths_mask(2, 8)
    advantage_B = np.array([1.5, -0.5], np.float32)
    for objective in (grpo(), dr_grpo(max_length=8), dapo(), gspo(), cispo()):
        grad_BR = jax.grad(lambda x, o=objective: loss(o, x, logp_BR, advantage_B, mask_BR))(
            logp_BR
        )
        wanted_BR = -objective.weights(mask_BR) * advantage_B[:, None]
        np.testing.assert_allclose(grad_BR, wanted_BR, rtol=1e-6)


@pytest.mark.parametrize("log_ratio", [-100.0, -20.0, 0.0, 20.0, 100.0])
def test_extreme_ratios_stay_finite(log_ratio):
    mask_BR, old_BR = jnp.ones((1, 1), bool), jnp.full((1, 1), -0.5)
    for advantage in (-1.0, 1.0):
        for objective in (grpo(kl=0.1), dapo(), gspo(), cispo()):
            value, grad_BR = jax.value_and_grad(
                lambda x, o=objective, a=advantage: loss(
                    o, x, old_BR, jnp.array([a]), mask_BR, old_BR
                )
            )(old_BR + log_ratio)
            assert jnp.isfinite(value)
            assert jnp.isfinite(grad_BR).all()


def test_k3_does_not_overflow():
    def k3(delta):
        zero = jnp.zeros((1, 1))
        return kl_k3(zero, zero, jnp.full((1, 1), delta))[0, 0]

    assert float(k3(20.0)) == pytest.approx(4.85165e8, rel=1e-5)
    assert float(k3(1000.0)) == float(k3(20.0))
    assert float(k3(0.0)) == 0.0
    assert float(k3(-0.5)) == pytest.approx(np.exp(-0.5) - 0.5, rel=1e-6)


@pytest.mark.parametrize("shift", [0.0, 2.0, 30.0])
def test_kl_gradient_is_that_of_the_kl(shift):
    """Finite differences of KL(policy ‖ reference) on a softmax over three tokens.

    The expectation over tokens is taken exactly. k3 without the ratio, which lacks the score
    term, must fail.
    """
    logits_V = np.array([0.3, -0.7, 0.1])
    reference_V = np.array([-0.2, 0.4, 0.9 + shift])
    reference_V = reference_V - np.log(np.exp(reference_V).sum())

    def kl(x_V):
        logp_V = x_V - np.log(np.exp(x_V).sum())
        return (np.exp(logp_V) * (logp_V - reference_V)).sum()

    step_VV = 1e-5 * np.eye(3)
    wanted_V = np.array([(kl(logits_V + s_V) - kl(logits_V - s_V)) / 2e-5 for s_V in step_VV])

    old_V = jax.nn.log_softmax(jnp.asarray(logits_V, jnp.float32))
    reference_V = jnp.asarray(reference_V, jnp.float32)

    def expected(x_V, estimate):
        return jnp.sum(jnp.exp(old_V) * estimate(jax.nn.log_softmax(x_V)))

    x_V = jnp.asarray(logits_V, jnp.float32)
    ours_V = jax.grad(expected)(x_V, lambda logp_V: kl_k3(logp_V, old_V, reference_V))
    np.testing.assert_allclose(ours_V, wanted_V, atol=1e-4 * (1 + shift))

    def plain_k3(logp_V):
        delta_V = jnp.minimum(reference_V - logp_V, 20.0)
        return jnp.exp(delta_V) - delta_V - 1.0

    plain_V = jax.grad(expected)(x_V, plain_k3)
    assert not np.allclose(plain_V, wanted_V, atol=1e-2 * (1 + shift))


@pytest.mark.parametrize("delta", [-100.0, -5.0, 0.0, 15.0, 21.0, 100.0])
def test_kl_gradient_of_a_token_is_its_log_ratio_on_both_sides_of_the_clamp(delta):
    """`∇(r k3) = −d ∇logp` at r = 1; an automatic derivative through the clamp loses it."""

    def plain(logp):
        safe = jnp.minimum(delta - logp, 20.0)
        return jnp.exp(logp) * (jnp.exp(safe) - safe - 1.0)

    zero = jnp.zeros((1, 1))
    slope = jax.grad(lambda x: kl_k3(x, zero, jnp.full((1, 1), delta))[0, 0])(zero)[0, 0]
    np.testing.assert_allclose(slope, -delta, rtol=1e-6)
    if delta > 20.0:
        assert abs(jax.grad(plain)(0.0) + delta) > 0.01


def test_kl_of_a_policy_with_itself_is_exactly_zero_whatever_is_masked():
    logp_BR = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8)), jnp.float32)
    mask_BR = jnp.asarray(lengths_mask(3, 8)) & (jnp.arange(8) != 1)[None]
    reference_BR = jnp.where(mask_BR, logp_BR, -77.0)
    losses = token_losses(grpo(kl=0.1), logp_BR, logp_BR, reference_BR, jnp.zeros(2), mask_BR)
    assert losses.kl_BR is not None
    assert (losses.kl_BR == 0.0).all()


def test_the_loss_holds_beta_times_the_kl_and_nothing_off_the_mask():
    rng = np.random.default_rng(1)
    logp_BR, old_BR, reference_BR = jnp.asarray(rng.normal(size=(3, 2, 8)), jnp.float32)
    mask_BR = jnp.asarray(lengths_mask(3, 8))
    given = (logp_BR, old_BR, reference_BR, jnp.array([1.0, -2.0]), mask_BR)
    for beta in (0.0, 0.1):
        losses = token_losses(grpo(kl=beta), *given)
        without = token_losses(grpo(), logp_BR, old_BR, None, *given[3:])
        assert without.kl_BR is None
        kl_BR = jnp.where(mask_BR, kl_k3(logp_BR, old_BR, reference_BR), 0.0)
        assert float(jnp.abs(kl_BR).max()) > 0.1
        np.testing.assert_array_equal(losses.kl_BR, kl_BR)
        np.testing.assert_allclose(losses.loss_BR, without.loss_BR + beta * kl_BR, rtol=1e-6)
        assert (losses.loss_BR[~mask_BR] == 0.0).all()
        assert not losses.clipped_BR[~mask_BR].any()


def test_supervised_loss_is_the_mean_cross_entropy():
    logp_BR = -jnp.arange(16.0).reshape(2, 8)
    mask_BR = lengths_mask(2, 3)
    value = loss(supervised(), logp_BR, logp_BR, np.zeros(2, np.float32), mask_BR)
    assert float(value) == pytest.approx((0 + 1 + 8 + 9 + 10) / 5)


def test_soft_overlong_penalty_falls_in_a_line():
    penalty_N = soft_overlong_penalty(
        np.array([1, 80, 85, 90, 100, 120], np.int32), max_length=100, buffer=20
    )
    np.testing.assert_allclose(penalty_N, [0, 0, -0.25, -0.5, -1, -1])
    for buffer in (0, 101):
        with pytest.raises(ValueError, match=f"buffer: found {buffer}"):
            soft_overlong_penalty(np.array([1], np.int32), max_length=100, buffer=buffer)


@pytest.mark.parametrize(
    ("buffer", "penalties"), [(1, [0, 0, -1, -1]), (4, [-0.25, -0.75, -1, -1])]
)
def test_the_overlong_buffer_may_be_one_token_or_the_whole_length(buffer, penalties):
    length_N = np.array([1, 3, 4, 5], np.int32)
    penalty_N = soft_overlong_penalty(length_N, max_length=4, buffer=buffer)
    assert penalty_N.dtype == np.float32
    np.testing.assert_allclose(penalty_N, penalties)


def test_settings_that_nobody_gives_are_those_of_the_papers():
    """ε = 0.2 (DAPO: 0.28 above; GSPO and CISPO: their own), and no KL unless asked for."""
    settings = {
        name: (objective.clip_low, objective.clip_high, objective.kl)
        for name, objective in zip(OBJECTIVES, ALL, strict=True)
    }
    plain = (0.2, 0.2, 0.0)
    assert settings == {
        "grpo": plain,
        "dr_grpo": plain,
        "dapo": (0.2, 0.28, 0.0),
        "gspo": (3e-4, 4e-4, 0.0),
        "cispo": (1.0, 4.0, 0.0),
        "supervised": plain,
    }


def test_only_dr_grpo_leaves_advantages_undivided():
    made = {
        name: make(max_length=4) if name == "dr_grpo" else make()
        for name, make in OBJECTIVES.items()
    }
    assert [name for name, objective in made.items() if not objective.standardise] == ["dr_grpo"]


@pytest.mark.parametrize("settings", [{"clip": -0.1}, {"kl": float("nan")}, {"kl": float("inf")}])
def test_bad_settings_are_named(settings):
    with pytest.raises(ValueError, match=r"found .* allowed"):
        grpo(**settings)


def test_a_response_has_room_for_a_token():
    assert dr_grpo(max_length=1).weights(np.ones((1, 1), bool)) == 1.0
    with pytest.raises(ValueError, match="max_length: found 0, allowed: 1 or more"):
        dr_grpo(max_length=0)
