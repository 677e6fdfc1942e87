"""The verifiers once more in float64 NumPy, one row at a time, written to be read.

Tests hold the jitted code to these functions, and hold these functions to exact laws.

Legend: K draft tokens, T = K + 1 positions of a round, V vocabulary.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ngramrl_jax.types import Sampling

Float64Array = NDArray[np.float64]


class RowVerdict(NamedTuple):
    """What a round decides about one row.

    Attributes:
        tokens: The committed tokens, `accepted + 1` of them.
        accepted: Draft tokens kept.
        logps: Log-probability of each committed token under p.
    """

    tokens: list[int]
    accepted: int
    logps: list[float]


def adjusted_probs(logits_V: ArrayLike, sampling: Sampling) -> Float64Array:
    """Probabilities after temperature, then top-k, then top-p; arg-max for temperature 0."""
    logits_V = np.asarray(logits_V, np.float64)
    if sampling.greedy:
        return np.eye(logits_V.size)[np.argmax(logits_V)]
    probs_V = np.exp((logits_V - logits_V.max()) / sampling.temperature)
    probs_V /= probs_V.sum()
    best_first = np.argsort(-probs_V, kind="stable")
    if 0 < sampling.top_k < logits_V.size:
        probs_V[best_first[sampling.top_k :]] = 0.0
        probs_V /= probs_V.sum()
    if sampling.top_p < 1.0:
        enough = 1 + int(np.argmax(np.cumsum(probs_V[best_first]) >= sampling.top_p))
        probs_V[best_first[enough:]] = 0.0
        probs_V /= probs_V.sum()
    return probs_V


def coupled_verdict(
    probs_TV: Float64Array, draft_K: ArrayLike, length: int, noise_TV: ArrayLike
) -> RowVerdict:
    """Samples position after position and stops at the first token that the draft did not say."""
    draft, noise_TV = np.asarray(draft_K), np.asarray(noise_TV, np.float64)
    tokens: list[int] = []
    for t in range(length + 1):
        tokens.append(_sample(probs_TV[t], noise_TV[t]))
        if t < length and tokens[t] != draft[t]:
            break
    return _row_verdict(tokens, probs_TV)


def tree_verdict(
    probs_TV: Float64Array,
    tokens_N: ArrayLike,
    parent_N: ArrayLike,
    count: int,
    noise_TV: ArrayLike,
) -> RowVerdict:
    """Samples at the root, then at the child that says the sample, until there is none.

    Node n is token n + 1 of the round. The verdict's log-probabilities are those along the way.
    """
    tokens, parents = np.asarray(tokens_N), np.asarray(parent_N)
    noise_TV = np.asarray(noise_TV, np.float64)
    way, said = [0], [_sample(probs_TV[0], noise_TV[0])]
    while True:
        children = [n + 1 for n in range(count) if parents[n] == way[-1] and tokens[n] == said[-1]]
        if not children:
            return _row_verdict(said, probs_TV[way])
        way.append(children[0])
        said.append(_sample(probs_TV[way[-1]], noise_TV[way[-1]]))


def rejection_verdict(
    probs_TV: Float64Array,
    draft_K: ArrayLike,
    length: int,
    q_KV: Float64Array,
    uniform_K: ArrayLike,
    noise_TV: ArrayLike,
) -> RowVerdict:
    """Tests draft token after draft token; draws from the residual on the first rejection."""
    draft, uniform = np.asarray(draft_K), np.asarray(uniform_K, np.float64)
    noise_TV = np.asarray(noise_TV, np.float64)
    tokens: list[int] = []
    for t in range(length):
        accept = acceptance(probs_TV[t], q_KV[t], int(draft[t]))
        if not (accept == 1.0 or uniform[t] < accept):
            tokens.append(_sample(residual(probs_TV[t], q_KV[t]), noise_TV[t]))
            return _row_verdict(tokens, probs_TV)
        tokens.append(int(draft[t]))
    tokens.append(_sample(probs_TV[length], noise_TV[length]))
    return _row_verdict(tokens, probs_TV)


def round_law(
    probs_TV: Float64Array, draft_K: ArrayLike, length: int, q_KV: Float64Array
) -> dict[tuple[int, ...], float]:
    """The exact law of the committed tokens of a round, given its draft.

    For one-hot rows of `q_KV` it is the law of both verifiers, else that of rejection sampling.

    Returns:
        Probability of every possible tuple of committed tokens; the values sum to 1.
    """
    draft = [int(token) for token in np.asarray(draft_K)[:length]]
    law: dict[tuple[int, ...], float] = {}
    reach = 1.0
    for t, token in enumerate(draft):
        accept = acceptance(probs_TV[t], q_KV[t], token)
        _add(law, draft[:t], reach * (1 - accept) * residual(probs_TV[t], q_KV[t]))
        reach *= accept
    _add(law, draft, reach * probs_TV[length])
    return law


def one_hot_q(draft_K: ArrayLike, vocab: int) -> Float64Array:
    """The law of a chosen draft, [K, V]; a row without mass for an id outside the vocabulary."""
    return (np.asarray(draft_K)[:, None] == np.arange(vocab)).astype(np.float64)


def acceptance(p_V: Float64Array, q_V: Float64Array, token: int) -> float:
    """min(1, p / q) of a draft token, 0 where the target cannot say it."""
    if not 0 <= token < p_V.size or p_V[token] == 0:
        return 0.0
    return 1.0 if p_V[token] >= q_V[token] else float(p_V[token] / q_V[token])


def residual(p_V: Float64Array, q_V: Float64Array) -> Float64Array:
    """(p - q)+ normalised; p itself where nothing is left."""
    left_V = np.maximum(p_V - q_V, 0.0)
    return left_V / left_V.sum() if left_V.any() else p_V


def _sample(probs_V: Float64Array, noise_V: Float64Array) -> int:
    return int(np.argmax(_log(probs_V) + noise_V))


def _row_verdict(tokens: list[int], probs_TV: Float64Array) -> RowVerdict:
    logps = [float(_log(probs_TV[t])[token]) for t, token in enumerate(tokens)]
    return RowVerdict(tokens, len(tokens) - 1, logps)


def _add(law: dict[tuple[int, ...], float], prefix: list[int], probs_V: Float64Array) -> None:
    for token in np.flatnonzero(probs_V):
        outcome = (*prefix, int(token))
        law[outcome] = law.get(outcome, 0.0) + float(probs_V[token])


def _log(probs: Float64Array) -> Float64Array:
    return np.log(probs, out=np.full(probs.shape, -np.inf), where=probs > 0)
