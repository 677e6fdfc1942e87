"""The rule of "same tokens": two rollouts with equal keys may part only at a near-tie.

The two differ in the shapes of their matrix products, so their logits differ in the last bits. A
token may then differ where the two best perturbed scores lie within TIE of each other, or where a
token lies within TIE of the edge of top-k or top-p; after it, everything may differ.

Legend: N response tokens, V vocabulary.
"""

import jax.numpy as jnp
import numpy as np

from ngramrl_jax.types import Rollout, Sampling
from ngramrl_jax.verify.adjust import adjusted_log_probs
from ngramrl_jax.verify.keyed import gumbel, position_keys, row_keys

TIE = 1e-4


def parting(one: Rollout, other: Rollout) -> int | None:
    """Index of the first token that differs, None for equal rollouts."""
    assert one.identity == other.identity
    shorter = min(len(one.tokens_N), len(other.tokens_N))
    different = np.flatnonzero(one.tokens_N[:shorter] != other.tokens_N[:shorter])
    if len(different):
        return int(different[0])
    return None if len(one.tokens_N) == len(other.tokens_N) else shorter


def is_near_tie(policy, params, sampling: Sampling, seed: int, rollout: Rollout, at: int) -> bool:
    """Whether rounding decides response token `at`, judged by the training forward."""
    tokens_T = np.concatenate([rollout.prompt_P, rollout.tokens_N[:at]])
    hidden_1TD = policy.hidden(params, jnp.asarray(tokens_T)[None])
    logits_V = policy.logits(params, hidden_1TD)[0, -1]
    key_1 = row_keys(
        seed,
        rollout.step,
        jnp.asarray([rollout.prompt_id]),
        jnp.asarray([rollout.sibling]),
        jnp.asarray([rollout.attempt]),
    )
    position_1 = jnp.asarray([len(tokens_T)], jnp.int32)
    noise_V = gumbel(position_keys(key_1, position_1, 1), policy.vocab_size)[0, 0]
    score_V = np.sort(np.asarray(adjusted_log_probs(logits_V, sampling) + noise_V))
    if score_V[-1] - score_V[-2] < TIE:
        return True
    scaled_V = np.sort(np.asarray(logits_V, np.float64) / (sampling.temperature or 1.0))[::-1]
    edge = False
    if 0 < sampling.top_k < len(scaled_V):
        edge |= scaled_V[sampling.top_k - 1] - scaled_V[sampling.top_k] < TIE
        scaled_V = scaled_V[: sampling.top_k]
    if sampling.top_p < 1.0:
        mass_V = np.cumsum(np.exp(scaled_V - scaled_V.max()))
        edge |= bool(np.abs(mass_V / mass_V[-1] - sampling.top_p).min() < TIE)
    return edge
