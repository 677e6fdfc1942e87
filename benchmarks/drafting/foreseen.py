"""Drafters that are replayed without drafting: they say only how much of the truth they would keep.

In replay a row's next tokens are known. A drafter that would propose something else than one chain
of tokens (a tree, a draft drawn at random) can therefore be measured as if it had proposed a chain:
the true tokens, as far as it would have kept them. Rounds, siblings and history then follow the
schedule of `ngramrl_jax.replay` like any drafter's.

Legend: B rows, K draft budget, N response tokens that a row has yet to say.
"""

from abc import abstractmethod
from dataclasses import replace

import numba
import numpy as np

from ngramrl_jax.host.draft import Rows, Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.host.log import NONE
from ngramrl_jax.host.ngram import DEFAULT_RULE, NgramDrafter
from ngramrl_jax.replay.oracle import OracleChain
from ngramrl_jax.types import BestTokens, Int32Array, Rollout

# Not cached: Numba would not see that a kernel called from here, in another file, has changed.
kernel = numba.njit(nogil=True)


class ForeseenDrafter(NgramDrafter):
    """Proposes the true tokens as far as `kept` says; a base of drafters that are only replayed."""

    def __init__(
        self, rows: int, draft_tokens: int, history: History, rule: Rule = DEFAULT_RULE
    ) -> None:
        """See `NgramDrafter`."""
        super().__init__(rows, draft_tokens, history, rule)
        self._rollouts: dict[int, Rollout] = {}

    def reveal(self, row: int, rollout: Rollout) -> None:
        """The rollout that slot `row` is going to say."""
        self._rollouts[row] = rollout

    def propose(self, limit_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        """The true tokens, `length_B` of them in `draft_BK`."""
        draft_BK = np.zeros((self.rows, self.draft_tokens), np.int32)
        length_B = np.zeros(self.rows, np.int32)
        rows = self._view()
        for row in np.flatnonzero(limit_B).tolist():
            rollout = self._rollouts[row]
            said = int(rows.end_B[row] - rows.start_B[row])
            limit = min(int(limit_B[row]), self.draft_tokens)
            kept = self.kept(rows, row, rollout, said, limit)
            draft_BK[row, :kept] = rollout.tokens_N[said : said + kept]
            length_B[row] = kept
        return draft_BK, length_B

    @abstractmethod
    def kept(self, rows: Rows, row: int, rollout: Rollout, said: int, limit: int) -> int:
        """How many of the tokens from `said` on this round keeps, at most `limit`."""


class BestFew(OracleChain):
    """Keeps every token that is among the policy's R best: what knowing its noise could do at most.

    A drafter with the exact laws, cut off after R tokens, and the noise would guess these tokens.
    """

    def reveal(self, row: int, rollout: Rollout) -> None:
        """The rollout that slot `row` is going to say.

        Raises:
            ValueError: Its best tokens were not recorded.
        """
        if rollout.best is not None:
            known_N = (rollout.best.ids_NR == rollout.tokens_N[:, None]).any(axis=1)
            ids_N1 = np.where(known_N, rollout.tokens_N, NONE)[:, None].astype(np.int32)
            rollout = replace(rollout, best=BestTokens(ids_N1, np.zeros(ids_N1.shape, np.float32)))
        super().reveal(row, rollout)
