"""Log-probabilities of given response tokens, without ever holding `[tokens, vocabulary]`.

The head and the softmax run over a few response positions at a time, and the backward pass
recomputes them, so memory is bounded by the chunk whatever the batch and the vocabulary.

Legend: B rows, T tokens of a row (prompt, response, padding), R response positions, D model
width, C response positions of one chunk, V vocabulary.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from ngramrl_jax.types import GREEDY_BELOW, Sampling
from ngramrl_jax.verify.adjust import adjusted_log_probs

Params = Any


class TrainablePolicy(Protocol):
    """What training needs of a model: the whole sequence in one pass, head apart from trunk."""

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        ...

    def hidden(self, params: Params, tokens_BT: jax.Array, *, remat: bool = False) -> jax.Array:
        """`hidden_BTD`; position t sees tokens 0..t only, so padding on the right is harmless."""
        ...

    def logits(self, params: Params, hidden_XD: jax.Array, /) -> jax.Array:
        """float32 next-token logits over any leading shape."""
        ...


class TokenLogProbs(NamedTuple):
    """What the policy says of each response token. Positions past a row's end hold rubbish.

    Attributes:
        logp_BR: float32 log-probability under the adjusted distribution (nats); finite.
        entropy_BR: float32 entropy of that distribution (nats); carries no gradient.
        outside_BR: bool, True where top-k or top-p left the token out of the distribution.
    """

    logp_BR: jax.Array
    entropy_BR: jax.Array
    outside_BR: jax.Array


def token_log_probs(
    policy: TrainablePolicy,
    params: Params,
    tokens_BT: jax.Array,
    start_B: jax.Array,
    positions: int,
    sampling: Sampling,
    *,
    chunk_tokens: int = 1024,
    remat: bool = True,
) -> TokenLogProbs:
    """Log-probabilities of the tokens `start_B[b] .. start_B[b] + positions - 1` of every row.

    Args:
        policy: The model.
        params: Its parameters.
        tokens_BT: int32 ids: prompt, response, padding on the right.
        start_B: int32 index of each row's first response token, at least 1.
        positions: R, static; the longest response of the batch or more.
        sampling: The distribution that the rollouts were drawn from.
        chunk_tokens: Tokens that go through the head at once, about; they cost
            `4 * chunk_tokens * V` bytes a few times over.
        remat: Recompute each layer in the backward pass.

    Raises:
        ValueError: The sampling is greedy: a single point has no gradient.
    """
    if sampling.greedy:
        raise ValueError(
            f"temperature: found {sampling.temperature}, allowed to train: {GREEDY_BELOW} or more"
        )
    rows, length = tokens_BT.shape
    hidden_BTD = policy.hidden(params, tokens_BT, remat=remat)
    at_BR = start_B[:, None] + jnp.arange(positions, dtype=start_B.dtype)[None]
    target_BR = jnp.take_along_axis(tokens_BT, jnp.minimum(at_BR, length - 1), axis=1)
    # The hidden state at t predicts the token at t + 1.
    hidden_BRD = jnp.take_along_axis(hidden_BTD, jnp.minimum(at_BR, length)[..., None] - 1, axis=1)

    # Chunks cut the positions, not the rows, so that rows sharded over devices stay there.
    width = min(positions, max(1, chunk_tokens // rows))
    count = -(-positions // width)

    def split(x_BR: jax.Array) -> jax.Array:
        spare = [(0, 0), (0, count * width - positions)] + [(0, 0)] * (x_BR.ndim - 2)
        chunked = jnp.pad(x_BR, spare).reshape(rows, count, width, *x_BR.shape[2:])
        return jnp.swapaxes(chunked, 0, 1)

    def join(x_NBC: jax.Array) -> jax.Array:
        return jnp.swapaxes(x_NBC, 0, 1).reshape(rows, count * width)[:, :positions]

    @jax.checkpoint
    def chunk(hidden_and_target: tuple[jax.Array, jax.Array]) -> TokenLogProbs:
        hidden_BCD, target_BC = hidden_and_target
        return _of_logits(policy.logits(params, hidden_BCD), target_BC, sampling)

    chunks = lax.map(chunk, (split(hidden_BRD), split(target_BR)))
    return TokenLogProbs(*(join(x_NBC) for x_NBC in chunks))


def _of_logits(logits_BCV: jax.Array, target_BC: jax.Array, sampling: Sampling) -> TokenLogProbs:
    adjusted_BCV = adjusted_log_probs(logits_BCV, sampling)
    logp_BC = _pick(adjusted_BCV, target_BC)
    outside_BC = jnp.isneginf(logp_BC)
    if sampling.top_k > 0 or sampling.top_p < 1.0:
        # A token that sampling kept and this forward leaves out lies at the edge of the support,
        # a rounding away. It gets the value it would have just inside: its log-odds to the most
        # likely token, which is always in. That is finite, close to what the rollout recorded,
        # and still has a gradient.
        best_BC = jnp.argmax(lax.stop_gradient(logits_BCV), axis=-1).astype(target_BC.dtype)
        odds_BC = (_pick(logits_BCV, target_BC) - _pick(logits_BCV, best_BC)) / sampling.temperature
        logp_BC = jnp.where(outside_BC, odds_BC + _pick(adjusted_BCV, best_BC), logp_BC)
    frozen_BCV = lax.stop_gradient(adjusted_BCV)
    inside_BCV = ~jnp.isneginf(frozen_BCV)
    summand_BCV = jnp.where(inside_BCV, jnp.exp(frozen_BCV) * frozen_BCV, 0.0)
    return TokenLogProbs(logp_BC, -summand_BCV.sum(axis=-1), outside_BC)


def _pick(x_BCV: jax.Array, index_BC: jax.Array) -> jax.Array:
    """As `take_along_axis`, whose gradient would be scattered into zeros of the size of x."""
    id_V = lax.broadcasted_iota(index_BC.dtype, x_BCV.shape, x_BCV.ndim - 1)
    return jnp.sum(jnp.where(id_V == index_BC[..., None], x_BCV, 0.0), axis=-1)
