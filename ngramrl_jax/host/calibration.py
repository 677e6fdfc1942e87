# ruff: noqa: ANN001, ANN201, ANN202 (Numba infers the types of kernels)
"""How far the host's idea of a law may be trusted, learnt from what was drawn.

The host holds an idea q of the law p of a position (`ngramrl_jax.host.pool`) and, where it knows
the row's key, the Gumbel noise g with which p will be sampled: what is drawn is the arg-max of
log p + g. Were log p = log q plus errors that are themselves Gumbel of scale s (up to a constant),
token x would be drawn with probability softmax((log q + g) / s)[x]: the Gumbel-max rule once more.
Nobody knows s, and it is not the same everywhere. So the estimate is a mixture over a ladder of
scales, with one part more that does not believe in g at all, and one for tokens that are not
listed. The weights of the parts are learnt on line, by the steps of expectation maximisation (Cappe
and Moulines, "On-line expectation-maximization algorithm for latent data models", arXiv 0712.4273)
with a forgetting factor, in cells of positions of about the same standing. Without a key g is 0,
and the same ladder says how much sharper or flatter p is than q.
The scales are halved from rung to rung and g is kept as the exponential time e^-g, so that the laws
of all rungs, (q / e^-g)^(1/s) but for their norms, take one square root and some squarings.

Legend: B rows, K draft tokens, T = K + 1 positions of a round, X candidates of one position,
L laws that were pooled, C cells, M parts of the mixture.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.host.kernel import inlined, kernel
from ngramrl_jax.host.pool import Pool, learn_weights
from ngramrl_jax.types import Float32Array, Int32Array

_RUNGS = 7  # of the ladder of scales: 2, 1, 1/2 and so on
_NOISELESS = _RUNGS  # the part that takes q as it is, without the noise
_UNLISTED = _NOISELESS + 1
PARTS = _UNLISTED + 1
_UNKNOWN = -1
_KEPT = 0.999  # of what was learnt, at each new token of the cell
_BELIEF = 20.0  # tokens that the mean of all cells counts for in each
_START = 1.0  # tokens of each part, before anything was seen


class Flight(NamedTuple):
    """The drafts of a round in flight.

    Attributes:
        draft_BK: int32.
        length_B: int32, their lengths.
        room_B: int32, response tokens that each row may still commit; 0 for idle rows.
    """

    draft_BK: Int32Array
    length_B: Int32Array
    room_B: Int32Array


class Guesses(NamedTuple):
    """What the host holds of every position that a round may sample.

    Attributes:
        ids_BTX: int32, candidates for the token, the draft's own first, then the best first.
        q_BTX: float32, their probabilities by the pooled law, above 0.
        time_BTX: float32, their noise as exponential times, e^-g; 1 where the row's key is unknown.
        count_BT: int32, how many candidates there are; 0 for positions that are not sampled.
        cell_BT: int32, of the calibration.
        gain_BTXL: float32, what each law adds to log q, see `pool.Panel`.
        mean_BTL: float32, the mean of that under the pooled law of all tokens.
        pool_BT: int32, cell of the pool.
    """

    ids_BTX: Int32Array
    q_BTX: Float32Array
    time_BTX: Float32Array
    count_BT: Int32Array
    cell_BT: Int32Array
    gain_BTXL: Float32Array
    mean_BTL: Float32Array
    pool_BT: Int32Array


class Calibration:
    """The weights of pool and mixture; small, deterministic, and learnt anew after a restart.

    Attributes:
        pool: Which law counts for how much.
        seen_CM: float64, tokens of each part by cell, forgetting; all cells together in the last.
        place_Y: float64 [X + 2], where emitted tokens stood among the candidates, forgetting: how
            often at each rank, how often at none, and how many draft tokens were accepted.
    """

    def __init__(self, cells: int, width: int, pool: Pool) -> None:
        """Nothing seen of so many cells, and of `width` candidates a position."""
        self.pool = pool
        self.seen_CM: NDArray[np.float64] = np.zeros((cells + 1, PARTS))
        self.seen_CM[-1] = _START
        self.place_Y: NDArray[np.float64] = np.zeros(width + 2)
        self.place_Y[[0, -2, -1]] = 1.0, 1.0, 4.0

    @property
    def kept(self) -> float:
        """Share of the draft tokens looked at that were accepted, below 1."""
        return float(self.place_Y[-1] / self.place_Y.sum())

    @property
    def power(self) -> float:
        """r, where F guesses of an emitted token miss it with probability F^-r."""
        emitted_Y = self.place_Y[:-1] / self.place_Y[:-1].sum()
        misses = [1 - emitted_Y[:guesses].sum() for guesses in (2, 4, 8)]
        powers = [
            -math.log(max(miss, 1e-3)) / math.log(n)
            for n, miss in zip((2, 4, 8), misses, strict=True)
        ]
        return max(sum(powers) / len(powers), 0.05)

    def chances(self, guesses: Guesses) -> Float32Array:
        """Probability of each candidate, `chance_BTX`; 0 where there is none."""
        chance_BTX = np.zeros(guesses.ids_BTX.shape, np.float32)
        _chances(guesses, self.seen_CM, chance_BTX)
        return chance_BTX

    def learn(
        self, guesses: Guesses, flight: Flight, tokens_BT: Int32Array, count_B: Int32Array
    ) -> None:
        """Rows committed `tokens_BT[r, :count_B[r]]` in the round in flight."""
        _learn(guesses, self.seen_CM, self.place_Y, self.pool, flight, tokens_BT, count_B)


@inlined
def _weights(seen_CM, cell, weight_M):
    everywhere_M, here_M = seen_CM[-1], seen_CM[cell]
    total = here_M.sum() + _BELIEF
    mean = _BELIEF / everywhere_M.sum()
    for m in range(PARTS):
        weight_M[m] = (here_M[m] + mean * everywhere_M[m]) / total


@inlined
def _parts(q_X, time_X, count, part_XM, total_M):
    """The law of each part over the candidates, but for its norm `total_M`.

    (q e^g)^(1/s), where each scale is half of the one before: the square of that.
    """
    total_M[:] = 0.0
    most = 0.0
    for x in range(count):
        most = max(most, q_X[x] / time_X[x])
    for x in range(count):
        odds = math.sqrt(q_X[x] / (time_X[x] * most))
        for m in range(_RUNGS):
            part_XM[x, m] = odds
            odds *= odds
        part_XM[x, _NOISELESS] = q_X[x]
        for m in range(_UNLISTED):
            total_M[m] += part_XM[x, m]


@kernel
def chances_at(guesses, seen_CM, row, t, weight_M, total_M, part_XM, chance_BTX):
    """The chances at one position; the arrays between are scratch, [PARTS] and [X, PARTS]."""
    count = guesses.count_BT[row, t]
    _parts(guesses.q_BTX[row, t], guesses.time_BTX[row, t], count, part_XM, total_M)
    _weights(seen_CM, guesses.cell_BT[row, t], weight_M)
    for m in range(_UNLISTED):
        weight_M[m] /= total_M[m]
    for x in range(count):
        chance = 0.0
        for m in range(_UNLISTED):
            chance += weight_M[m] * part_XM[x, m]
        chance_BTX[row, t, x] = chance


@kernel
def _chances(guesses, seen_CM, chance_BTX):
    weight_M, total_M = np.empty(PARTS), np.empty(PARTS)
    part_XM = np.empty((chance_BTX.shape[2], PARTS))
    for row in range(chance_BTX.shape[0]):
        for t in range(chance_BTX.shape[1]):
            if guesses.count_BT[row, t] == 0:
                break
            chances_at(guesses, seen_CM, row, t, weight_M, total_M, part_XM, chance_BTX)


@kernel
def _learn(guesses, seen_CM, place_Y, pool, flight, tokens_BT, count_B):
    width = guesses.ids_BTX.shape[2]
    weight_M, total_M, share_M = np.empty(PARTS), np.empty(PARTS), np.empty(PARTS)
    part_XM = np.empty((width, PARTS))
    for row in range(count_B.size):
        for t in range(min(count_B[row], flight.length_B[row] + 1)):
            count = guesses.count_BT[row, t]
            if count == 0:
                break
            drawn = _UNKNOWN
            for x in range(count):
                if guesses.ids_BTX[row, t, x] == tokens_BT[row, t]:
                    drawn = x
            cell = guesses.cell_BT[row, t]
            _weights(seen_CM, cell, weight_M)
            share_M[:] = 0.0
            if drawn == _UNKNOWN:
                share_M[_UNLISTED] = 1.0
            else:
                q_X, time_X = guesses.q_BTX[row, t], guesses.time_BTX[row, t]
                _parts(q_X, time_X, count, part_XM, total_M)
                for m in range(_UNLISTED):
                    share_M[m] = weight_M[m] * part_XM[drawn, m] / total_M[m]
                share_M /= share_M.sum()
                gain_L, mean_L = guesses.gain_BTXL[row, t, drawn], guesses.mean_BTL[row, t]
                learn_weights(pool, guesses.pool_BT[row, t], gain_L, mean_L)
            for known in (cell, np.int32(len(seen_CM) - 1)):
                seen_CM[known] *= _KEPT
                seen_CM[known] += share_M
            place_Y *= _KEPT
            drafting = t < flight.length_B[row]
            if drafting and drawn == 0:
                place_Y[-1] += 1
                continue
            place_Y[-2 if drawn == _UNKNOWN else drawn - drafting] += 1
            break
