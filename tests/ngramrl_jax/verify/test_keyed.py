"""Keyed noise: pure in what it is keyed by, right to its last bit, fit for a large vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax import stats
from ngramrl_jax.verify import keyed
from ngramrl_jax.verify.keyed import gumbel, position_keys, row_key, row_keys, sample

ALPHA = 1e-3


def words(keys):
    return [tuple(key) for key in np.asarray(jax.random.key_data(keys)).reshape(-1, 2).tolist()]


def test_every_part_of_a_row_key_counts():
    """CASES B13: n rollouts of one seed are distinct and repeatable, and steps have own keys."""
    base = [42, 3, 5, 7, 1]
    keys = [row_key(*base)]
    for part in range(5):
        keys.append(row_key(*[x + (i == part) for i, x in enumerate(base)]))
    assert len(set(words(jnp.stack(keys)))) == 6
    # No symmetry between the parts either.
    assert words(row_key(0, 1, 2, 0, 0)) != words(row_key(0, 2, 1, 0, 0))
    assert words(row_key(*base)) == words(keys[0])


def test_row_keys_are_row_key_of_each_row():
    prompts, siblings = jnp.array([0, 5, 2**31 - 1]), jnp.array([1, 0, 3])
    attempts = jnp.array([0, 2, 0])
    expected = [
        row_key(9, 4, int(p), int(s), int(a))
        for p, s, a in zip(prompts, siblings, attempts, strict=True)
    ]
    assert words(row_keys(9, 4, prompts, siblings, attempts)) == words(jnp.stack(expected))


def test_position_keys_depend_on_the_position_alone():
    rows = row_keys(0, 0, jnp.arange(2), jnp.zeros(2, jnp.int32), jnp.zeros(2, jnp.int32))
    early = position_keys(rows, jnp.array([3, 9]), 4)
    late = position_keys(rows, jnp.array([5, 9]), 4)
    assert early.shape == (2, 4)
    assert words(early[0, 2:]) == words(late[0, :2])
    assert words(early[1]) == words(late[1])
    assert words(early[0, 1:2]) == words(jax.random.fold_in(rows[0], 4))
    assert len(set(words(early))) == 8


def test_noise_does_not_depend_on_batch_mates():
    """The random bits never do; of the noise, XLA's logarithms may differ in the last place."""
    keys = jax.random.split(jax.random.key(1), (3, 2))
    noise = gumbel(keys, 5)
    assert (noise.shape, noise.dtype) == ((3, 2, 5), jnp.float32)
    np.testing.assert_allclose(noise[2, 1], gumbel(keys[2, 1], 5), rtol=3e-7, atol=2e-7)
    bits = keyed.random_bits(keys, 5)
    np.testing.assert_array_equal(bits[2, 1], keyed.random_bits(keys[2, 1], 5))


@pytest.mark.parametrize("shape", [(), (3,), (2, 5)])
def test_the_words_are_those_of_jax(shape):
    """Written out for speed, the generator is still JAX's own, word for word."""
    keys = jax.random.split(jax.random.key(7), shape) if shape else jax.random.key(7)
    expected = jax.vmap(lambda key: jax.random.bits(key, (5000,)))(keys.reshape(-1))
    words = keyed.random_bits(keys, 5000)
    np.testing.assert_array_equal(words, expected.reshape(*shape, 5000))


def test_both_tails_keep_their_digits(monkeypatch):
    """Every one of these words has its own right noise, down to one part in 2^33 from 0 and 1."""
    edge = np.array([0, 1, 2, 3, 1000, 2**23], np.uint64)
    bits = np.concatenate([edge, 2**31 - 1 - edge[:2], 2**31 + edge[:2], 2**32 - 1 - edge])
    monkeypatch.setattr(keyed, "random_bits", lambda key, count: jnp.asarray(bits, jnp.uint32))
    noise = np.asarray(gumbel(jax.random.key(0), bits.size), np.float64)
    below = (bits + 0.5) / 2**32
    above = (2**32 - bits - 0.5) / 2**32
    exponential = np.where(below < 0.5, -np.log(below), -np.log1p(-above))
    np.testing.assert_allclose(noise, -np.log(exponential), rtol=3e-7, atol=2e-7)
    assert noise.max() == pytest.approx(33 * np.log(2), abs=1e-5)
    assert np.isfinite(noise).all()


