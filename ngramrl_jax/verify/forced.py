"""Forced verification: a recorded response is committed, at the cost of sampling it.

With it, throughput at real acceptance is measured for any model shape with random weights.

Legend: B rows, K draft tokens, T = K + 1 tokens of a round, V vocabulary.
"""

import jax.numpy as jnp
from jax import Array

from ngramrl_jax.verify.keyed import sample
from ngramrl_jax.verify.verdict import Verdict, accepted_prefix, with_log_probs


def verify_forced(
    logp_BTV: Array, draft_BK: Array, length_B: Array, noise_BTV: Array, said_BT: Array
) -> Verdict:
    """Keeps a draft for as long as it is what the record says.

    The target is sampled nevertheless, as in `verify_coupled`: where nothing is recorded, that is
    what is said, so the compiler cannot leave the sampling out.

    Args:
        logp_BTV: float32 adjusted log-probabilities after the last committed token (t = 0) and
            after each draft token. Of a recorded token it is read at the record's id.
        draft_BK: int32.
        length_B: int32, how many slots of each draft count, 0 .. K.
        noise_BTV: Gumbel noise keyed by the position of the token that is sampled.
        said_BT: int32, the recorded ids from the next position on, below V; negative where there
            is none.
    """
    sample_BT = sample(logp_BTV, noise_BTV)
    tokens_BT = jnp.where(said_BT >= 0, said_BT, sample_BT)
    accepted_B = accepted_prefix(tokens_BT[:, :-1] == draft_BK, length_B)
    return with_log_probs(tokens_BT, accepted_B, logp_BTV)
