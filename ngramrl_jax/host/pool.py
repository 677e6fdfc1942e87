# ruff: noqa: ANN001, ANN201 (Numba infers the types of kernels)
"""Several laws of one token made one, with weights that are learnt from what was drawn.

The logarithmic opinion pool (Genest and Zidek, "Combining probability distributions", Statistical
Science 1986; a product of experts in Hinton, Neural Computation 2002):

    q(x) ~ product over l of (q_l(x) + FLOOR)^w_l

A mixture believes a token as much as the one law that knows it best. Here it counts when several
laws know of it, each a little: the token that is common behind these words *and* in this prompt.
log q is linear in the gains log(1 + q_l(x) / FLOOR), so log q of what was drawn is concave in the
weights, and its gradient is the gain of what was drawn less the mean gain under q. The weights take
AdaGrad's steps (Duchi, Hazan and Singer, JMLR 2011), once for all cells together and once for the
cell's own deviation.

Legend: C cells, L laws, X candidates of one position.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.host.kernel import inlined, kernel
from ngramrl_jax.types import Float32Array

FLOOR = 1e-5  # what every law gives to a token that it does not list
_STEP = 0.02  # of a weight, at its first token; half of it for the deviation of a cell
_HOPELESS = 14.0  # nats below the likeliest token: not worth an exponential
_SLIGHT = 7.0  # nats below it: not worth a part in the mean gains
_CALM = 0.01  # squared gradients before any


class Pool(NamedTuple):
    """The weights; those that all cells share in the last row, deviations from them before it.

    Attributes:
        weight_CL: float64.
        square_CL: float64, their squared gradients added up.
    """

    weight_CL: NDArray[np.float64]
    square_CL: NDArray[np.float64]


def new_pool(cells: int, start_L: tuple[float, ...]) -> Pool:
    """Weights that nothing has changed yet, the same in all cells."""
    weight_CL = np.zeros((cells + 1, len(start_L)))
    weight_CL[-1] = start_L
    return Pool(weight_CL, np.full_like(weight_CL, _CALM))


class Panel(NamedTuple):
    """The laws of one position and what they say of its candidates.

    Attributes:
        weight_L: float64, of each law.
        gain_XL: float32, what it adds to log q for a weight of 1, in nats.
        score_X: float64, log q, but for the norm.
        q_X: float64, the pooled law; exactly 0 where a token is out of the question.
        mean_L: float64, the mean gains under it.
    """

    weight_L: NDArray[np.float64]
    gain_XL: Float32Array
    score_X: NDArray[np.float64]
    q_X: NDArray[np.float64]
    mean_L: NDArray[np.float64]


@kernel
def new_panel(laws, width):
    """Room for so many candidates."""
    gain_XL = np.empty((width, laws), np.float32)
    return Panel(np.empty(laws), gain_XL, np.empty(width), np.empty(width), np.empty(laws))


@inlined
def ask(panel, pool, cell):
    """The laws are to be trusted as in a cell of the pool."""
    for law in range(panel.weight_L.size):
        panel.weight_L[law] = pool.weight_CL[cell, law] + pool.weight_CL[-1, law]


@inlined
def enter(panel, x):
    """A candidate that no law has spoken for yet."""
    for law in range(panel.weight_L.size):
        panel.gain_XL[x, law] = 0.0
    panel.score_X[x] = 0.0


@inlined
def speak(panel, x, law, probability):
    """A law says how likely a candidate is."""
    gain = math.log(np.float32(1.0) + np.float32(probability) * np.float32(1 / FLOOR))
    panel.gain_XL[x, law] = gain
    panel.score_X[x] += panel.weight_L[law] * gain


@inlined
def mark(panel, x, law):
    """A law that singles out one candidate does."""
    panel.gain_XL[x, law] = 1.0
    panel.score_X[x] += panel.weight_L[law]


@inlined
def pool_laws(panel, count):
    """The pooled law of so many candidates, 1 or more, and their mean gains under it."""
    gain_XL, score_X, q_X, mean_L = panel.gain_XL, panel.score_X, panel.q_X, panel.mean_L
    most = score_X[:count].max()
    total = 0.0
    mean_L[:] = 0.0
    for x in range(count):
        below = most - score_X[x]
        q_X[x] = math.exp(-below) if below < _HOPELESS else 0.0
        total += q_X[x]
        if below < _SLIGHT:
            for law in range(mean_L.size):
                mean_L[law] += q_X[x] * gain_XL[x, law]
    for x in range(count):
        q_X[x] /= total
    for law in range(mean_L.size):
        mean_L[law] /= total


@kernel
def learn_weights(pool, cell, gain_L, mean_L):
    """A token of these gains was drawn where `mean_L` was expected."""
    weight_CL, square_CL = pool.weight_CL, pool.square_CL
    for law in range(gain_L.size):
        slope = gain_L[law] - mean_L[law]
        for known, step in ((cell, _STEP / 2), (np.int32(len(weight_CL) - 1), _STEP)):
            square_CL[known, law] += slope * slope
            weight_CL[known, law] += step * slope / math.sqrt(square_CL[known, law])
