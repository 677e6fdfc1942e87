# ruff: noqa: ANN001, ANN202 (Numba infers the types of kernels)
"""What the host holds of the laws that a round in flight will sample, one a position.

The walk along a draft is the drafter's own (`ngramrl_jax.host.draft`), but where that asks only for
the best token, here all the tokens count that the followed matches know of, and those that are
common behind the last few tokens (`ngramrl_jax.host.common`): the outcomes that a draft should be
held ready for.

Legend: B rows, K draft tokens, T = K + 1 positions of a round, X candidates of one position,
F matches that are followed, S positions of a row's text.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.host.calibration import (
    BOTH,
    COMMON,
    HISTORY,
    PARTS,
    Flight,
    Guesses,
    chances_at,
)
from ngramrl_jax.host.candidates import Place, matches_at, one_on, start_of_draft
from ngramrl_jax.host.common import CommonLaws, add_common_law
from ngramrl_jax.host.draft import Rows, Rule
from ngramrl_jax.host.kernel import borrowed, inlined, kernel
from ngramrl_jax.host.laws import WHOLE
from ngramrl_jax.host.log import NONE, Log
from ngramrl_jax.host.matches import gather, vote
from ngramrl_jax.host.noise import exponential, threefry
from ngramrl_jax.host.search import LONGEST
from ngramrl_jax.types import Float32Array

WIDTH = 24  # X
_GATHERED = 256
_COMMON = 0.1  # share of the common law where both are mixed
_LEAST = 1e-5  # what a law gives to a token that it does not list
_OWN = 0.1  # share of what a shorter match in the row's own text says
_UNHEARD = 1e-4  # share of a draft token that nothing speaks for
_LENGTHS = (1, 4, 16, LONGEST)
_SHARES = (0.9, 0.998)
CELLS = (len(_LENGTHS) + 1) * 4 * (len(_SHARES) + 1)


def empty_guesses(rows: int, positions: int) -> Guesses:
    """No candidates at all."""
    shape = rows, positions, WIDTH
    return Guesses(
        ids_BTX=np.zeros(shape, np.int32),
        q_BTXL=np.zeros((*shape, 3), np.float32),
        time_BTX=np.ones(shape, np.float32),
        count_BT=np.zeros(shape[:2], np.int32),
        cell_BT=np.zeros(shape[:2], np.int32),
    )


@inlined
def _step_of(value, bounds):
    step = 0
    for bound in bounds:
        step += value >= bound
    return step


@inlined
def _standing(length, count, is_own, share):
    """The calibration's cell: positions that are known about equally well."""
    backing = 0 if is_own else 1 + (count > 1) + (count > 3)
    return (_step_of(length, _LENGTHS) * 4 + backing) * (len(_SHARES) + 1) + _step_of(
        share, _SHARES
    )


@kernel
def _rank(rates_Y, count, best_X):
    """The candidates of the highest rates, in that order; returns how many they are."""
    kept = 0
    for y in range(count):
        if kept == best_X.size:
            if rates_Y[y] <= rates_Y[best_X[kept - 1]]:
                continue
            kept -= 1
        place = kept
        while place > 0 and rates_Y[best_X[place - 1]] < rates_Y[y]:
            best_X[place] = best_X[place - 1]
            place -= 1
        best_X[place] = y
        kept += 1
    return kept


@kernel
def _keep_best(ids_Y, mass_Y, common_Y, time_Y, best_X, count, wanted, guesses, row, t):
    """Enters the candidates that are most likely to be drawn, the draft's own token before all.

    `time_Y` is their noise, as exponential times: the first to come at rate q is drawn.
    """
    total = max(mass_Y[:count].sum(), 1.0)
    rate_Y = np.empty(count)
    for y in range(count):
        mass_Y[y] /= total
        both = (1 - _COMMON) * mass_Y[y] + _COMMON * common_Y[y]
        rate_Y[y] = math.inf if ids_Y[y] == wanted else (both + _LEAST) / time_Y[y]
    kept = _rank(rate_Y, count, best_X)
    for x in range(kept):
        y = best_X[x]
        guesses.ids_BTX[row, t, x] = ids_Y[y]
        guesses.time_BTX[row, t, x] = time_Y[y]
        q_L = guesses.q_BTXL[row, t, x]
        q_L[HISTORY] = mass_Y[y] + _LEAST
        q_L[BOTH] = (1 - _COMMON) * mass_Y[y] + _COMMON * common_Y[y] + _LEAST
        q_L[COMMON] = common_Y[y] + _LEAST
    guesses.count_BT[row, t] = kept


