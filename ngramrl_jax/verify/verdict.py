"""What a round decides about its rows, whichever verifier decides it.

Legend: B rows, K draft tokens, T = K + 1 tokens of a round, V vocabulary.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Verdict(NamedTuple):
    """The outcome of a round for every row; a pytree.

    Attributes:
        tokens_BT: int32, the committed tokens: `accepted_B` draft tokens, then the token that the
            target emitted. Only the first `accepted_B + 1` of a row mean anything.
        accepted_B: int32, draft tokens kept, 0 .. K.
        logp_BT: float32, log-probability of each token of `tokens_BT` under the adjusted
            distribution, in nats.
    """

    tokens_BT: Array
    accepted_B: Array
    logp_BT: Array


def accepted_prefix(good_BK: Array, length_B: Array) -> Array:
    """How many draft tokens from the first on are good, int32 [B].

    Slots at or past `length_B` never count, whatever stands there.
    """
    slot_K = jnp.arange(good_BK.shape[1], dtype=jnp.int32)
    kept_BK = good_BK & (slot_K[None] < length_B[:, None])
    return jnp.sum(jnp.cumprod(kept_BK.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)


def with_log_probs(tokens_BT: Array, accepted_B: Array, logp_BTV: Array) -> Verdict:
    """A verdict with the log-probabilities of its tokens, which must be ids below V."""
    logp_BT = jnp.take_along_axis(logp_BTV, tokens_BT[..., None], axis=-1)[..., 0]
    return Verdict(tokens_BT, accepted_B, logp_BT)
