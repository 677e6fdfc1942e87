# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""How long to draft: the length that promises the most committed tokens a second.

A draft is worth what is kept of it and costs what a round of its length takes. The first is learnt
from what became of earlier drafts, those that were made and not verified among them (a *shadow*
draft is held against what plain decoding then said); the second is measured. No drafting at all is
one of the choices. Choosing by measured concurrency cost: FastGRPO, arXiv 2509.21792; by expected
acceptance: DAS, arXiv 2511.13841; bounded programs and a bandit over them: TLT, arXiv 2511.16665.

Legend: B rows, K draft budget, M classes of match length, R rungs to choose from, L live rungs.
"""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.types import BoolArray, Int32Array

MOST_PROGRAMS = 18
PLAIN, SHORT = 0, 1  # the first two rungs
SHORT_ROUNDS = 2  # of a plain dispatch after which drafts are looked at again

_CLASSES = 8  # match lengths 0, 1, 2-3, 4-7, ... , 64 and more
_MEMORY = 256.0  # drafts that an estimate looks back on
_PRIOR = 4.0  # drafts that a prior belief is worth
_FIRST_KEPT = 0.7  # believed of a first draft token of which nothing is known
_LEAST_SURVIVAL = 0.01  # what is kept more seldom is not drafted
_MEASUREMENTS = 9  # whose median is a round's cost
_MARGIN = 1.03  # by which another rung must be better
_PLAIN_MARGIN = 1.08  # than plain decoding, which spends less that no clock of rounds sees
_REVISIT = 64  # choices between two in which a cost is measured again
_REVISIT_SHARE = 2 / 3  # of the best rate that such a choice must promise
_DRY = 16  # dispatches in short, of which one is at length to measure its cost
_GAIN_MEMORY = 1 / 32
_GAIN = 1.08  # by which looking again soon must be worth it


class Rung(NamedTuple):
    """One way of going on: a drafted round, or plain rounds in one dispatch where K is 0.

    Attributes:
        draft_tokens: K of the dispatch.
        rounds: Rounds of the dispatch at most; 1 where K is above 0.
    """

    draft_tokens: int
    rounds: int = 1


class Choice(NamedTuple):
    """What was chosen and why.

    Attributes:
        rung: Index of the rung.
        cut_B: int32, how many tokens of each row's draft are worth verifying.
        length_R: K of each rung.
        expected_R: float64, committed tokens of all rows that one round of each rung promises.
        seconds_R: float64, what such a round costs.
    """

    rung: int
    cut_B: Int32Array
    length_R: np.ndarray
    expected_R: np.ndarray
    seconds_R: np.ndarray


def length_rungs(draft_tokens: int, plain_rounds: int, live_rungs: int) -> tuple[Rung, ...]:
    """Plain decoding at length and in short, then drafts of 3, 7, ... and K tokens.

    Each draft length and plain decoding compile one program for each of `live_rungs`, in all
    `MOST_PROGRAMS` at most: the shortest drafts give way first, but plain decoding and K stay.
    """
    lengths = [2**i - 1 for i in range(2, 31) if 2**i - 1 <= draft_tokens // 2] + [draft_tokens]
    most = max(1, MOST_PROGRAMS // live_rungs - 1)
    short = min(SHORT_ROUNDS, plain_rounds)
    return (Rung(0, plain_rounds), Rung(0, short), *(Rung(k) for k in lengths[-most:]))


class Survival:
    """How likely the first, second, ... token of a draft is kept, by the length of its match.

    A draft of which `seen` tokens could be compared tells about its tokens up to the first one
    that differed. Nothing is concluded about what a stop or another row's end cut off.
    """

    def __init__(self, draft_tokens: int) -> None:
        """Nothing is known: a first token is believed in, later ones as much as those before."""
        self._kept_MK = np.zeros((_CLASSES, draft_tokens))
        self._tried_MK = np.zeros((_CLASSES, draft_tokens))

    def record(
        self, match_B: Int32Array, drafted_B: Int32Array, kept_B: Int32Array, seen_B: Int32Array
    ) -> None:
        """Row b's draft of `drafted_B[b]` tokens agreed in `kept_B[b]` of the `seen_B[b]` known."""
        _record(self._kept_MK, self._tried_MK, match_B, drafted_B, kept_B, seen_B)

    def of(self, match_B: Int32Array) -> np.ndarray:
        """Probability that a draft's first k tokens are all kept, float64 `[B, K]`."""
        survival_BK = np.empty((len(match_B), self._kept_MK.shape[1]))
        _survival(self._kept_MK, self._tried_MK, match_B, survival_BK)
        return survival_BK


