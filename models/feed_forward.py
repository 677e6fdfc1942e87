"""The gated feed-forward layer in slices of its width, for training.

Slices of the width rather than of the tokens: every weight is then used by one slice alone, so that
it is gathered over fsdp, and its gradient made, no more often. Chunks of tokens would gather all
weights again in every chunk, and add up as many gradients. A width that tensor splits had better
stay whole: it exists in slices already, and each of ours would be added up over the devices.

Legend: B rows, T tokens of a forward, D model width, F feed-forward width, N slices of S = F / N.
"""

from functools import partial

import jax
import jax.numpy as jnp

SLICES = 4  # N


def feed_forward_in_slices(
    x_BTD: jax.Array, gate_DF: jax.Array, up_DF: jax.Array, down_FD: jax.Array
) -> jax.Array:
    """`(silu(x gate) * (x up)) down`, with `[B, T, F / SLICES]` of it at a time.

    The backward pass computes each slice again, as a layer that is recomputed would have to
    anyway, and holds no more of it either. A width that is no multiple is one slice.

    Args:
        x_BTD: In the compute dtype; sums over slices are float32, in both directions.
        gate_DF: Weights, cast to the compute dtype.
        up_DF: Weights.
        down_FD: Weights.

    Returns:
        `[B, T, D]` in the dtype of x.
    """
    dtype, (D, F) = x_BTD.dtype, gate_DF.shape
    N = SLICES if F % SLICES == 0 else 1
    wide_BTD = x_BTD.astype(jnp.float32)

    # in a scan, recomputation needs no guard against common-subexpression elimination
    @partial(jax.checkpoint, prevent_cse=False)
    def one(wide_BTD: jax.Array, weights: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        gate_DS, up_DS, down_SD = weights
        x_BTD = wide_BTD.astype(dtype)
        fed_BTS = jax.nn.silu(x_BTD @ gate_DS) * (x_BTD @ up_DS)
        return (fed_BTS @ down_SD).astype(jnp.float32)  # cast, so that no product is float32

    def add(
        sum_BTD: jax.Array, weights: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, None]:
        return sum_BTD + one(wide_BTD, weights), None

    gate_NDS, up_NDS = (
        weight_DF.astype(dtype).reshape(D, N, F // N).swapaxes(0, 1)
        for weight_DF in (gate_DF, up_DF)
    )
    weights_N = (gate_NDS, up_NDS, down_FD.astype(dtype).reshape(N, F // N, D))
    sum_BTD, _ = jax.lax.scan(add, jnp.zeros_like(wide_BTD), weights_N)
    return sum_BTD.astype(dtype)
