"""Coupled verification: the target says with its own noise what it would have said anyway.

Legend: B rows, K draft tokens, T = K + 1 tokens of a round, V vocabulary.
"""

from jax import Array

from ngramrl_jax.verify.keyed import sample
from ngramrl_jax.verify.verdict import Verdict, accepted_prefix, with_log_probs


def verify_coupled(logp_BTV: Array, draft_BK: Array, length_B: Array, noise_BTV: Array) -> Verdict:
    """Keeps a draft for as long as it is what the target samples with its own noise.

    The target is sampled at all T positions. While sample and draft agree, the draft token is
    kept; the first sample that differs, or the one after the whole draft, is emitted. For a draft
    that does not depend on the noise this *is* rejection sampling with a one-hot q: the token d is
    accepted with probability p(d), and what is emitted otherwise follows p without d (Leviathan
    et al., arXiv 2211.17192). Beyond that, the committed tokens are those that plain decoding
    draws with the same noise, whatever the draft was.

    Args:
        logp_BTV: float32 adjusted log-probabilities after the last committed token (t = 0) and
            after each draft token.
        draft_BK: int32. Anything goes: ids outside the vocabulary are simply never sampled.
        length_B: int32, how many slots of each draft count, 0 .. K.
        noise_BTV: Gumbel noise keyed by the position of the token that is sampled.
    """
    sample_BT = sample(logp_BTV, noise_BTV)
    accepted_B = accepted_prefix(sample_BT[:, :-1] == draft_BK, length_B)
    return with_log_probs(sample_BT, accepted_B, logp_BTV)
