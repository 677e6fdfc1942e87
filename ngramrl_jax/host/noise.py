# ruff: noqa: ANN001, ANN201, ANN202 (Numba infers the types of kernels)
"""The target's own noise, computed on the host for the few tokens that a draft may choose from.

`ngramrl_jax.verify.keyed` samples the token at position t of a row as the arg-max of
log-probability plus Gumbel noise, and the noise is a pure function of (row key, t, token id). So a
drafter that has an idea of the log-probabilities can guess not only what is likely but what will be
drawn. That changes nothing of what is drawn: coupled verification samples with that noise whatever
the draft is.
Two laws p and q that share their Gumbel noise agree with probability (1 - TV) / (1 + TV) or more
(Daliri, Musco and Suresh, "Coupling without communication and drafter-invariant speculative
decoding", arXiv 2408.07978), where the most likely token of q is drawn with max(p) at best.

Threefry: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

Legend: W the two words of a key.
"""

import math

import numpy as np

from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.types import UInt32Array

_PARITY = np.uint32(0x1BD11BDA)
_SCALE = 2.0**-32


def row_key(seed: int, step: int, prompt_id: int, sibling: int, attempt: int) -> UInt32Array:
    """The data of `verify.keyed.row_key`, uint32 [W]: the same words, without the device.

    Raises:
        ValueError: A part is not an int32.
    """
    parts = np.array([seed, step, prompt_id, sibling, attempt], np.int64)
    if (parts != parts.astype(np.int32)).any():
        raise ValueError(f"row key: found {parts.tolist()}, allowed: int32 each")
    return _fold_all(parts.astype(np.int32).view(np.uint32))


@kernel
def _fold_all(parts_X):
    high, low = np.uint32(0), parts_X[0]
    for part in parts_X[1:]:
        high, low = threefry(high, low, np.uint32(0), part)
    return np.array([high, low], np.uint32)


@kernel
def _rotate(word, by):
    return np.uint32((word << np.uint32(by)) | (word >> np.uint32(32 - by)))


@kernel
def _four_rounds(x, y, first, second, third, fourth):
    for by in (first, second, third, fourth):
        x = np.uint32(x + y)
        y = _rotate(y, by) ^ x
    return x, y


@kernel
def threefry(key_high, key_low, x, y):
    """One block of Threefry-2x32, 20 rounds: two words from a key and a counter of two."""
    third = key_high ^ key_low ^ _PARITY
    x, y = np.uint32(x + key_high), np.uint32(y + key_low)
    x, y = _four_rounds(x, y, 13, 15, 26, 6)
    x, y = np.uint32(x + key_low), np.uint32(y + third + np.uint32(1))
    x, y = _four_rounds(x, y, 17, 29, 16, 24)
    x, y = np.uint32(x + third), np.uint32(y + key_high + np.uint32(2))
    x, y = _four_rounds(x, y, 13, 15, 26, 6)
    x, y = np.uint32(x + key_high), np.uint32(y + key_low + np.uint32(3))
    x, y = _four_rounds(x, y, 17, 29, 16, 24)
    x, y = np.uint32(x + key_low), np.uint32(y + third + np.uint32(4))
    x, y = _four_rounds(x, y, 13, 15, 26, 6)
    return np.uint32(x + third), np.uint32(y + key_high + np.uint32(5))


@kernel
def exponential(key_high, key_low, token):
    """Noise of one token id under a position's key (`fold_in(row key, position)`), float64.

    Exponentially distributed; the arg-max of log p + Gumbel noise is the arg-min of this over p.
    """
    high, low = threefry(key_high, key_low, np.uint32(0), np.uint32(token))
    return -math.log(uniform(high ^ low))


@kernel
def uniform(word):
    """A random word as a number between 0 and 1, neither of them."""
    return (np.float64(word) + 0.5) * _SCALE


@kernel
def fill_words(key_high, key_low, tokens_X, words_X):
    """The random words of several tokens: a loop over nothing else runs on eight at a time."""
    for x in range(tokens_X.size):
        high, low = threefry(key_high, key_low, np.uint32(0), np.uint32(tokens_X[x]))
        words_X[x] = high ^ low


@kernel
def gumbel(key_high, key_low, token):
    """The same as Gumbel noise: what `verify.keyed.gumbel` gives, up to float32's rounding."""
    return -math.log(exponential(key_high, key_low, token))