@pytest.mark.stat
def test_noise_is_gumbel():
    """2M draws in 256 equally likely cells of the Gumbel law; error rate 1e-3."""
    noise = np.asarray(jax.jit(gumbel, static_argnums=1)(jax.random.key(2), 2_000_000), np.float64)
    cell = np.minimum((np.exp(-np.exp(-noise)) * 256).astype(int), 255)
    counts = np.bincount(cell, minlength=256)
    assert stats.chi_square(counts, np.full(256, 1 / 256)).p_value > ALPHA
    # A shift of a hundredth of its width is found.
    shifted = np.minimum((np.exp(-np.exp(-noise - 0.013)) * 256).astype(int), 255)
    counts = np.bincount(shifted, minlength=256)
    assert stats.chi_square(counts, np.full(256, 1 / 256)).p_value < ALPHA


@pytest.mark.stat
def test_tail_mass_of_a_large_vocabulary():
    """A tail of 1 % over 152k ids, 3000 draws; error rate 1e-3. 23-bit noise is caught."""
    vocab, tail, draws, batch = 151_936, 0.01, 3000, 8
    logp_V = jnp.full(vocab, np.log(tail / (vocab - 1)), jnp.float32).at[0].set(np.log1p(-tail))
    logp_BV = jnp.broadcast_to(logp_V, (batch, vocab))

    def noise_of_23_bits(key):
        return jax.random.gumbel(key, (vocab,), mode="low")

    def in_tail(key_B):
        noises = gumbel(key_B, vocab), jax.vmap(noise_of_23_bits)(key_B)
        return jnp.array([jnp.sum(sample(logp_BV, noise) != 0) for noise in noises])

    keys = jax.random.split(jax.random.key(3), (draws // batch, batch))
    ours, coarse = jax.jit(lambda keys: jax.lax.map(in_tail, keys))(keys).sum(0).tolist()
    law = [1 - tail, tail]
    assert stats.chi_square([draws - ours, ours], law).p_value > ALPHA
    assert stats.chi_square([draws - coarse, coarse], law).p_value < ALPHA


def pair_counts(first_keys, second_keys, vocab=4):
    """Contingency table of two tokens drawn with the two lists of keys."""
    logp_NV = jnp.broadcast_to(jnp.log(jnp.array([0.4, 0.3, 0.2, 0.1])), (first_keys.size, vocab))
    first, second = (
        np.asarray(sample(logp_NV, gumbel(keys, vocab))) for keys in (first_keys, second_keys)
    )
    return np.bincount(first * vocab + second, minlength=vocab**2).reshape(vocab, vocab)


@pytest.mark.stat
def test_siblings_positions_and_steps_are_independent():
    """100k pairs each; Holm at 1e-3 over the four. The same keys for both are caught."""
    prompts = jnp.arange(100_000, dtype=jnp.int32)
    zeros = jnp.zeros_like(prompts)

    def keys(step=0, sibling=0, attempt=0, position=0):
        rows = row_keys(7, step, prompts, zeros + sibling, zeros + attempt)
        return position_keys(rows, zeros + position, 1)[:, 0]

    base = keys()
    pairs = {
        "siblings": keys(sibling=1),
        "positions": keys(position=1),
        "steps": keys(step=1),
        "attempts": keys(attempt=1),
    }
    p_values = [stats.independence(pair_counts(base, other)).p_value for other in pairs.values()]
    assert not any(stats.holm(p_values, ALPHA)), dict(zip(pairs, p_values, strict=True))
    assert stats.independence(pair_counts(base, base)).p_value < ALPHA / len(pairs)
    # One key for two per cent of the pairs is already too much.
    few = jnp.where(prompts % 50 == 0, base, pairs["siblings"])
    assert stats.independence(pair_counts(base, few)).p_value < ALPHA / len(pairs)
