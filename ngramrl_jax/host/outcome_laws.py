# ruff: noqa: ANN001, ANN202 (Numba infers the types of kernels)
"""What the host holds of the laws that a round in flight will sample, one a position.

The walk along a draft is the drafter's own (`ngramrl_jax.host.draft`), but where that asks only for
the best token, here all the tokens count that the followed matches know of, and those that are
common behind the last few tokens (`ngramrl_jax.host.common`): the outcomes that a draft should be
held ready for.

Legend: B rows, K draft tokens, T = K + 1 positions of a round, X candidates of one position,
F matches that are followed, S positions of a row's text.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.host.calibration import PARTS, Calibration, Flight, Guesses, chances_at
from ngramrl_jax.host.candidates import Place, matches_at, one_on, start_of_draft
from ngramrl_jax.host.common import CONTEXTS, CommonLaws, add_common_laws
from ngramrl_jax.host.draft import Rows, Rule
from ngramrl_jax.host.kernel import alive, borrowed, inlined, kernel
from ngramrl_jax.host.laws import WHOLE
from ngramrl_jax.host.log import NONE, Log
from ngramrl_jax.host.matches import gather, vote
from ngramrl_jax.host.noise import exponential, threefry
from ngramrl_jax.host.pool import Pool, ask, enter, mark, new_panel, new_pool, pool_laws, speak
from ngramrl_jax.host.search import LONGEST
from ngramrl_jax.types import Float32Array, Int32Array

WIDTH = 24  # X
_GATHERED = 256
_LEAST = 1e-9  # probability of any candidate
_DRAFTED, _HISTORY = range(2)  # laws: the draft's own token alone, and the history's
_LAWS = _HISTORY + 1 + CONTEXTS  # L
_TRUST = (0.7,) + (_LAWS - 1) * (0.15,)  # their weights, until something was learnt
_OWN = 0.1  # share of what a shorter match in the row's own text says
_UNHEARD = 1e-4  # share of a draft token that nothing speaks for
_LENGTHS = (1, 4, 16, LONGEST)
_SHARES = (0.9, 0.998)
_BACKINGS = 4
_ALIKE = _BACKINGS * (len(_SHARES) + 1)  # cells of positions with matches about as long
CELLS = (len(_LENGTHS) + 1) * _ALIKE


def new_calibration() -> Calibration:
    """Of nothing seen."""
    return Calibration(CELLS, WIDTH, new_pool(CELLS // _ALIKE, _TRUST))


def empty_guesses(rows: int, positions: int) -> Guesses:
    """No candidates at all."""
    shape = rows, positions, WIDTH
    return Guesses(
        ids_BTX=np.zeros(shape, np.int32),
        q_BTX=np.zeros(shape, np.float32),
        time_BTX=np.ones(shape, np.float32),
        count_BT=np.zeros(shape[:2], np.int32),
        cell_BT=np.zeros(shape[:2], np.int32),
        gain_BTXL=np.zeros((*shape, _LAWS), np.float32),
        mean_BTL=np.zeros((*shape[:2], _LAWS), np.float32),
        pool_BT=np.zeros(shape[:2], np.int32),
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
    among = backing * (len(_SHARES) + 1) + _step_of(share, _SHARES)
    return _step_of(length, _LENGTHS) * _ALIKE + among


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


class _Scratch(NamedTuple):
    """Room to work in, for one position after another."""

    found_F: Int32Array
    own_F: Int32Array
    ids_Y: Int32Array
    mass_Y: NDArray[np.float64]
    time_Y: NDArray[np.float64]
    rate_Y: NDArray[np.float64]
    place_Z: NDArray[np.int64]
    best_X: NDArray[np.int64]
    weight_M: NDArray[np.float64]
    total_M: NDArray[np.float64]
    part_XM: NDArray[np.float64]


@kernel
def _new_scratch(followed):
    return _Scratch(
        np.empty(followed, np.int32), np.empty(1, np.int32),
        np.empty(_GATHERED, np.int32), np.empty(_GATHERED), np.ones(_GATHERED),
        np.empty(_GATHERED), np.empty(2 * _GATHERED, np.int64), np.empty(WIDTH, np.int64),
        np.empty(PARTS), np.empty(PARTS), np.empty((WIDTH, PARTS)),
    )  # fmt: skip


@inlined
def _keep_best(scratch, panel, count, wanted, guesses, row, t):
    """Enters the candidates that are most likely to be drawn, the draft's own token before all.

    Their noise is an exponential time: the first to come at rate q is drawn.
    """
    ids_Y, time_Y, rate_Y, best_X = scratch.ids_Y, scratch.time_Y, scratch.rate_Y, scratch.best_X
    for y in range(count):
        rate_Y[y] = np.inf if ids_Y[y] == wanted else panel.q_X[y] / time_Y[y]
    kept = _rank(rate_Y, count, best_X)
    for x in range(kept):
        y = best_X[x]
        guesses.ids_BTX[row, t, x] = ids_Y[y]
        guesses.time_BTX[row, t, x] = time_Y[y]
        guesses.q_BTX[row, t, x] = panel.q_X[y] + _LEAST
        for law in range(_LAWS):  # a slice would take ten times as long
            guesses.gain_BTXL[row, t, x, law] = panel.gain_XL[y, law]
    for law in range(_LAWS):
        guesses.mean_BTL[row, t, law] = panel.mean_L[law]
    guesses.count_BT[row, t] = kept


@inlined
def _ask_history(log, rows, rule, row, place, wanted, scratch):
    """Candidates by what the matches say, with masses.

    Returns how many, how many matches are followed, their length, and the calibration's cell.
    """
    found_F, own_F, ids_Y, mass_Y = scratch.found_F, scratch.own_F, scratch.ids_Y, scratch.mass_Y
    count, length, own_length = matches_at(log, rows, rule, row, place, found_F, own_F, True)
    candidates = gather(log, rule, found_F, count, ids_Y, mass_Y)
    whole, is_own = np.float64(WHOLE) * max(count, 1), own_length > length
    if own_length > 0:
        mass = whole if is_own else _OWN * whole
        candidates = vote(ids_Y, mass_Y, candidates, rows.text_BS[row, own_F[0] + 1], mass)
    if wanted != NONE:
        candidates = vote(ids_Y, mass_Y, candidates, wanted, _UNHEARD * whole)
    share = mass_Y[:candidates].max() / mass_Y[:candidates].sum() if candidates > 0 else 0.0
    return candidates, count, length, _standing(max(length, own_length), count, is_own, share)


@inlined
def _pool_at(common, rows, row, here, wanted, pool, cell, candidates, scratch, panel):
    """Lets all laws speak of the history's candidates and of their own; returns how many."""
    ids_Y, mass_Y = scratch.ids_Y, scratch.mass_Y
    ask(panel, pool, cell)
    total = max(mass_Y[:candidates].sum(), 1.0)
    for y in range(candidates):
        enter(panel, y)
        speak(panel, y, _HISTORY, mass_Y[y] / total)
        if ids_Y[y] == wanted:
            mark(panel, y, _DRAFTED)
    candidates = add_common_laws(
        common, rows.owner_B[row], rows.text_BS[row], rows.start_B[row], here,
        ids_Y, panel, candidates, scratch.place_Z,
    )  # fmt: skip
    if candidates > 0:
        pool_laws(panel, candidates)
    return candidates


