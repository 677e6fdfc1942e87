# ruff: noqa: ANN001, ANN202 (Numba infers the types of kernels)
"""How far the host's idea of a law may be trusted, learnt from what was drawn.

The host holds q for the law p of a position and, where it knows the row's key, the Gumbel noise g
with which p will be sampled: what is drawn is the arg-max of log p + g. Were log p = log q plus
errors that are themselves Gumbel of scale s (up to a constant), token x would be drawn with
probability softmax((log q + g) / s)[x]: the Gumbel-max rule once more. Nobody knows s, and it is
not the same everywhere, and there are two ideas of q, the law where the row's own history matches
and the common one behind its last tokens. So the estimate is a mixture over laws and a ladder of
scales, with one part more that does not believe in g at all, and one for tokens that are not
listed. The weights of the parts are learnt on line, by the steps of expectation maximisation (Cappe
and Moulines, "On-line expectation-maximization algorithm for latent data models", arXiv 0712.4273)
with a forgetting factor, in cells of positions of about the same standing. Without a key g is 0,
and the same ladder says how much sharper or flatter p is than q.

Legend: B rows, K draft tokens, T = K + 1 positions of a round, X candidates of one position,
L laws, C cells, M parts of the mixture.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.host.kernel import inlined, kernel
from ngramrl_jax.types import Float32Array, Int32Array

HISTORY, BOTH, COMMON = range(3)
# Law and scale of each part; the last one listed leaves the noise out.
_LAWS = (*[HISTORY] * 5, *[BOTH] * 3, *[COMMON] * 3, BOTH)
_SCALES = (0.06, 0.15, 0.4, 1.0, 2.5, 0.4, 1.0, 2.0, 0.4, 1.0, 2.0, 1.0)
_NOISELESS = len(_SCALES) - 1
_UNLISTED = len(_SCALES)
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
        log_q_BTXL: float32, log-probabilities of the laws L that they are judged by: the history's,
            both mixed, and the common one.
        noise_BTX: float32, their noise; 0 where the row's key is unknown.
        count_BT: int32, how many candidates there are; 0 for positions that are not sampled.
        cell_BT: int32, of the calibration.
    """

    ids_BTX: Int32Array
    log_q_BTXL: Float32Array
    noise_BTX: Float32Array
    count_BT: Int32Array
    cell_BT: Int32Array


class Calibration:
    """The weights of the mixture; small, deterministic, and learnt anew after a restart.

    Attributes:
        seen_CM: float64, tokens of each part by cell, forgetting; all cells together in the last.
        place_Y: float64 [X + 2], where emitted tokens stood among the candidates, forgetting: how
            often at each rank, how often at none, and how many draft tokens were accepted.
    """

    def __init__(self, cells: int, width: int) -> None:
        """Nothing seen of so many cells, and of `width` candidates a position."""
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
        _learn(guesses, self.seen_CM, self.place_Y, flight, tokens_BT, count_B)


@inlined
def _weights(seen_CM, cell, weight_M):
    everywhere_M, here_M = seen_CM[-1], seen_CM[cell]
    total = here_M.sum() + _BELIEF
    mean = _BELIEF / everywhere_M.sum()
    for m in range(PARTS):
        weight_M[m] = (here_M[m] + mean * everywhere_M[m]) / total


@inlined
def _part(log_q_XL, noise_X, count, m, part_X):
    """The law of one part over the candidates."""
    most = -math.inf
    for x in range(count):
        noise = 0.0 if m == _NOISELESS else noise_X[x]
        part_X[x] = (log_q_XL[x, _LAWS[m]] + noise) / _SCALES[m]
        most = max(most, part_X[x])
    total = 0.0
    for x in range(count):
        part_X[x] = math.exp(part_X[x] - most)
        total += part_X[x]
    for x in range(count):
        part_X[x] /= total


@kernel
def _chances(guesses, seen_CM, chance_BTX):
    rows, positions, width = chance_BTX.shape
    weight_M, part_X = np.empty(PARTS), np.empty(width)
    for row in range(rows):
        for t in range(positions):
            count = guesses.count_BT[row, t]
            if count == 0:
                break
            _weights(seen_CM, guesses.cell_BT[row, t], weight_M)
            for m in range(_UNLISTED):
                _part(guesses.log_q_BTXL[row, t], guesses.noise_BTX[row, t], count, m, part_X)
                for x in range(count):
                    chance_BTX[row, t, x] += weight_M[m] * part_X[x]


@kernel
def _learn(guesses, seen_CM, place_Y, flight, tokens_BT, count_B):
    width = guesses.ids_BTX.shape[2]
    weight_M, part_X, share_M = np.empty(PARTS), np.empty(width), np.empty(PARTS)
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
                for m in range(_UNLISTED):
                    _part(guesses.log_q_BTXL[row, t], guesses.noise_BTX[row, t], count, m, part_X)
                    share_M[m] = weight_M[m] * part_X[drawn]
                share_M /= share_M.sum()
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
