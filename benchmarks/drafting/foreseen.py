# ruff: noqa: ANN001, ANN201 (Numba infers the types of kernels)
"""Drafters that are replayed without drafting: they say only how much of the truth they would keep.

In replay a row's next tokens are known. A drafter that would propose something else than one chain
of tokens (a tree, a draft drawn at random) can therefore be measured as if it had proposed a chain:
the true tokens, as far as it would have kept them. Rounds, siblings and history then follow the
schedule of `ngramrl_jax.replay` like any drafter's.

Legend: B rows, K draft budget, N response tokens that a row has yet to say, F matches followed,
X candidates for one token.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import NamedTuple

import numba
import numpy as np

from ngramrl_jax.host.draft import Rows, Rule, _follow, _gather, _pick_up
from ngramrl_jax.host.history import History
from ngramrl_jax.host.log import GRAMS, NONE, chain_up
from ngramrl_jax.host.ngram import DEFAULT_RULE, NgramDrafter
from ngramrl_jax.host.search import LONGEST, longest_matches
from ngramrl_jax.replay.oracle import OracleChain
from ngramrl_jax.types import BestTokens, Int32Array, Rollout

# Not cached: Numba would not see that a kernel called from here, in another file, has changed.
kernel = numba.njit(nogil=True)

CANDIDATES = 128  # for one token, at most


class Place(NamedTuple):
    """Where a draft has got to.

    Attributes:
        here: Length of the row's text with the draft so far.
        matches: How many are followed.
        length: Their length.
    """

    here: np.int64
    matches: np.int64
    length: np.int64


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


@kernel
def candidate_law(log, rows, rule, row, place, found_F, own_F, ids_X, mass_X):
    """What the drafter takes for the next token's law: masses, not normalised.

    The same choices as in `ngramrl_jax.host.draft`, of which only the guess is left out, written
    again: one kernel for both makes drafting slower by a third. A test holds them together.
    The text behind the row's end holds the draft so far, and `found_F` the matches; both are the
    caller's.

    Returns:
        How many candidates, the length of the match that they continue, and the place as the
        search has left it.
    """
    text_S, start = rows.text_BS[row], rows.start_B[row]
    owner, oldest = rows.owner_B[row], rows.oldest_B[row]
    here, count, length = place.here, place.matches, place.length
    if count == 0 and oldest != NONE:
        count, length = longest_matches(
            log.tokens_C, log.owner_C, log.chain_GC, log.bucket_GH,
            owner, oldest, rule.steps, text_S, start, here, found_F,
        )  # fmt: skip
    own_length = 0
    if rule.own_text and length < GRAMS[-1]:
        _, own_length = longest_matches(
            text_S, log.owner_C[:0], rows.chain_BGS[row], rows.bucket_BGH[row],
            0, 0, rule.steps, text_S, 0, here, own_F,
        )  # fmt: skip
    if length == own_length == 0 and oldest != NONE:
        count = _pick_up(log, rule, owner, oldest, text_S, start, here, found_F)
    place = Place(here, np.int64(count), np.int64(length))
    if own_length > length:
        ids_X[0], mass_X[0] = text_S[own_F[0] + 1], 1.0
        return 1, own_length, place
    return _gather(log, rule, found_F, count, ids_X, mass_X), length, place


@kernel
def start_of_draft(rows, row):
    """The place before the first draft token; chains what the row has said since the last one."""
    end = rows.end_B[row]
    for position in range(rows.noted_B[row], end - 1):
        chain_up(rows.text_BS[row], rows.chain_BGS[row], rows.bucket_BGH[row], position, 0)
    rows.noted_B[row] = max(rows.noted_B[row], end - 1)
    return Place(np.int64(end), np.int64(0), np.int64(0))


@kernel
def one_on(log, place, found_F, token):
    """The place after a token; drops the matches that it does not follow."""
    count = _follow(log, found_F, place.matches, token)
    length = min(place.length + 1, LONGEST) if count > 0 else 0
    return Place(place.here + 1, np.int64(count), np.int64(length))
