"""The reference: whole texts through the policy at once, from a fresh cache, without any engine.

Legend: R rollouts of one forward, T tokens of a text, N response tokens, C ids asked about,
V vocabulary.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ngramrl_jax.protocols import Params, Policy
from ngramrl_jax.rollout.ladder import length_ladder, rung_for
from ngramrl_jax.types import Float32Array, Int32Array, Rollout, Sampling
from ngramrl_jax.verify.adjust import adjusted_log_probs

_ROWS = 32
_LOGITS_AT_ONCE = 1 << 24
NOBODY = -1  # an id that was not asked about


class Told(NamedTuple):
    """What the policy says at each response position of one rollout.

    Attributes:
        logp_NC: float32 log-probability of each id asked about, under the adjusted distribution
            (nats); -inf for `NOBODY` and outside the support.
        entropy_N: float32 entropy of that distribution (nats).
    """

    logp_NC: Float32Array
    entropy_N: Float32Array


class PlainForward:
    """One policy's plain forwards, padded to a short ladder of lengths."""

    def __init__(self, policy: Policy, longest: int) -> None:
        """For texts of up to `longest` tokens."""
        self._policy = policy
        self._ladder = length_ladder(longest)
        self._next = jax.jit(self._next_logits)
        self._score = jax.jit(self._told, static_argnames=("sampling", "width"))

    def next_logits(self, params: Params, tokens_T: Int32Array) -> Float32Array:
        """The logits `[V]` behind a text, float32."""
        tokens_1T = self._padded([tokens_T], 1)
        return np.asarray(self._next(params, tokens_1T, np.int32(len(tokens_T) - 1)))

    def score(
        self,
        params: Params,
        rollouts: Sequence[Rollout],
        asked: Sequence[Int32Array],
        sampling: Sampling,
    ) -> list[Told]:
        """What the policy says of some ids at every response position.

        Args:
            params: Parameters of the policy.
            rollouts: Their prompts and responses are run as they stand.
            asked: For each rollout int32 `[N, C]`, ids or `NOBODY`.
            sampling: Makes the adjusted distribution.

        Returns:
            One entry a rollout.
        """
        length = rung_for(max(_length(rollout) for rollout in rollouts), self._ladder)
        width = rung_for(max(len(rollout.tokens_N) for rollout in rollouts), self._ladder)
        rows = max(1, min(_ROWS, _LOGITS_AT_ONCE // (length * self._policy.vocab_size)))
        told: list[Told] = []
        for first in range(0, len(rollouts), rows):
            some = rollouts[first : first + rows]
            ids_RNC = np.full((rows, width, asked[0].shape[1]), NOBODY, np.int32)
            start_R = np.ones(rows, np.int32)
            for row, rollout in enumerate(some):
                ids_RNC[row, : len(rollout.tokens_N)] = asked[first + row]
                start_R[row] = len(rollout.prompt_P)
            texts = [np.concatenate([one.prompt_P, one.tokens_N]) for one in some]
            tokens_RT = self._padded(texts, rows, length)
            logp_RNC, entropy_RN = jax.device_get(
                self._score(params, tokens_RT, start_R, ids_RNC, sampling=sampling, width=width)
            )
            for row, rollout in enumerate(some):
                end = len(rollout.tokens_N)
                told.append(Told(logp_RNC[row, :end], entropy_RN[row, :end]))
        return told

    def _padded(
        self, texts: Sequence[Int32Array], rows: int, length: int | None = None
    ) -> Int32Array:
        length = length or rung_for(max(map(len, texts)), self._ladder)
        tokens_RT = np.zeros((rows, length), np.int32)
        for row, tokens_T in enumerate(texts):
            tokens_RT[row, : len(tokens_T)] = tokens_T
        return tokens_RT

    def _logits(self, params: Params, tokens_RT: jax.Array) -> jax.Array:
        rows, length = tokens_RT.shape
        cache = self._policy.init_cache(rows, length)
        start_R = jnp.zeros(rows, jnp.int32)
        return self._policy.forward(params, tokens_RT, start_R, cache, live=length)[0]

    def _next_logits(self, params: Params, tokens_1T: jax.Array, last: jax.Array) -> jax.Array:
        return self._logits(params, tokens_1T)[0, last].astype(jnp.float32)

    def _told(
        self,
        params: Params,
        tokens_RT: jax.Array,
        start_R: jax.Array,
        ids_RNC: jax.Array,
        *,
        sampling: Sampling,
        width: int,
    ) -> tuple[jax.Array, jax.Array]:
        logits_RTV = self._logits(params, tokens_RT)
        # The logits behind token t are those of token t + 1.
        before_RN = start_R[:, None] - 1 + jnp.arange(width, dtype=jnp.int32)[None]
        before_RN = jnp.minimum(before_RN, tokens_RT.shape[1] - 1)
        logits_RNV = jnp.take_along_axis(logits_RTV, before_RN[..., None], axis=1)
        logp_RNV = adjusted_log_probs(logits_RNV, sampling)
        logp_RNC = jnp.take_along_axis(logp_RNV, jnp.maximum(ids_RNC, 0), axis=-1)
        logp_RNC = jnp.where(ids_RNC == NOBODY, -jnp.inf, logp_RNC)
        inside_RNV = jnp.isfinite(logp_RNV)
        summand_RNV = jnp.where(inside_RNV, jnp.exp(logp_RNV) * logp_RNV, 0.0)
        return logp_RNC, -summand_RNV.sum(axis=-1)


def law(logits_V: Float32Array, sampling: Sampling) -> np.ndarray:
    """The adjusted distribution as float64 probabilities that sum to 1."""
    probs_V = np.exp(np.asarray(_adjusted(logits_V, sampling=sampling), np.float64))
    return probs_V / probs_V.sum()


_adjusted = partial(jax.jit, static_argnames="sampling")(adjusted_log_probs)


def _length(rollout: Rollout) -> int:
    return len(rollout.prompt_P) + len(rollout.tokens_N)
