"""Faults of other systems (CASES) at one round of one row: the right value, by both verifiers.

Legend: K draft tokens, T = K + 1 positions, V vocabulary.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.types import Sampling
from ngramrl_jax.verify.adjust import adjusted_log_probs
from ngramrl_jax.verify.coupled import verify_coupled
from ngramrl_jax.verify.keyed import gumbel
from ngramrl_jax.verify.rejection import verify_rejection

V = 7


@partial(jax.jit, static_argnums=0)
def verify(verifier, logp_BTV, draft_BK, length_B, key_BT):
    if verifier == "coupled":
        return verify_coupled(logp_BTV, draft_BK, length_B, gumbel(key_BT, V))
    return verify_rejection(logp_BTV, draft_BK, length_B, key_BT)


def decide(verifier, sure_T, draft_K, length=None):
    """The verdict on a draft where the target can say `sure_T[t]` alone at position t."""
    logp_1TV = jnp.log(jax.nn.one_hot(jnp.array([sure_T]), V))
    draft_1K = jnp.array([draft_K], jnp.int32)
    length_1 = jnp.array([len(draft_K) if length is None else length], jnp.int32)
    key_1T = jax.random.split(jax.random.key(0), (1, len(sure_T)))
    verdict = verify(verifier, logp_1TV, draft_1K, length_1, key_1T)
    accepted = int(verdict.accepted_B[0])
    return accepted, verdict.tokens_BT[0, : accepted + 1].tolist()


both_verifiers = pytest.mark.parametrize("verifier", ["coupled", "rejection"])


@both_verifiers
@pytest.mark.parametrize("accepted", [0, 1, 2, 3])
def test_the_token_after_the_accepted_prefix(verifier, accepted):
    """B6: a + 1 tokens; the last is the target's at position a, the bonus token only for a = K."""
    said = [4, 2, 5, 3]
    draft = [token if t < accepted else token - 1 for t, token in enumerate(said[:3])]
    assert decide(verifier, said, draft) == (accepted, said[: accepted + 1])


@both_verifiers
def test_a_pad_id_is_never_an_index(verifier):
    """B10: -1 wraps to the last id of the vocabulary, which here is the one that p says."""
    last = V - 1
    assert decide(verifier, [last] * 4, [5, -1, -1]) == (0, [last])
    assert decide(verifier, [last] * 4, [last, -1, -1]) == (1, [last, last])
    assert decide(verifier, [last] * 4, [last, -1, -1], length=1) == (1, [last, last])
    assert decide(verifier, [last] * 4, [-1, -1, -1]) == (0, [last])
    assert decide(verifier, [0] * 4, [V, 0, 0]) == (0, [0])


def test_a_top_k_that_filters_nothing_is_no_filter():
    """B9: off is 0; the vocabulary's size and more mean the same; -1 is refused, not guessed."""
    logits_V = jnp.asarray(np.random.default_rng(0).normal(size=V), jnp.float32)
    plain_V = adjusted_log_probs(logits_V, Sampling())
    for top_k in (0, V, V + 1, 10 * V):
        np.testing.assert_array_equal(adjusted_log_probs(logits_V, Sampling(top_k=top_k)), plain_V)
    with pytest.raises(ValueError, match="top_k: found -1, allowed: 0"):
        Sampling(top_k=-1)
