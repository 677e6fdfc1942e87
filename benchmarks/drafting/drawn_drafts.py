# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""Drafts drawn at random from the history's law and verified by the ratio test, in replay.

Such a draft d ~ q is kept with probability min(1, p(d) / q(d)); where it is not, the target emits a
token of the law (p - q)+, normalised, so that what is emitted, x, has the law p (Leviathan, Kalman
and Matias, arXiv 2211.17192). Draft and token together are a coupling of q and p with

    P(d = x kept | x emitted) = q(x) min(1, p(x) / q(x)) / p(x) = min(1, q(x) / p(x)).

Replay knows x, drawn from p whatever was drafted then, and p(x), its recorded probability; q is the
default drafter's candidate law after the same text. So a coin with that probability says whether
the draft would have been kept had x been emitted, and the chain goes on from x as it would have
then. Coins of different positions are independent, as the draws are; hence lengths of kept chains,
rounds, and tokens per forward have in replay the law that they would have in a run. A draft of one
certain token (q(x) = 1) is kept exactly where it is right, as ever.

Legend: K draft budget, N response tokens that a row has yet to say, X candidates for one token.
"""

import numpy as np

from benchmarks.drafting.foreseen import ForeseenDrafter, kernel
from ngramrl_jax.host.candidates import CANDIDATES, candidate_law, one_on, start_of_draft
from ngramrl_jax.host.draft import Rows, Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.types import Rollout

_UNKEYED = Rule(noise=False)  # the law does not hang on it


class DrawnDrafts(ForeseenDrafter):
    """Keeps the true tokens as often as drawn drafts would be kept.

    Attributes:
        rng: The coins.
    """

    def __init__(
        self, rows: int, draft_tokens: int, history: History, rule: Rule = _UNKEYED, seed: int = 0
    ) -> None:
        """See `NgramDrafter`; `seed` is that of the coins."""
        super().__init__(rows, draft_tokens, history, rule)
        self.rng = np.random.default_rng(seed)

    def kept(self, rows: Rows, row: int, rollout: Rollout, said: int, limit: int) -> int:
        """How many drawn tokens this round keeps."""
        ahead = slice(said, said + limit)
        coin_K = self.rng.random(limit)
        prob_N = np.exp(rollout.logps_N[ahead].astype(np.float64))
        return _kept(
            self.history.log, rows, self._rule, row, rollout.tokens_N[ahead], prob_N, coin_K
        )


@kernel
def _kept(log, rows, rule, row, ahead_N, prob_N, coin_K):
    found_F, own_F = np.empty(rule.followed, np.int32), np.empty(1, np.int32)
    ids_X, mass_X = np.empty(CANDIDATES, np.int32), np.empty(CANDIDATES, np.float64)
    place = start_of_draft(rows, row)
    for n in range(ahead_N.size):
        candidates, _, place = candidate_law(
            log, rows, rule, row, place, found_F, own_F, ids_X, mass_X
        )
        mass = total = 0.0
        for x in range(candidates):
            total += mass_X[x]
            if ids_X[x] == ahead_N[n]:
                mass = mass_X[x]
        if mass == 0.0 or coin_K[n] * prob_N[n] * total >= mass:
            return n
        rows.text_BS[row, place.here] = ahead_N[n]
        place = one_on(log, place, found_F, ahead_N[n])
    return ahead_N.size