@kernel
def _row_guesses(
    log, common, rows, rule, scratch, panel, row, flight_K, flown, guesses, pool, seen_CM, least,
    chance_BTX,
):  # fmt: skip
    place = start_of_draft(rows, row)
    keyed, key_W = rule.noise and rows.keyed_B[row], rows.key_BW[row]
    scratch.time_Y[:] = 1.0
    reached = 1.0
    for t in range(flown + 1):
        here, wanted = place.here, flight_K[t] if t < flown else NONE
        known, count, length, cell = _ask_history(log, rows, rule, row, place, wanted, scratch)
        guesses.cell_BT[row, t], guesses.pool_BT[row, t] = cell, cell // _ALIKE
        candidates = _pool_at(
            common, rows, row, here, wanted, pool, cell // _ALIKE, known, scratch, panel
        )
        if candidates == 0:
            break
        if keyed:
            high, low = threefry(key_W[0], key_W[1], np.uint32(0), np.uint32(here))
            for y in range(candidates):
                token = scratch.ids_Y[y]
                asked = panel.q_X[y] > 0.0 or token == wanted
                scratch.time_Y[y] = exponential(high, low, token) if asked else 1.0
        _keep_best(scratch, panel, candidates, wanted, guesses, row, t)
        chances_at(
            guesses, seen_CM, row, t, scratch.weight_M, scratch.total_M, scratch.part_XM, chance_BTX
        )
        if wanted == NONE:
            break
        reached *= chance_BTX[row, t, 0]
        if reached < least:
            break
        rows.text_BS[row, here] = wanted
        followed = Place(here, np.int64(count), np.int64(length))
        place = one_on(log, followed, scratch.found_F, wanted)


@kernel
def guess_rows(
    log: Log,
    rows: Rows,
    rule: Rule,
    first: int,
    last: int,
    common: CommonLaws,
    flight: Flight,
    pool: Pool,
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
    my_scratch, my_panel = _new_scratch(rule.followed), new_panel(_LAWS, _GATHERED)
    scratch, panel = borrowed(my_scratch), borrowed(my_panel)
    log, rows, common, guesses = borrowed(log), borrowed(rows), borrowed(common), borrowed(guesses)
    for row in range(first, last):
        if flight.room_B[row] > 0:
            _row_guesses(
                log, common, rows, rule, scratch, panel, row, flight.draft_BK[row],
                flight.length_B[row], guesses, pool, seen_CM, least, chance_BTX,
            )  # fmt: skip
    alive(my_scratch)
    alive(my_panel)
