"""Objectives: a loss for every response token, and what each token weighs in the batch.

Every objective here has the form `loss = Σ_tokens weight · token_loss`. The weights are made on
the host over the whole batch (they hold every normaliser: lengths, rows, tokens), and a token's
loss depends on its own row only. So the sum is the same under any split into micro-batches.

To add an objective, write a `Surrogate` (it sees whole rows, so a ratio per sequence is one too)
or a `Weights` function, and a factory that names them in `OBJECTIVES`. What corrects for the gap
between rollout and training (`train.correction`) multiplies the surrogate's losses.

Legend: N rollouts of the batch, B rows of a micro-batch, R response positions. `mask` is True at
response tokens. All log-probabilities are in nats.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ngramrl_jax.types import BoolArray, Float32Array, Int32Array

# Where exp() of a log-ratio stops growing: e^20 is far past any sane ratio, and fp32 holds it.
MAX_LOG_RATIO = 20.0

Weights = Callable[[BoolArray], Float32Array]
Surrogate = Callable[
    ["Objective", jax.Array, jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]
]


@dataclass(frozen=True)
class Objective:
    """What to minimise. Made by the factories below.

    Attributes:
        surrogate: `(objective, logp_BR, old_BR, advantage_B, mask_BR)` to the token losses and a
            bool that marks the tokens at which clipping took hold, both `[B, R]`.
        weights: `mask_NR` of the whole batch to float32 `weight_NR`, 0 off the mask.
        standardise: Whether its advantages are divided by the group's standard deviation.
        clip_low: The ratio is clipped at `1 - clip_low`.
        clip_high: The ratio is clipped at `1 + clip_high`.
        kl: Coefficient β of the KL to the reference; above 0 the batch needs its log-probabilities.
    """

    surrogate: Surrogate
    weights: Weights
    standardise: bool = True
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl: float = 0.0

    def __post_init__(self) -> None:
        for name in ("clip_low", "clip_high", "kl"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: found {getattr(self, name)}, allowed: 0 or more, finite")


class TokenLosses(NamedTuple):
    """Per token, all `[B, R]`, 0 (False) off the mask; `kl_BR` is None without a reference."""

    loss_BR: jax.Array
    clipped_BR: jax.Array
    kl_BR: jax.Array | None


def token_losses(
    objective: Objective,
    logp_BR: jax.Array,
    old_BR: jax.Array,
    reference_BR: jax.Array | None,
    advantage_B: jax.Array,
    mask_BR: jax.Array,
    correction_BR: jax.Array | None = None,
) -> TokenLosses:
    """The loss of every token; multiply by the batch's weights and add up.

    Args:
        objective: What to minimise.
        logp_BR: float32 log-probabilities under the parameters being trained.
        old_BR: Those at the start of this batch; `stop_gradient(logp_BR)` for a single update.
        reference_BR: Those of the reference policy, or None.
        advantage_B: float32 advantage of each row.
        mask_BR: bool, True at response tokens.
        correction_BR: Factors of the surrogate's losses (not of the KL), without a gradient.
    """
    # Cleaned before use: where() after the fact would let a NaN off the mask into the gradient.
    logp_BR = jnp.where(mask_BR, logp_BR, 0.0)
    old_BR = jnp.where(mask_BR, old_BR, 0.0)
    loss_BR, clipped_BR = objective.surrogate(objective, logp_BR, old_BR, advantage_B, mask_BR)
    if correction_BR is not None:
        loss_BR = loss_BR * correction_BR
    kl_BR = None
    if reference_BR is not None:
        kl_BR = kl_k3(logp_BR, old_BR, jnp.where(mask_BR, reference_BR, 0.0))
        loss_BR = loss_BR + objective.kl * kl_BR
        kl_BR = jnp.where(mask_BR, kl_BR, 0.0)
    return TokenLosses(jnp.where(mask_BR, loss_BR, 0.0), clipped_BR & mask_BR, kl_BR)


def kl_k3(logp_BR: jax.Array, old_BR: jax.Array, reference_BR: jax.Array) -> jax.Array:
    """KL(policy ‖ reference) per token: `r · k3`, with `k3 = e^d − d − 1`, `d = ref − logp`.

    k3 is Schulman's low-variance estimator (http://joschu.net/blog/kl-approx.html). Differentiated
    alone it lacks the score term and pulls along the wrong KL; times the ratio `r = π/π_old` it is
    unbiased in value and gradient (DeepSeek-V3.2, arXiv 2512.02556). The product's gradient is
    `r · (logp − ref) · ∇logp` for any d: the exponentials cancel. It is written down in
    that form, because in fp32 the difference of two exponentials would lose it, and a clamp on d
    would set it to zero; only the reported value is clamped, at d = 20.
    """
    ratio_BR = _ratio(logp_BR, old_BR)
    delta_BR = reference_BR - logp_BR
    safe_BR = jnp.minimum(delta_BR, MAX_LOG_RATIO)
    value_BR = ratio_BR * (jnp.expm1(safe_BR) - safe_BR)
    score_BR = ratio_BR * lax.stop_gradient(-delta_BR)
    return lax.stop_gradient(value_BR - score_BR) + score_BR


def clipped_surrogate(
    objective: Objective,
    logp_BR: jax.Array,
    old_BR: jax.Array,
    advantage_B: jax.Array,
    mask_BR: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """`−min(r A, clip(r, 1 − ε_low, 1 + ε_high) A)`, `r = π/π_old` per token (PPO, 1707.06347)."""
    del mask_BR  # every token stands alone
    ratio_BR = _ratio(logp_BR, old_BR)
    bounded_BR = jnp.clip(ratio_BR, 1.0 - objective.clip_low, 1.0 + objective.clip_high)
    advantage_B1 = advantage_B[:, None]
    free_BR, held_BR = ratio_BR * advantage_B1, bounded_BR * advantage_B1
    return -jnp.minimum(free_BR, held_BR), held_BR < free_BR


def sequence_surrogate(
    objective: Objective,
    logp_BR: jax.Array,
    old_BR: jax.Array,
    advantage_B: jax.Array,
    mask_BR: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The clipped surrogate of one ratio a response, `s = (π(o) / π_old(o))^(1/|o|)` (2507.18071).

    Every token of a response has its response's loss, so that the mean over a response is it.
    """
    length_B1 = jnp.maximum(jnp.sum(mask_BR, axis=1, keepdims=True, dtype=logp_BR.dtype), 1.0)
    change_BR = jnp.where(mask_BR, logp_BR - old_BR, 0.0)
    mean_B1 = jnp.sum(change_BR, axis=1, keepdims=True) / length_B1
    loss_B1, clipped_B1 = clipped_surrogate(
        objective, mean_B1, jnp.zeros_like(mean_B1), advantage_B, mask_BR
    )
    return jnp.broadcast_to(loss_B1, mask_BR.shape), jnp.broadcast_to(clipped_B1, mask_BR.shape)


