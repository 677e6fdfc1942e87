"""What corrects an update for rollouts that another computation sampled: importance weights.

Rollouts are sampled by `π_rollout`: the same parameters, but other shapes, perhaps another
precision, or, once training is asynchronous, an older version. Expectations under the policy that
the update starts from, `π_old`, take the weight `π_old / π_rollout`; bounded, its variance is.

Legend: B rows of a micro-batch, R response positions.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from train.objectives import MAX_LOG_RATIO

MODES = ("off", "truncate", "mask")
LEVELS = ("token", "sequence")


@dataclass(frozen=True)
class Correction:
    """How the gap between rollout and training enters the loss.

    Attributes:
        mode: "truncate" bounds the weight at `cap` (TIS, Yao et al. 2025, "Your efficient RL
            framework secretly brings you off-policy RL training"); "mask" drops what lies above it
            (MIS; IcePop); "off" weighs all alike.
        level: A weight a "token", biased but tame, or a "sequence": the product over a response,
            unbiased.
        cap: Upper bound C.

    Raises:
        ValueError: Unknown mode or level, or a cap that is not above 0.
    """

    mode: str = "off"
    level: str = "token"
    cap: float = 2.0

    def __post_init__(self) -> None:
        for name, allowed in (("mode", MODES), ("level", LEVELS)):
            if getattr(self, name) not in allowed:
                found = getattr(self, name)
                raise ValueError(f"correction.{name}: found {found}, allowed: {', '.join(allowed)}")
        if not 0.0 < self.cap < float("inf"):
            raise ValueError(f"correction.cap: found {self.cap}, allowed: above 0, finite")


def importance_weights(
    correction: Correction, old_BR: jax.Array, rollout_BR: jax.Array, mask_BR: jax.Array
) -> jax.Array:
    """Factors of the token losses, float32 `[B, R]`, without a gradient; 0 off the mask.

    Args:
        correction: How.
        old_BR: Log-probabilities that the update starts from, by the training forward.
        rollout_BR: Those that the rollout recorded.
        mask_BR: bool, True at response tokens.
    """
    gap_BR = jnp.where(mask_BR, lax.stop_gradient(old_BR) - rollout_BR, 0.0)
    if correction.level == "sequence":
        gap_BR = jnp.broadcast_to(jnp.sum(gap_BR, axis=1, keepdims=True), gap_BR.shape)
    weight_BR = jnp.exp(jnp.clip(gap_BR, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    if correction.mode == "truncate":
        weight_BR = jnp.minimum(weight_BR, correction.cap)
    elif correction.mode == "mask":
        weight_BR = jnp.where(weight_BR > correction.cap, 0.0, weight_BR)
    return jnp.where(mask_BR, weight_BR, 0.0)
