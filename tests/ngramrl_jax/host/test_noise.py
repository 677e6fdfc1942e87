"""The host knows the device's noise: same keys to the bit, same Gumbel numbers to rounding."""

import math

import jax
import numpy as np
import pytest

from ngramrl_jax.host import noise
from ngramrl_jax.verify import keyed

IDENTITIES = [
    (0, 0, 0, 0, 0),
    (17, 3, 250, 7, 1),
    (2**31 - 1, 99_999, 123_456, 15, 2),
    (-5, 1, 2, 3, 0),
]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_the_row_key_is_the_devices(identity):
    expected = jax.random.key_data(keyed.row_key(*identity))
    np.testing.assert_array_equal(noise.row_key(*identity), expected)


def test_the_noise_of_a_token_is_the_devices():
    vocab, position = 5000, 321
    key = keyed.row_key(3, 1, 4, 1, 5)
    key_B1 = keyed.position_keys(key[None], np.array([position], np.int32), 1)
    device_V = np.asarray(keyed.gumbel(key_B1, vocab))[0, 0]
    high, low = noise.row_key(3, 1, 4, 1, 5)
    at = noise.threefry(high, low, np.uint32(0), np.uint32(position))
    host_V = np.array([noise.gumbel(*at, token) for token in range(vocab)])
    np.testing.assert_allclose(host_V, device_V, rtol=2e-6, atol=2e-6)


def test_parts_beyond_int32_are_refused():
    with pytest.raises(ValueError, match="allowed: int32 each"):
        noise.row_key(0, 2**31, 0, 0, 0)


def test_the_words_of_many_tokens_are_those_of_each():
    tokens_X = np.array([0, 1, 77, 4999, 2**31 - 1], np.int32)
    words_X = np.zeros(5, np.uint32)
    noise.fill_words(np.uint32(7), np.uint32(2**32 - 1), tokens_X, words_X)
    for token, word in zip(tokens_X, words_X, strict=True):
        expected = noise.exponential(np.uint32(7), np.uint32(2**32 - 1), token)
        assert -math.log(noise.uniform(word)) == pytest.approx(expected, rel=1e-12)


def test_a_token_comes_no_earlier_than_its_word_promises():
    """Drafting leaves the logarithm out where 1 - u alone is too late; u is never 0 or 1."""
    rng = np.random.default_rng(0)
    words = [0, 1, 2**31, 2**32 - 2, 2**32 - 1, *rng.integers(0, 2**32, 1000)]
    for u in (noise.uniform(np.uint32(word)) for word in words):
        assert 0.0 < u < 1.0
        assert -math.log(u) > 1.0 - u