def weighted_score(
    objective: Objective,
    logp_BR: jax.Array,
    old_BR: jax.Array,
    advantage_B: jax.Array,
    mask_BR: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """`−sg(clip(r, 1 − ε_low, 1 + ε_high)) A log π`: clipping bounds a weight, cuts no gradient."""
    del mask_BR  # every token stands alone
    ratio_BR = lax.stop_gradient(_ratio(logp_BR, old_BR))
    bounded_BR = jnp.clip(ratio_BR, 1.0 - objective.clip_low, 1.0 + objective.clip_high)
    return -bounded_BR * advantage_B[:, None] * logp_BR, bounded_BR != ratio_BR


def negative_log_likelihood(
    objective: Objective,
    logp_BR: jax.Array,
    old_BR: jax.Array,
    advantage_B: jax.Array,
    mask_BR: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """`−log π`: imitation of given responses; advantages and old policy play no part."""
    del objective, old_BR, advantage_B
    return -logp_BR, jnp.zeros_like(mask_BR)


def sequence_mean(mask_NR: BoolArray) -> Float32Array:
    """`1 / (rows · |o_i|)`: the mean over each response, then over those that have tokens."""
    length_N1 = mask_NR.sum(axis=1, keepdims=True)
    rows = np.count_nonzero(length_N1)
    return (mask_NR / np.maximum(length_N1 * rows, 1)).astype(np.float32)


def token_mean(mask_NR: BoolArray) -> Float32Array:
    """`1 / Σ_i |o_i|`: the mean over all response tokens of the batch."""
    return (mask_NR / max(int(mask_NR.sum()), 1)).astype(np.float32)


def constant_mean(mask_NR: BoolArray, *, max_length: int) -> Float32Array:
    """`1 / (rows · max_length)`: sums over tokens by one constant, whatever was sampled."""
    rows = np.count_nonzero(mask_NR.any(axis=1))
    return (mask_NR / max(rows * max_length, 1)).astype(np.float32)


def grpo(*, clip: float = 0.2, kl: float = 0.0) -> Objective:
    """GRPO (arXiv 2402.03300, equation 3), without the KL unless asked for.

    `L = −(1/N) Σ_i (1/|o_i|) Σ_t [min(r A_i, clip(r, 1 − ε, 1 + ε) A_i) − β KL_t]`
    """
    return Objective(clipped_surrogate, sequence_mean, clip_low=clip, clip_high=clip, kl=kl)


def dr_grpo(*, max_length: int, clip: float = 0.2, kl: float = 0.0) -> Objective:
    """Dr. GRPO (arXiv 2503.20783): neither a response's length nor the spread rescales it.

    `L = −1/(N · max_length) Σ_i Σ_t min(r A_i, clip(r, 1 − ε, 1 + ε) A_i)`, `A = R − mean`.

    Args:
        max_length: The run's limit on response tokens, a constant.
        clip: ε.
        kl: β, 0 in the paper.
    """
    if max_length < 1:
        raise ValueError(f"max_length: found {max_length}, allowed: 1 or more")
    weights = partial(constant_mean, max_length=max_length)
    return Objective(
        clipped_surrogate, weights, standardise=False, clip_low=clip, clip_high=clip, kl=kl
    )


def dapo(*, clip_low: float = 0.2, clip_high: float = 0.28, kl: float = 0.0) -> Objective:
    """DAPO (arXiv 2503.14476, equation 8): clip-higher, and every token of the batch weighs alike.

    `L = −(1/Σ_i |o_i|) Σ_i Σ_t min(r A_i, clip(r, 1 − ε_low, 1 + ε_high) A_i)`
    """
    return Objective(clipped_surrogate, token_mean, clip_low=clip_low, clip_high=clip_high, kl=kl)


def gspo(*, clip_low: float = 3e-4, clip_high: float = 4e-4, kl: float = 0.0) -> Objective:
    """GSPO (arXiv 2507.18071, equation 5; the bounds of its section 5.1): one ratio a response.

    `L = −(1/N) Σ_i min(s_i A_i, clip(s_i, 1 − ε_low, 1 + ε_high) A_i)`
    """
    return Objective(
        sequence_surrogate, sequence_mean, clip_low=clip_low, clip_high=clip_high, kl=kl
    )


def cispo(*, clip_low: float = 1.0, clip_high: float = 4.0, kl: float = 0.0) -> Objective:
    """CISPO (arXiv 2506.13585, equation 4): no token loses its gradient, its weight is bounded.

    `L = −(1/Σ_i |o_i|) Σ_i Σ_t sg(clip(r, 1 − ε_low, 1 + ε_high)) A_i log π`. There is no lower
    bound; weights go up to 5 (arXiv 2510.13786, which counts the bound itself, not its distance
    from 1, as TRL does).
    """
    return Objective(weighted_score, token_mean, clip_low=clip_low, clip_high=clip_high, kl=kl)


def supervised() -> Objective:
    """Cross-entropy of given responses: `L = −(1/Σ_i |o_i|) Σ_i Σ_t log π(o_it)`."""
    return Objective(negative_log_likelihood, token_mean)


OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "gspo": gspo,
    "cispo": cispo,
    "supervised": supervised,
}


def soft_overlong_penalty(length_N: Int32Array, *, max_length: int, buffer: int) -> Float32Array:
    """DAPO's penalty on long responses, to be added to the reward (arXiv 2503.14476, equation 13).

    0 up to `max_length − buffer` tokens, then falling in a line to −1 at `max_length`, −1 beyond.

    Raises:
        ValueError: The buffer does not fit into the length.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"buffer: found {buffer}, allowed: 1 to max_length ({max_length})")
    over_N = np.asarray(length_N, dtype=np.float32) - (max_length - buffer)
    return -np.clip(over_N / buffer, 0.0, 1.0).astype(np.float32)


def _ratio(logp_BR: jax.Array, old_BR: jax.Array) -> jax.Array:
    return jnp.exp(jnp.clip(logp_BR - old_BR, -MAX_LOG_RATIO, MAX_LOG_RATIO))
