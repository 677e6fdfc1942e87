"""Grouped-query attention of a forward: one seam, three fillings that say the same.

All three take the cache as it lies (`[B, J, S, E]`, every row with a length of its own) and a mask,
so that a round's K + 1 queries, a prefill and a tree of drafts are one case.

- `xla`: two matrix products and a softmax, left to the compiler.
- `cudnn`: `jax.nn.dot_product_attention`, cuDNN's flash attention on an NVIDIA GPU (16-bit dtypes).
- `pallas`: the flash attention kernel that JAX ships for TPU.

Of JAX's other TPU kernels, `paged_attention` has one query a sequence, so K + 1 queries would read
the cache K + 1 times; `ragged_paged_attention` has a round's raggedness exactly but wants keys and
values interleaved in one array, positions before heads, and knows no mask, so no trees.

Legend: B rows, T tokens of a forward, S key positions, H query heads, J key/value heads, G = H / J
query heads of a key/value head, X = G T, E head width, N chunks of C tokens.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes, flash_attention

AttentionName = Literal["auto", "xla", "cudnn", "pallas"]

# What "auto" means. An entry changes when the filling has been measured to win on that platform.
_AUTO: dict[str, AttentionName] = {}

CHUNK = 256  # queries whose scores exist at the same time in training
_SUBLANES, _LANES = 8, 128  # a TPU's tile in float32
_LEAST = float(jnp.finfo(jnp.float32).min)


def check_attention(name: str) -> None:
    """Raises ValueError where no filling has that name."""
    if name not in get_args(AttentionName):
        raise ValueError(
            f"attention: found {name!r}, allowed: {', '.join(get_args(AttentionName))}"
        )


def attention(
    query_BTHE: jax.Array,
    key_BJSE: jax.Array,
    value_BJSE: jax.Array,
    mask_BTS: jax.Array,
    name: AttentionName = "xla",
) -> jax.Array:
    """Softmax attention, scores and softmax in float32.

    Args:
        query_BTHE: Queries; head h reads key/value head `h // (H / J)`.
        key_BJSE: Keys.
        value_BJSE: Values.
        mask_BTS: bool, True where a query may see a key; at least one key for every query. Its
            leading axis may be 1.
        name: Static, the filling; "auto" chooses by platform.

    Returns:
        Attended values `[B, T, H, E]` in the dtype of the queries.
    """
    if name == "auto":
        name = _AUTO.get(jax.default_backend(), "xla")
    filling = {"xla": _xla, "cudnn": _cudnn, "pallas": _pallas}[name]
    return filling(query_BTHE, key_BJSE, value_BJSE, mask_BTS)


def attention_in_chunks(
    query_BTHE: jax.Array, key_BJSE: jax.Array, value_BJSE: jax.Array, mask_BTS: jax.Array
) -> jax.Array:
    """As `attention` by `xla`, for training: the scores of `CHUNK` queries exist at a time.

    The backward pass computes them again. Whole rows of scores are `4 H S` bytes a token, a few
    times over, more than a layer's weights where rows are long. T that is no multiple of the chunk
    is done at once.
    """
    B, T, H, E = query_BTHE.shape
    if T == CHUNK or T % CHUNK:
        return attention(query_BTHE, key_BJSE, value_BJSE, mask_BTS)

    def split(x_BTX: jax.Array) -> jax.Array:
        rows, rest = x_BTX.shape[0], x_BTX.shape[2:]
        return x_BTX.reshape(rows, T // CHUNK, CHUNK, *rest).swapaxes(0, 1)

    @jax.checkpoint
    def chunk(query_and_mask: tuple[jax.Array, jax.Array]) -> jax.Array:
        query_BCHE, mask_BCS = query_and_mask
        return attention(query_BCHE, key_BJSE, value_BJSE, mask_BCS)

    attended_NBCHE = jax.lax.map(chunk, (split(query_BTHE), split(mask_BTS)))
    return attended_NBCHE.swapaxes(0, 1).reshape(B, T, H, E)


def _xla(
    query_BTHE: jax.Array, key_BJSE: jax.Array, value_BJSE: jax.Array, mask_BTS: jax.Array
) -> jax.Array:
    B, T, H, E = query_BTHE.shape
    J, S = key_BJSE.shape[1:3]
    G = H // J
    query_BJXE = _by_key_head(query_BTHE, J)
    score_BJXS = jnp.einsum(
        "bjxe,bjse->bjxs", query_BJXE, key_BJSE, preferred_element_type=jnp.float32
    )
    score_BJGTS = score_BJXS.reshape(B, J, G, T, S) * E**-0.5
    score_BJGTS = jnp.where(mask_BTS[:, None, None], score_BJGTS, _LEAST)
    weight_BJGTS = jax.nn.softmax(score_BJGTS, axis=-1).astype(value_BJSE.dtype)
    weight_BJXS = weight_BJGTS.reshape(B, J, G * T, S)
    attended_BJXE = jnp.einsum("bjxs,bjse->bjxe", weight_BJXS, value_BJSE)
    return _by_query(attended_BJXE, T)


def _cudnn(
    query_BTHE: jax.Array,
    key_BJSE: jax.Array,
    value_BJSE: jax.Array,
    mask_BTS: jax.Array,
) -> jax.Array:
    # cuDNN is not there on other platforms, and takes 16-bit dtypes only.
    narrow = query_BTHE.dtype.itemsize == 2
    with jax.numpy_dtype_promotion("standard"):  # JAX's own code needs it in 16 bits
        return jax.nn.dot_product_attention(
            query_BTHE,
            key_BJSE.swapaxes(1, 2),
            value_BJSE.swapaxes(1, 2),
            mask=mask_BTS[:, None],
            implementation="cudnn" if narrow and jax.default_backend() == "gpu" else "xla",
        )


def _pallas(
    query_BTHE: jax.Array, key_BJSE: jax.Array, value_BJSE: jax.Array, mask_BTS: jax.Array
) -> jax.Array:
    B, T, H, E = query_BTHE.shape
    J, S = key_BJSE.shape[1:3]
    G, X = H // J, H // J * T
    # the kernel's blocks must divide what they tile; what is added is masked or cut off
    add_X, add_S = -X % _SUBLANES, -S % _LANES
    block_X = X + add_X if X <= _LANES else _LANES
    add_X += -(X + add_X) % block_X
    bias_BTS = jnp.where(mask_BTS, 0.0, _LEAST).astype(jnp.float32)
    bias_BJXS = jnp.broadcast_to(bias_BTS[:, None, None], (B, J, G, T, S)).reshape(B, J, X, S)
    with jax.numpy_dtype_promotion("standard"):
        attended_BJXE = flash_attention(
            jnp.pad(_by_key_head(query_BTHE, J), ((0, 0), (0, 0), (0, add_X), (0, 0))),
            jnp.pad(key_BJSE, ((0, 0), (0, 0), (0, add_S), (0, 0))),
            jnp.pad(value_BJSE, ((0, 0), (0, 0), (0, add_S), (0, 0))),
            jnp.pad(bias_BJXS, ((0, 0), (0, 0), (0, add_X), (0, add_S)), constant_values=_LEAST),
            sm_scale=E**-0.5,
            block_sizes=BlockSizes(
                block_q=block_X, block_k_major=_LANES, block_k=_LANES, block_b=1
            ),
        )
    return _by_query(attended_BJXE[:, :, :X], T)


def _by_key_head(query_BTHE: jax.Array, J: int) -> jax.Array:
    """The queries of a key/value head side by side: one matrix product for all, `[B, J, X, E]`."""
    B, T, H, E = query_BTHE.shape
    query_BJGTE = query_BTHE.reshape(B, T, J, H // J, E).transpose(0, 2, 3, 1, 4)
    return query_BJGTE.reshape(B, J, H // J * T, E)


def _by_query(attended_BJXE: jax.Array, T: int) -> jax.Array:
    """The inverse of `_by_key_head`."""
    B, J, X, E = attended_BJXE.shape
    attended_BJGTE = attended_BJXE.reshape(B, J, X // T, T, E)
    return attended_BJGTE.transpose(0, 3, 1, 2, 4).reshape(B, T, J * (X // T), E)
