"""The adjusted distribution: the one law that is sampled, verified against and trained on.

Legend: X any leading axes, V vocabulary, C blocks of W ids, R best ids.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ngramrl_jax.types import Sampling


def adjusted_log_probs(logits_XV: Array, sampling: Sampling) -> Array:
    """Log-probabilities after temperature, then top-k, then top-p.

    Top-k keeps the k most likely ids; top-p the shortest list of most likely ids whose mass,
    within what top-k kept, reaches top_p. Of equally likely ids the lower ones are kept first.
    Filters that filter nothing (top_k of 0 or at least V, top_p of 1) cost nothing.

    Args:
        logits_XV: Logits of any floating dtype; -inf marks a forbidden id.
        sampling: Static. Greedy puts all the mass on the lowest id among the largest logits.

    Returns:
        float32 [X.., V], in nats, -inf outside the support. A row with a NaN or a +inf, or with
        nothing but -inf, has a NaN, so that it cannot pass for a sample.
    """
    logits_XV = logits_XV.astype(jnp.float32)
    top_X1 = lax.stop_gradient(jnp.max(logits_XV, axis=-1, keepdims=True))
    scaled_XV = logits_XV - top_X1
    if sampling.greedy:
        # The maximum is 0 after the shift, and NaN where the row is not a distribution.
        hot_XV = jax.nn.one_hot(first_argmax(scaled_XV), logits_XV.shape[-1], dtype=jnp.bool_)
        return jnp.where(hot_XV, top_X1 - top_X1, -jnp.inf)
    scaled_XV = scaled_XV / sampling.temperature
    if 0 < sampling.top_k < logits_XV.shape[-1]:
        ones_XV = jnp.ones_like(scaled_XV)
        kept_XV = _best(lax.stop_gradient(scaled_XV), ones_XV, sampling.top_k)
        scaled_XV = jnp.where(kept_XV, scaled_XV, -jnp.inf)
    if sampling.top_p < 1.0:
        fixed_XV = lax.stop_gradient(scaled_XV)
        kept_XV = _best(fixed_XV, jax.nn.softmax(fixed_XV, axis=-1), sampling.top_p)
        scaled_XV = jnp.where(kept_XV, scaled_XV, -jnp.inf)
    return scaled_XV - jnp.log(jnp.sum(jnp.exp(scaled_XV), axis=-1, keepdims=True))


def first_argmax(score_XV: Array) -> Array:
    """The lowest id with the largest score, int32 [X..].

    The same as `jnp.argmax` for scores without NaN. The best block of the vocabulary is found by a
    plain maximum, which vectorises and fuses with what makes the scores as the paired reduction of
    `jnp.argmax` does not on a CPU; only that block is searched for the id.
    """
    block_XCW = _blocks(score_XV)
    block_X = _first_of_equals(jnp.max(block_XCW, axis=-1))
    score_XW = jnp.take_along_axis(block_XCW, block_X[..., None, None], axis=-2)[..., 0, :]
    return block_X * block_XCW.shape[-1] + _first_of_equals(score_XW)


def _first_of_equals(score_XW: Array) -> Array:
    size = score_XW.shape[-1]
    best_X1 = jnp.max(score_XW, axis=-1, keepdims=True)
    id_XW = lax.broadcasted_iota(jnp.int32, score_XW.shape, score_XW.ndim - 1)
    first_X = jnp.min(jnp.where(score_XW == best_X1, id_XW, size), axis=-1)
    return jnp.minimum(first_X, size - 1)  # a row of NaN has no best: still a valid id


def best(logp_XV: Array, count: int) -> tuple[Array, Array]:
    """`jax.lax.top_k`, also where values are equal, in a third of the time on a CPU.

    The `count` best lie in the `count` blocks whose maxima are best: the maxima outrank whatever
    stands in another block. With those blocks in order, equal values keep theirs.

    Returns:
        float32 values and int32 ids, [X.., count], best first, the lower id of equal values first.
    """
    block_XCW = _blocks(logp_XV)
    blocks, width = block_XCW.shape[-2:]
    if not 0 < 4 * count <= blocks:
        return lax.top_k(logp_XV, count)
    chosen_XR = jnp.sort(lax.top_k(jnp.max(block_XCW, axis=-1), count)[1], axis=-1)
    value_XRW = jnp.take_along_axis(block_XCW, chosen_XR[..., None], axis=-2)
    value_XR, place_XR = lax.top_k(value_XRW.reshape(*logp_XV.shape[:-1], -1), count)
    block_XR = jnp.take_along_axis(chosen_XR, place_XR // width, axis=-1)
    return value_XR, block_XR * width + place_XR % width


def _blocks(value_XV: Array) -> Array:
    """The vocabulary in blocks [X.., C, W] of equal width: its largest divisor up to 64."""
    vocab = value_XV.shape[-1]
    width = max(width for width in range(1, min(vocab, 64) + 1) if vocab % width == 0)
    return value_XV.reshape(*value_XV.shape[:-1], vocab // width, width)


def _best(scaled_XV: Array, weight_XV: Array, enough: float) -> Array:
    """The shortest list of ids, best first, whose weights reach `enough`: bool [X.., V].

    Two bisections, over the value of the last id kept and, where several have that value, over the
    id. A sort would settle it too, but takes twenty times as long on a CPU.
    """
    vocab = scaled_XV.shape[-1]
    id_XV = lax.broadcasted_iota(jnp.int32, scaled_XV.shape, scaled_XV.ndim - 1)
    # The bits of floats of one sign are ordered like the floats: 0 for the best, rising.
    rank_XV = lax.bitcast_convert_type(jnp.abs(scaled_XV), jnp.int32)
    worst = np.array(np.inf, np.float32).view(np.int32)

    def reached(kept_XV: Array) -> Array:
        mass_X1 = jnp.sum(jnp.where(kept_XV, weight_XV, 0.0), axis=-1, keepdims=True)
        return mass_X1 >= enough

    shape = (*scaled_XV.shape[:-1], 1)
    edge_X1 = _first(lambda rank_X1: reached(rank_XV <= rank_X1), int(worst), shape)
    better_XV, equal_XV = rank_XV < edge_X1, rank_XV == edge_X1
    last_X1 = _first(lambda id_X1: reached(better_XV | (equal_XV & (id_XV <= id_X1))), vocab, shape)
    return better_XV | (equal_XV & (id_XV <= last_X1))


def _first(holds: Callable[[Array], Array], high: int, shape: tuple[int, ...]) -> Array:
    """The smallest int32 of 0 .. high for which `holds`, `high` where it never does.

    `holds` must stay true once it is.
    """

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low_X1, high_X1 = bounds
        middle_X1 = low_X1 + (high_X1 - low_X1) // 2
        held_X1 = holds(middle_X1)
        return jnp.where(held_X1, low_X1, middle_X1 + 1), jnp.where(held_X1, middle_X1, high_X1)

    bounds = jnp.zeros(shape, jnp.int32), jnp.full(shape, high, jnp.int32)
    return lax.fori_loop(0, high.bit_length(), halve, bounds)[0]
