"""AdamW behind a clip of the global norm, as optax has it, in less memory.

The values are those of `optax.chain(optax.clip_by_global_norm, optax.adamw)` up to rounding, and so
is the tree of the state. What differs is what the compiler may keep. optax's clip divides every
gradient by the norm, and a division is dear enough to be stored: a second copy of all gradients.
Its Adam computes the change from the old moments, so that old and new ones exist together. Here the
clip is one factor, and the change is computed from the new moments behind a barrier, so that these
take the place of the old ones.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax


def clip_by_global_norm(most: float) -> optax.GradientTransformation:
    """Scales gradients down to the norm `most`; smaller ones stay as they are."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        norm = optax.tree.norm(updates)
        factor = jnp.where(norm < most, 1.0, most / norm)
        return jax.tree.map(lambda g: g * factor.astype(g.dtype), updates), state

    return optax.GradientTransformation(optax.init_empty_state, update)


def scale_by_adam(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """Adam's direction: arXiv 1412.6980, algorithm 1.

    Args:
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Added to the root of the second.
    """

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(
            jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.copy, zeros)
        )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        del params
        count = optax.safe_increment(state.count)
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, updates)
        nu = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, state.nu, updates)
        mu, nu = lax.optimization_barrier((mu, nu))
        unbiased1, unbiased2 = (1 - jnp.float32(beta) ** count for beta in (beta1, beta2))
        changes = jax.tree.map(
            lambda m, v: (m / unbiased1) / (jnp.sqrt(v / unbiased2) + epsilon), mu, nu
        )
        return changes, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)
