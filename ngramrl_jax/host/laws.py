"""Next-token laws as the history keeps them: the policy's own probabilities of its likely tokens.

A rollout says which token was drawn at a position; its law says what could have been drawn. Two
rollouts that reach the same position draw anew from that law, so it is the better guide.

Legend: N response tokens, R best tokens of a position, M entries of all laws of a rollout.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.types import BestTokens, Int32Array

WHOLE = 65535  # probability 1 as stored
NEGLIGIBLE = 64  # about 0.001: less likely tokens are not listed

UInt16Array = NDArray[np.uint16]


class Laws(NamedTuple):
    """The laws of one rollout's tokens, one after another.

    Attributes:
        count_N: int32, entries of each token's law. None: the token was all but certain, or
            nothing is known; both mean that the token itself stands for the law.
        ids_M: int32, their tokens, most likely first.
        probs_M: uint16, their probabilities times WHOLE.
    """

    count_N: Int32Array
    ids_M: Int32Array
    probs_M: UInt16Array


def no_laws(size: int) -> Laws:
    """Nothing is known of any token of a rollout."""
    return Laws(np.zeros(size, np.int32), np.zeros(0, np.int32), np.zeros(0, np.uint16))


def laws_of(best: BestTokens, tokens_N: Int32Array) -> Laws:
    """What is worth keeping of a rollout's best tokens.

    Raises:
        ValueError: `best` has other shapes than [N, R], or no token at all at a position.
    """
    ids_NR, logps_NR = np.asarray(best.ids_NR), np.asarray(best.logps_NR)
    rows, columns = ids_NR.shape if ids_NR.ndim == 2 else (-1, 0)
    if logps_NR.shape != ids_NR.shape or rows != tokens_N.size or columns == 0:
        raise ValueError(
            f"best: found ids of shape {ids_NR.shape} and log-probabilities of shape "
            f"{logps_NR.shape}, allowed: both [{tokens_N.size}, 1 or more]"
        )
    ids_NR = np.ascontiguousarray(ids_NR, np.int32)
    probs_NR = np.rint(np.exp(np.asarray(logps_NR, np.float64)).clip(0, 1) * WHOLE)
    return Laws(*_listed(tokens_N, ids_NR, np.nan_to_num(probs_NR).astype(np.uint16)))


@kernel
def _listed(
    tokens_N: Int32Array, ids_NR: Int32Array, probs_NR: UInt16Array
) -> tuple[Int32Array, Int32Array, UInt16Array]:
    count_N = np.zeros(tokens_N.size, np.int32)
    ids_M = np.empty(ids_NR.size, np.int32)
    probs_M = np.empty(ids_NR.size, np.uint16)
    used = 0
    for n in range(tokens_N.size):
        if ids_NR[n, 0] == tokens_N[n] and probs_NR[n, 0] > WHOLE - NEGLIGIBLE:
            continue
        for r in range(ids_NR.shape[1]):
            if probs_NR[n, r] < NEGLIGIBLE:
                break
            ids_M[used] = ids_NR[n, r]
            probs_M[used] = probs_NR[n, r]
            used += 1
            count_N[n] += 1
    return count_N, ids_M[:used].copy(), probs_M[:used].copy()
