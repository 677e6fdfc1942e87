"""Keyed sampling: the noise of a token is a pure function of what the token is.

A row's key comes from (run seed, step, prompt, sibling, attempt), a token's key from the row's key
and the token's absolute position. So what a row says depends neither on its slot nor on its
neighbours, its drafts or K, and no two tokens of a run share noise.

Legend: X any leading axes, B rows, T positions of a round, N rollouts, V vocabulary.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from ngramrl_jax.verify.adjust import first_argmax
from ngramrl_jax.verify.threefry import random_words, threefry_2x32

_Int = int | Array
_IMPLEMENTATION = "threefry2x32"


@jax.jit
def row_key(seed: _Int, step: _Int, prompt_id: _Int, sibling: _Int, attempt: _Int) -> Array:
    """The key of one rollout.

    Args:
        seed: Of the run, an int32.
        step: Training step, so that every step has noise of its own: noise used again would make
            samples depend on the parameters that they trained.
        prompt_id: Of the request; names the prompt, not its place in a queue.
        sibling: Index within the prompt's group.
        attempt: Raised to sample the same rollout again.

    Returns:
        A scalar typed key. It is always threefry, whatever `jax_default_prng_impl` says.
    """
    key = jax.random.key(seed, impl=_IMPLEMENTATION)
    for part in (step, prompt_id, sibling, attempt):
        key = jax.random.fold_in(key, part)
    return key


@jax.jit
def row_keys(seed: _Int, step: _Int, prompt_N: Array, sibling_N: Array, attempt_N: Array) -> Array:
    """`row_key` of N rollouts, [N]. Compiled once for every N: pad to the number of slots."""
    return jax.vmap(row_key, in_axes=(None, None, 0, 0, 0))(
        seed, step, prompt_N, sibling_N, attempt_N
    )


def wrap_key_data(data_BW: Array) -> Array:
    """Typed keys from the data (`jax.random.key_data`) of row keys, [B]."""
    return jax.random.wrap_key_data(data_BW, impl=_IMPLEMENTATION)


def position_keys(key_B: Array, position_B: Array, count: int) -> Array:
    """The keys of `count` consecutive tokens of every row.

    Args:
        key_B: Row keys.
        position_B: int32, the absolute position (prompt tokens count) of the first token that is
            sampled, which is one past the last committed token.
        count: T, static.

    Returns:
        `key_BT`, where `key_BT[b, t]` is `fold_in(key_B[b], position_B[b] + t)`.
    """
    position_BT = position_B[:, None] + jnp.arange(count, dtype=position_B.dtype)[None]
    # fold_in, written out: JAX's own is a loop of tiny steps, felt in a small model's plain rounds
    word_BT = lax.bitcast_convert_type(position_BT, jnp.uint32)
    data_BW = jax.random.key_data(key_B)
    words = threefry_2x32(data_BW[:, :1], data_BW[:, 1:], jnp.zeros_like(word_BT), word_BT)
    return wrap_key_data(jnp.stack(words, axis=-1))


def random_bits(key_X: Array, count: int) -> Array:
    """`count` fresh 32-bit words for each key, uint32 [X.., count]: those of `jax.random.bits`."""
    return random_words(jax.random.key_data(key_X), count)


def gumbel(key_X: Array, vocab: int) -> Array:
    """Standard Gumbel noise made of all 32 random bits, float32 [X.., V].

    `g = -log(-log u)` with `u = (bits + 0.5) * 2**-32`. Float32 cannot tell such a `u` from 1, so
    the half next to 1 is carried as `e = 1 - u`: the largest noise is `33 log 2 = 22.9`, not the
    15.9 of 23-bit noise, which draws the tail of a large vocabulary too seldom.

    There `-log u` is `-log1p(-e)`, computed as `-log(w) e / (1 - w)` with w = 1 - e as rounded (the
    rounding cancels; Goldberg 1991, theorem 4), so that one logarithm serves both halves.
    """
    bits_XV = random_bits(key_X, vocab)
    upper_XV = bits_XV >= jnp.uint32(2**31)
    # The distance of u from its nearer end: 0 or 1.
    edge_XV = unit_interval(jnp.where(upper_XV, ~bits_XV, bits_XV))
    near_XV = jnp.where(upper_XV, 1 - edge_XV, edge_XV)
    minus_log_XV, away_XV = -jnp.log(near_XV), 1 - near_XV
    minus_log1p_XV = jnp.where(away_XV == 0, edge_XV, minus_log_XV * edge_XV / away_XV)
    return -jnp.log(jnp.where(upper_XV, minus_log1p_XV, minus_log_XV))


def unit_interval(bits_X: Array) -> Array:
    """`(bits + 0.5) * 2**-32` in float32: digits down to 2**-33, but near 1 it may round to 1."""
    return (bits_X.astype(jnp.float32) + 0.5) * jnp.float32(2**-32)


def sample(logp_XV: Array, noise_XV: Array) -> Array:
    """Draws from `logp_XV` by the Gumbel-max rule, int32 [X..].

    Args:
        logp_XV: float32 log-probabilities, -inf where an id is impossible.
        noise_XV: Gumbel noise of the same shape.
    """
    return first_argmax(logp_XV + noise_XV)