class RoundCosts:
    """Seconds of a round by rung and live rung: the median of the last few measurements.

    The first of each is thrown away: a compilation may be in it.
    """

    def __init__(self, rungs: int, lives: Sequence[int]) -> None:
        """Nothing is measured yet."""
        self._lives = {live: place for place, live in enumerate(lives)}
        self._last_RLX = np.full((rungs, len(lives), _MEASUREMENTS), np.nan)
        self._count_RL = np.zeros((rungs, len(lives)), np.int64)
        self._median_RL = np.full((rungs, len(lives)), np.nan)

    def record(self, rung: int, live: int, seconds: float) -> None:
        """A round took so long."""
        cell = rung, self._lives[live]
        count = self._count_RL[cell]
        self._count_RL[cell] += 1
        if count:
            self._last_RLX[cell][(count - 1) % _MEASUREMENTS] = seconds
            known = min(count, _MEASUREMENTS)
            self._median_RL[cell] = median(self._last_RLX[cell][:known].tolist())

    def seconds(self, rung: int, live: int) -> float:
        """The cost; NaN where there is none yet."""
        return float(self._median_RL[rung, self._lives[live]])


class DraftLength:
    """Chooses a rung a round.

    Attributes:
        rungs: To choose from; the first is plain decoding at length, the second in short.
        costs: Measured.
        survival: Of draft tokens.
    """

    def __init__(self, rungs: Sequence[Rung], lives: Sequence[int]) -> None:
        """Nothing is known yet: every rung is tried until it has been measured."""
        self.rungs = tuple(rungs)
        self.costs = RoundCosts(len(rungs), lives)
        self.survival = Survival(max(rung.draft_tokens for rung in rungs))
        self._length_R = np.array([rung.draft_tokens for rung in rungs])
        self._before = 0
        self._choices = 0
        self._used_R = np.zeros(len(rungs), np.int64)
        self._dry = 0
        # What was promised lately without plain decoding at length: seconds, and those that
        # plain decoding at length takes for as many tokens.
        self._seconds = self._plain_seconds = 0.0

    def choose(
        self,
        match_B: Int32Array,
        drafted_B: Int32Array,
        running_B: BoolArray,
        lives: Sequence[int],
    ) -> Choice:
        """The rung that promises the most committed tokens a second.

        What was run before is left only for what is 3 % better, plain decoding for 8 %. Rows that
        have no draft worth its round are decoded plainly, at length or in short. In short they can
        draft again soon, but pay for more dispatches: so only while drafts and short dispatches
        together beat plain decoding at length. Now and then a rung is run to time it anew: one
        that comes near, or plain decoding at length in place of a short dispatch.

        Args:
            match_B: int32, length of the match that each draft continues.
            drafted_B: int32, length of each draft.
            running_B: bool, rows that are decoded.
            lives: Live rung of a dispatch by rung.
        """
        cut_B = np.empty_like(drafted_B)
        expected_R = np.empty(len(self.rungs))
        survival_BK = self.survival.of(match_B)
        _expect(survival_BK, drafted_B, running_B, self._length_R, cut_B, expected_R)
        costs = [self.costs.seconds(rung, live) for rung, live in enumerate(lives)]
        # A round of fewer tokens, or in a longer dispatch, never costs more; where it seems to,
        # something came between.
        seconds_R = np.minimum.accumulate(np.array(costs)[::-1])[::-1]
        best = self._best(expected_R, seconds_R)
        return Choice(best, cut_B, self._length_R, expected_R, seconds_R)

    def _best(self, expected_R: np.ndarray, seconds_R: np.ndarray) -> int:
        self._choices += 1
        unknown = np.flatnonzero(np.isnan(seconds_R))
        if len(unknown):
            return int(unknown[-1])
        rate_R = expected_R / seconds_R
        candidate_R = rate_R.copy()
        candidate_R[self._before] *= _MARGIN
        candidate_R[PLAIN] = _PLAIN_MARGIN * rate_R[PLAIN]
        candidate_R[PLAIN if self._looks_soon(rate_R, seconds_R) else SHORT] = 0.0
        best = int(candidate_R.argmax())
        self._dry += best == SHORT
        if best == SHORT and self._dry % _DRY == 0:
            best = PLAIN
        elif self._choices % _REVISIT == 0:
            near = np.flatnonzero(rate_R >= _REVISIT_SHARE * rate_R[best])
            revisited = int(near[self._used_R[near].argmin()])
            self._used_R[revisited] = self._choices
            return revisited
        self._before = best
        self._used_R[best] = self._choices
        return best

    def _looks_soon(self, rate_R: np.ndarray, seconds_R: np.ndarray) -> bool:
        """Whether drafts and short dispatches, each when it is better, beat plain decoding."""
        best = SHORT + int(rate_R[SHORT:].argmax())
        seconds = seconds_R[best] * self.rungs[best].rounds
        plain_seconds = seconds * rate_R[best] / rate_R[PLAIN]
        self._seconds += _GAIN_MEMORY * (seconds - self._seconds)
        self._plain_seconds += _GAIN_MEMORY * (plain_seconds - self._plain_seconds)
        return self._plain_seconds > _GAIN * self._seconds


