"""Rejection sampling of drafts that were drawn from a distribution q.

The draft token d is accepted with probability min(1, p(d) / q(d)); on the first rejection a token
is drawn from the normalised (p - q)+, and after a whole draft one from p (Leviathan et al., arXiv
2211.17192; Chen et al., arXiv 2302.01318). What is committed then follows p exactly, on one
condition: **q is the law the draft was really drawn from**, after its own temperature and filters,
given the same context, and the draw used other randomness than the keys given here.

Legend: B rows, K draft tokens, T = K + 1 tokens of a round, V vocabulary, M listed ids of q.
"""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

from ngramrl_jax.verify.keyed import gumbel, random_bits, sample, unit_interval
from ngramrl_jax.verify.verdict import Verdict, accepted_prefix, with_log_probs


class DraftLaw(Protocol):
    """The distribution q that a draft was drawn from, as far as verification looks at it."""

    def of_draft(self, draft_BK: Array) -> Array:
        """The probability of each draft token, float32 [B, K]."""
        ...

    def at(self, slot_B: Array, draft_BK: Array, vocab: int) -> Array:
        """The whole of q at one draft slot of each row, float32 [B, V]."""
        ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OneHot:
    """The draft was not drawn but chosen: q is 1 at the draft token."""

    def of_draft(self, draft_BK: Array) -> Array:
        """All ones."""
        return jnp.ones(draft_BK.shape, jnp.float32)

    def at(self, slot_B: Array, draft_BK: Array, vocab: int) -> Array:
        """One at the draft token, nothing anywhere for an id outside the vocabulary."""
        return jax.nn.one_hot(_select(draft_BK, slot_B), vocab, dtype=jnp.float32)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sparse:
    """q is listed by its M possible ids and is 0 elsewhere.

    Attributes:
        ids_BKM: int32, distinct wherever the probability is not 0. Pad with any id at
            probability 0.
        probs_BKM: float32, their probabilities, summing to 1.
    """

    ids_BKM: Array
    probs_BKM: Array

    def of_draft(self, draft_BK: Array) -> Array:
        """The listed probability of each draft token, 0 where it is not listed."""
        return jnp.sum(jnp.where(self.ids_BKM == draft_BK[..., None], self.probs_BKM, 0.0), axis=-1)

    def at(self, slot_B: Array, draft_BK: Array, vocab: int) -> Array:
        """The list spread over the vocabulary."""
        ids_BM = _select(self.ids_BKM, slot_B)
        # Ids outside the vocabulary must not wrap around: they go past its end and are dropped.
        ids_BM = jnp.where(ids_BM < 0, vocab, ids_BM)
        row_B1 = jnp.arange(ids_BM.shape[0])[:, None]
        zeros_BV = jnp.zeros((ids_BM.shape[0], vocab), jnp.float32)
        return zeros_BV.at[row_B1, ids_BM].add(_select(self.probs_BKM, slot_B), mode="drop")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dense:
    """q is given over the whole vocabulary.

    Attributes:
        probs_BKV: float32, summing to 1 over V.
    """

    probs_BKV: Array

    def of_draft(self, draft_BK: Array) -> Array:
        """The probability of each draft token, 0 for an id outside the vocabulary."""
        return _at_ids(self.probs_BKV, draft_BK)

    def at(self, slot_B: Array, draft_BK: Array, vocab: int) -> Array:
        """The row of that slot."""
        return _select(self.probs_BKV, slot_B)


