"""Rotary position embedding, phases always in float32.

Legend: B rows, T tokens of a forward, H heads (query or key/value), E head width, C = E / 2.

In bfloat16 the phase at position 1000 with theta 1e6 is off by more than a radian; in float32 by
less than 1e-3.
"""

import jax
import jax.numpy as jnp
import numpy as np

from models.rope_scaling import RopeScaling


def rope_phases(
    position_BT: jax.Array, head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of `position * theta ** (-2 c / E)` for c in `0 .. E / 2 - 1`.

    Args:
        position_BT: int32 absolute positions.
        head_dim: E, even.
        theta: Base of the frequencies.
        scaling: Stretches the frequencies; None leaves them.

    Returns:
        `cos_BTC` and `sin_BTC`, float32.
    """
    # float64 on the host: only the product with the position rounds in float32
    frequency_C = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is not None:
        frequency_C = scaling.scale(frequency_C)
    phase_BTC = position_BT.astype(jnp.float32)[..., None] * jnp.asarray(
        frequency_C[None, None, :], jnp.float32
    )
    return jnp.cos(phase_BTC), jnp.sin(phase_BTC)


def rotate(x_BTHE: jax.Array, cos_BTC: jax.Array, sin_BTC: jax.Array) -> jax.Array:
    """Rotates the pairs `(x[c], x[c + E / 2])` of every head by the phases of its position.

    The pairing by halves is that of Hugging Face checkpoints. Computed in float32, returned in
    the dtype of `x_BTHE`.
    """
    first_BTHC, second_BTHC = jnp.split(x_BTHE.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos_BTC[:, :, None, :], sin_BTC[:, :, None, :]
    turned = (first_BTHC * cos - second_BTHC * sin, second_BTHC * cos + first_BTHC * sin)
    return jnp.concatenate(turned, axis=-1).astype(x_BTHE.dtype)