@kernel
def _match_class(match):
    found = 0
    while match > 0 and found < _CLASSES - 1:
        match >>= 1
        found += 1
    return found


@kernel
def _record(kept_MK, tried_MK, match_B, drafted_B, kept_B, seen_B):
    for row in range(match_B.size):
        known = _match_class(match_B[row])
        for k in range(min(drafted_B[row], kept_B[row] + 1, seen_B[row])):
            fresh = 1.0 if k < kept_B[row] else 0.0
            kept_MK[known, k] = kept_MK[known, k] * (1 - 1 / _MEMORY) + fresh
            tried_MK[known, k] = tried_MK[known, k] * (1 - 1 / _MEMORY) + 1.0


@kernel
def _survival(kept_MK, tried_MK, match_B, survival_BK):
    """Products of the shares kept, each drawn towards the one before it."""
    for row in range(match_B.size):
        known = _match_class(match_B[row])
        share, survives = _FIRST_KEPT, 1.0
        for k in range(survival_BK.shape[1]):
            share = (kept_MK[known, k] + _PRIOR * share) / (tried_MK[known, k] + _PRIOR)
            survives *= share
            survival_BK[row, k] = survives


@kernel
def _expect(survival_BK, drafted_B, running_B, length_R, cut_B, expected_R):
    expected_R[:] = 0.0
    for row in range(drafted_B.size):
        cut_B[row] = 0
        if not running_B[row]:
            continue
        while cut_B[row] < drafted_B[row] and survival_BK[row, cut_B[row]] >= _LEAST_SURVIVAL:
            cut_B[row] += 1
        for rung in range(length_R.size):
            expected_R[rung] += 1.0
            for k in range(min(cut_B[row], length_R[rung])):
                expected_R[rung] += survival_BK[row, k]