def verify_rejection(
    logp_BTV: Array, draft_BK: Array, length_B: Array, key_BT: Array, q: DraftLaw | None = None
) -> Verdict:
    """Keeps a prefix of the draft and emits one token, so that what is committed follows p.

    Args:
        logp_BTV: float32 adjusted log-probabilities after the last committed token (t = 0) and
            after each draft token.
        draft_BK: int32. Ids outside the vocabulary have p = 0 and are rejected.
        length_B: int32, how many slots of each draft count, 0 .. K.
        key_BT: Keys by the position of the token that is sampled.
        q: The law that the draft was drawn from, see the top of this file; None is `OneHot()`.
            A draft token with q = 0 that p allows is accepted: no draw from q gives one.
    """
    q = OneHot() if q is None else q
    vocab, slots = logp_BTV.shape[-1], draft_BK.shape[1]
    p_draft_BK = jnp.exp(_at_ids(logp_BTV[:, :slots], draft_BK, outside=-jnp.inf))
    q_draft_BK = q.of_draft(draft_BK)
    good_BK = _accepts(p_draft_BK, q_draft_BK, acceptance_uniform(key_BT[:, :slots]))
    accepted_B = accepted_prefix(good_BK, length_B)

    logp_BV = _select(logp_BTV, accepted_B)
    if slots:
        slot_B = jnp.minimum(accepted_B, slots - 1)
        rejected_B1 = (accepted_B < length_B)[:, None]
        residual_BV = _log_residual(logp_BV, q.at(slot_B, draft_BK, vocab))
        logp_emit_BV = jnp.where(rejected_B1, residual_BV, logp_BV)
    else:
        logp_emit_BV = logp_BV
    emitted_B = sample(logp_emit_BV, emission_noise(_select(key_BT, accepted_B), vocab))

    position_T = jnp.arange(slots + 1, dtype=jnp.int32)
    draft_BT = jnp.pad(draft_BK, ((0, 0), (0, 1)))
    tokens_BT = jnp.where(position_T[None] < accepted_B[:, None], draft_BT, emitted_B[:, None])
    return with_log_probs(tokens_BT, accepted_B, logp_BTV)


def acceptance_uniform(key_X: Array) -> Array:
    """The number in (0, 1] that a position's draft token is tested with, float32 [X..]."""
    return unit_interval(random_bits(_stream(key_X, 0), 1)[..., 0])


def emission_noise(key_X: Array, vocab: int) -> Array:
    """The Gumbel noise that a position's emitted token is drawn with, float32 [X.., V]."""
    return gumbel(_stream(key_X, 1), vocab)


def _stream(key_X: Array, number: int) -> Array:
    """Test and emission must not share randomness: each has a stream of the position's key."""
    keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(key_X.reshape(-1), number)
    return keys.reshape(key_X.shape)


def _accepts(p_BK: Array, q_BK: Array, uniform_BK: Array) -> Array:
    """True with probability min(1, p / q), never where p is 0."""
    # A uniform that rounds to 1 must not reject a token that q does not favour over p.
    return (p_BK > 0) & ((p_BK >= q_BK) | (uniform_BK * q_BK < p_BK))


def _log_residual(logp_BV: Array, q_BV: Array) -> Array:
    """Log of (p - q)+, not normalised; of p where p and q agree to the last digit.

    In the second case a rejection was a matter of rounding, and no residual is left to draw from.
    """
    residual_BV = jnp.maximum(jnp.exp(logp_BV) - q_BV, 0.0)
    some_B1 = jnp.any(residual_BV > 0, axis=-1, keepdims=True)
    return jnp.where(some_B1, jnp.log(residual_BV), logp_BV)


def _select(value_BT: Array, index_B: Array) -> Array:
    """`value[b, index_B[b]]` for every row; further axes are kept."""
    return jax.vmap(lambda row, index: row[index])(value_BT, index_B)


def _at_ids(value_BKV: Array, id_BK: Array, outside: float = 0.0) -> Array:
    """The value of each id, `outside` for ids that are not in the vocabulary."""
    vocab = value_BKV.shape[-1]
    safe_BK1 = jnp.clip(id_BK, 0, vocab - 1)[..., None]
    value_BK = jnp.take_along_axis(value_BKV, safe_BK1, axis=-1)[..., 0]
    return jnp.where((id_BK >= 0) & (id_BK < vocab), value_BK, outside)
