"""What crosses between host and device each round: one small array each way.

Several small copies cost more than one: each is a call of its own, and each result leaf waits for
the device by itself. So a round takes one int32 table and gives one back; log-probabilities
travel as the bits of their float32.

Legend: B rows, K draft budget, N nodes of a draft tree, T token columns of a result, R best tokens
of a position.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from ngramrl_jax.types import BoolArray, Float32Array, Int32Array

_HEAD = 3  # count, kept, stopped


@dataclass(frozen=True)
class RoundResult:
    """The outcome of one dispatch for every row, on the host.

    Attributes:
        count_B: int32, tokens committed; 0 for idle rows.
        kept_B: int32, how many of them were accepted draft tokens (the first ones).
        stopped_B: bool, True where the last committed token is a stop token.
        tokens_BT: int32, the committed tokens; only the first `count_B` of a row mean anything.
        logp_BT: float32, their log-probabilities under the adjusted distribution (nats).
        best_BTR: int32, the R most likely tokens at each of these positions, best first.
        best_logp_BTR: float32, their log-probabilities.
    """

    count_B: Int32Array
    kept_B: Int32Array
    stopped_B: BoolArray
    tokens_BT: Int32Array
    logp_BT: Float32Array
    best_BTR: Int32Array
    best_logp_BTR: Float32Array


def pack_drafts(draft_BK: Int32Array, length_B: Int32Array) -> Int32Array:
    """Host side: a fresh `[B, 1 + K]` table, never written again while a round may read it."""
    return np.concatenate([length_B[:, None], draft_BK], axis=1, dtype=np.int32)


def unpack_drafts(table_BX: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Device side: `(draft_BK, length_B)`."""
    return table_BX[:, 1:], table_BX[:, 0]


def unpack_trees(table_BX: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Device side: `(token_BN, parent_BN, count_B)` of packed `DraftTrees.columns_BX`.

    A parent that is not lower than its node is taken for the next lower token.
    """
    columns_BX, count_B = unpack_drafts(table_BX)
    token_BN, parent_BN = jnp.split(columns_BX, 2, axis=1)
    lower_N = jnp.arange(token_BN.shape[1], dtype=jnp.int32)
    return token_BN, jnp.clip(parent_BN, 0, lower_N[None]), count_B


def pack_result(
    count_B: jax.Array,
    kept_B: jax.Array,
    stopped_B: jax.Array,
    tokens_BT: jax.Array,
    logp_BT: jax.Array,
    best_BTR: jax.Array,
    best_logp_BTR: jax.Array,
) -> jax.Array:
    """Device side: everything the host learns about a dispatch, as one int32 array."""
    head_BX = jnp.stack([count_B, kept_B, stopped_B.astype(jnp.int32)], axis=1)
    ids_BTX = jnp.concatenate([tokens_BT[..., None], best_BTR], axis=2)
    logps_BTX = jnp.concatenate([logp_BT[..., None], best_logp_BTR], axis=2).astype(jnp.float32)
    bits_BTX = jax.lax.bitcast_convert_type(logps_BTX, jnp.int32)
    body_BTX = jnp.concatenate([ids_BTX, bits_BTX], axis=2)
    return jnp.concatenate([head_BX, body_BTX.reshape(len(count_B), -1)], axis=1)


def unpack_result(packed_BX: Int32Array, best_tokens: int) -> RoundResult:
    """Host side: the inverse of `pack_result` with R = `best_tokens`."""
    body_BTX = packed_BX[:, _HEAD:].reshape(len(packed_BX), -1, 2 * (1 + best_tokens))
    ids_BTX, bits_BTX = np.split(body_BTX, 2, axis=2)
    logps_BTX = np.ascontiguousarray(bits_BTX).view(np.float32)
    return RoundResult(
        count_B=packed_BX[:, 0],
        kept_B=packed_BX[:, 1],
        stopped_B=packed_BX[:, 2].astype(bool),
        tokens_BT=ids_BTX[..., 0],
        logp_BT=logps_BTX[..., 0],
        best_BTR=ids_BTX[..., 1:],
        best_logp_BTR=logps_BTX[..., 1:],
    )
