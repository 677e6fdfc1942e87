"""Rollouts that are as much work for a drafter as real ones: what they say, they said before.

Nine tenths of a rollout stand in earlier ones of its prompt, in runs of some twenty tokens, which
is what was found of real ones (FACTS 0: 48-96 %, runs of 7-23 tokens).

Legend: N tokens of a rollout, R best tokens of a position, J pieces of a rollout, X any shape.
"""

import numpy as np

from ngramrl_jax.types import BestTokens, Int32Array

VOCABULARY = 150_000
RUN, FRESH = 20, 20 / 9  # mean tokens of a run that is repeated, and of what is new between two
JUMP = 0.25  # how often a rollout goes on elsewhere after something new
SURE = 0.8  # share of positions at which the policy is nearly certain
SURE_R = np.array([0.9999] + 7 * [1e-5])
UNSURE_R = np.array([0.8] + 7 * [0.2 / 7])


def draw_tokens(rng: np.random.Generator, shape: int | tuple[int, ...]) -> Int32Array:
    """Token ids as frequent as words are: the n-th most frequent by 1/n (Zipf's law)."""
    ids_X = np.exp(rng.random(shape) * np.log(VOCABULARY))
    return ids_X.astype(np.int32)


class PromptRollouts:
    """The rollouts of one prompt."""

    def __init__(self, rng: np.random.Generator, tokens: int) -> None:
        """Rollouts of `tokens` tokens each, which share one text and the policy's view of it."""
        self._rng = rng
        self._ids_NR = draw_tokens(rng, (tokens, SURE_R.size))
        self._logps_NR = self._draw_logps(tokens)

    def draw(self) -> tuple[Int32Array, BestTokens]:
        """One more rollout: `tokens_N`, and what the policy held most likely at each of them."""
        tokens = self._ids_NR.shape[0]
        place_N, new_N = self._pieces(tokens)
        ids_NR, logps_NR = self._ids_NR[place_N], self._logps_NR[place_N]
        ids_NR[new_N] = draw_tokens(self._rng, (new_N.sum(), SURE_R.size))
        logps_NR[new_N] = self._draw_logps(new_N.sum())
        return ids_NR[:, 0].copy(), BestTokens(ids_NR, logps_NR)

    def _pieces(self, tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Where in the shared text each token stands, and which are new instead."""
        rng = self._rng
        pieces = tokens // 2 + 1  # of two tokens or more: a run, then something new
        run_J, new_J = rng.geometric(1 / RUN, pieces), rng.geometric(1 / FRESH, pieces)
        jump_J = np.where(rng.random(pieces) < JUMP, rng.integers(0, tokens, pieces), 0)
        place_N = np.arange(tokens) + np.repeat(np.cumsum(jump_J), run_J + new_J)[:tokens]
        in_turn = np.tile([False, True], pieces)
        new_N = np.repeat(in_turn, np.stack([run_J, new_J], 1).ravel())[:tokens]
        return place_N % tokens, new_N

    def _draw_logps(self, tokens: int) -> np.ndarray:
        sure_N1 = self._rng.random((tokens, 1)) < SURE
        return np.log(np.where(sure_N1, SURE_R, UNSURE_R)).astype(np.float32)
