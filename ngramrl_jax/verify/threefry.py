"""Threefry-2x32 with 20 rounds, written out so that XLA can fuse it.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The same words as
`jax.random.bits` gives in its partitionable form (the default), whatever that setting is. JAX's own
lowering is a loop over whole arrays on a CPU and a call of its own on a GPU; this one is
elementwise, so the noise is made where it is used, in a third of the time.
`ngramrl_jax.host.noise` is its mirror on the host.

Legend: X any leading axes.
"""

import jax
import jax.numpy as jnp

_PARITY = 0x1BD11BDA
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry_2x32(
    key_high: jax.Array, key_low: jax.Array, x: jax.Array, y: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One block: two words from a key of two words and a counter of two; all uint32."""
    key = (key_high, key_low, key_high ^ key_low ^ jnp.uint32(_PARITY))
    x, y = x + key[0], y + key[1]
    for block in range(5):
        for by in _ROTATIONS[block % 2]:
            x = x + y
            y = ((y << jnp.uint32(by)) | (y >> jnp.uint32(32 - by))) ^ x
        x = x + key[(block + 1) % 3]
        y = y + key[(block + 2) % 3] + jnp.uint32(block + 1)
    return x, y


def random_words(key_data_X2: jax.Array, count: int) -> jax.Array:
    """`count` words for each key, uint32 [X.., count]; word i is that of counter (0, i)."""
    key_X2 = key_data_X2[..., None]
    index_1N = jax.lax.broadcasted_iota(
        jnp.uint32, (*(1,) * (key_data_X2.ndim - 1), count), key_data_X2.ndim - 1
    )
    high, low = threefry_2x32(
        key_X2[..., 0, :], key_X2[..., 1, :], jnp.zeros_like(index_1N), index_1N
    )
    return high ^ low