@kernel
def _row_guesses(
    log, common, rows, rule, row, flight_K, flown, guesses, seen_CM, least, chance_BTX
):
    text_S, start = rows.text_BS[row], rows.start_B[row]
    place = start_of_draft(rows, row)
    found_F, own_F = np.empty(rule.followed, np.int32), np.empty(1, np.int32)
    ids_X, mass_X = np.empty(_GATHERED, np.int32), np.empty(_GATHERED)
    common_X, time_X = np.empty(_GATHERED), np.ones(_GATHERED)
    best_X, place_Z = np.empty(WIDTH, np.int64), np.empty(2 * _GATHERED, np.int64)
    weight_M, total_M, part_XM = np.empty(PARTS), np.empty(PARTS), np.empty((WIDTH, PARTS))
    keyed, key_W = rule.noise and rows.keyed_B[row], rows.key_BW[row]
    reached = 1.0
    for t in range(flown + 1):
        here, wanted = place.here, flight_K[t] if t < flown else NONE
        count, length, own_length = matches_at(log, rows, rule, row, place, found_F, own_F, True)
        candidates = gather(log, rule, found_F, count, ids_X, mass_X)
        whole, is_own = np.float64(WHOLE) * max(count, 1), own_length > length
        if own_length > 0:
            mass = whole if is_own else _OWN * whole
            candidates = vote(ids_X, mass_X, candidates, text_S[own_F[0] + 1], mass)
        if wanted != NONE:
            candidates = vote(ids_X, mass_X, candidates, wanted, _UNHEARD * whole)
        total = mass_X[:candidates].sum()
        share = mass_X[:candidates].max() / total if candidates > 0 else 0.0
        guesses.cell_BT[row, t] = _standing(max(length, own_length), count, is_own, share)
        common_X[:candidates] = 0.0
        known = candidates
        candidates = add_common_law(
            common, text_S, start, here, ids_X, common_X, candidates, place_Z
        )
        mass_X[known:candidates] = 0.0
        if keyed:
            high, low = threefry(key_W[0], key_W[1], np.uint32(0), np.uint32(here))
            for x in range(candidates):
                time_X[x] = exponential(high, low, ids_X[x])
        _keep_best(ids_X, mass_X, common_X, time_X, best_X, candidates, wanted, guesses, row, t)
        if candidates == 0:
            break
        chances_at(guesses, seen_CM, row, t, weight_M, total_M, part_XM, chance_BTX)
        if wanted == NONE:
            break
        reached *= chance_BTX[row, t, 0]
        if reached < least:
            break
        text_S[here] = wanted
        followed = Place(here, np.int64(count), np.int64(length))
        place = one_on(log, followed, found_F, wanted)


@kernel
def guess_rows(
    log: Log,
    rows: Rows,
    rule: Rule,
    first: int,
    last: int,
    common: CommonLaws,
    flight: Flight,
    seen_CM: NDArray[np.float64],
    least: float,
    guesses: Guesses,
    chance_BTX: Float32Array,
) -> None:
    """Fills in what is held of every position that the round in flight may sample.

    From row `first` to before `last`, those without room left out, and of each as far as its draft
    is thought to be accepted with a probability of `least`. The text behind the rows' ends holds
    the drafts afterwards.
    """
    log, rows, common = borrowed(log), borrowed(rows), borrowed(common)
    for row in range(first, last):
        if flight.room_B[row] > 0:
            _row_guesses(
                log, common, rows, rule, row, flight.draft_BK[row], flight.length_B[row],
                guesses, seen_CM, least, chance_BTX,
            )  # fmt: skip
