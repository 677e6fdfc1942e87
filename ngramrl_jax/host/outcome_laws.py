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

from ngramrl_jax.host.calibration import BOTH, COMMON, HISTORY, Flight, Guesses
from ngramrl_jax.host.common import CommonLaws, common_law
from ngramrl_jax.host.draft import Rows, Rule, _follow, _gather, _pick_up, _vote
from ngramrl_jax.host.kernel import inlined, kernel
from ngramrl_jax.host.laws import WHOLE
from ngramrl_jax.host.log import GRAMS, NONE, Log, chain_up
from ngramrl_jax.host.noise import gumbel, threefry
from ngramrl_jax.host.search import LONGEST, longest_matches

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
        log_q_BTXL=np.zeros((*shape, 3), np.float32),
        noise_BTX=np.zeros(shape, np.float32),
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
def _keep_best(ids_Y, mass_Y, common_Y, noise_Y, count, wanted, guesses, row, t):
    """Enters the candidates that are most likely to be drawn, the draft's own token before all."""
    total = max(mass_Y[:count].sum(), 1.0)
    score_Y = np.empty(count)
    for y in range(count):
        mass_Y[y] /= total
        both = (1 - _COMMON) * mass_Y[y] + _COMMON * common_Y[y]
        score_Y[y] = math.inf if ids_Y[y] == wanted else math.log(both + _LEAST) + noise_Y[y]
    kept = min(count, guesses.ids_BTX.shape[2])
    for x in range(kept):
        y = score_Y.argmax()
        score_Y[y] = -math.inf
        guesses.ids_BTX[row, t, x], guesses.noise_BTX[row, t, x] = ids_Y[y], noise_Y[y]
        log_q_L = guesses.log_q_BTXL[row, t, x]
        log_q_L[HISTORY] = math.log(mass_Y[y] + _LEAST)
        log_q_L[BOTH] = math.log((1 - _COMMON) * mass_Y[y] + _COMMON * common_Y[y] + _LEAST)
        log_q_L[COMMON] = math.log(common_Y[y] + _LEAST)
    guesses.count_BT[row, t] = kept


@kernel
def _search(log, rows, rule, row, here, count, length, found_F, own_F):
    """The matches that are followed at a place, and the best one in the row's own text.

    Returns how many are followed, their length, and the own one's; the rule is the drafter's.
    """
    text_S, start = rows.text_BS[row], rows.start_B[row]
    owner, oldest = rows.owner_B[row], rows.oldest_B[row]
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
    return count, length, own_length


@kernel
def _join(ids_X, common_X, count, mass_X, common_ids_Y, common_Y, common_count):
    """Adds the common law's tokens, without a mass of the history's; returns the candidates."""
    common_X[:count] = 0.0
    for y in range(common_count):
        before = count
        count = _vote(ids_X, mass_X, count, common_ids_Y[y], 0.0)
        if count > before:
            common_X[before] = common_Y[y]
            continue
        for x in range(count):
            if ids_X[x] == common_ids_Y[y]:
                common_X[x] = common_Y[y]
    return count


@kernel
def _row_guesses(log, common, rows, rule, row, flight_K, flown, guesses):
    text_S, start, end = rows.text_BS[row], rows.start_B[row], rows.end_B[row]
    for position in range(rows.noted_B[row], end - 1):
        chain_up(text_S, rows.chain_BGS[row], rows.bucket_BGH[row], position, 0)
    rows.noted_B[row] = max(rows.noted_B[row], end - 1)
    found_F, own_F = np.empty(rule.followed, np.int32), np.empty(1, np.int32)
    ids_X, mass_X = np.empty(_GATHERED, np.int32), np.empty(_GATHERED)
    common_X, noise_X = np.empty(_GATHERED), np.zeros(_GATHERED)
    common_ids_Y, common_Y = np.empty(_GATHERED, np.int32), np.empty(_GATHERED)
    keyed, key_W = rule.noise and rows.keyed_B[row], rows.key_BW[row]
    count = length = 0
    for t in range(flown + 1):
        here, wanted = end + t, flight_K[t] if t < flown else NONE
        count, length, own_length = _search(
            log, rows, rule, row, here, count, length, found_F, own_F
        )
        candidates = _gather(log, rule, found_F, count, ids_X, mass_X)
        whole, is_own = np.float64(WHOLE) * max(count, 1), own_length > length
        if own_length > 0:
            mass = whole if is_own else _OWN * whole
            candidates = _vote(ids_X, mass_X, candidates, text_S[own_F[0] + 1], mass)
        if wanted != NONE:
            candidates = _vote(ids_X, mass_X, candidates, wanted, _UNHEARD * whole)
        total = mass_X[:candidates].sum()
        share = mass_X[:candidates].max() / total if candidates > 0 else 0.0
        guesses.cell_BT[row, t] = _standing(max(length, own_length), count, is_own, share)
        common_count = common_law(common, text_S, start, here, common_ids_Y, common_Y)
        candidates = _join(
            ids_X, common_X, candidates, mass_X, common_ids_Y, common_Y, common_count
        )
        if keyed:
            high, low = threefry(key_W[0], key_W[1], np.uint32(0), np.uint32(here))
            for x in range(candidates):
                noise_X[x] = gumbel(high, low, ids_X[x])
        _keep_best(ids_X, mass_X, common_X, noise_X, candidates, wanted, guesses, row, t)
        if wanted != NONE:
            text_S[here] = wanted
            count = _follow(log, found_F, count, wanted)
            length = min(length + 1, LONGEST) if count > 0 else 0


@kernel
def guess_rows(
    log: Log,
    rows: Rows,
    rule: Rule,
    first: int,
    last: int,
    common: CommonLaws,
    flight: Flight,
    guesses: Guesses,
) -> None:
    """Fills in what is held of every position that the round in flight may sample.

    From row `first` to before `last`, those without room left out. The text behind the
    rows' ends holds the drafts afterwards.
    """
    for row in range(first, last):
        if flight.room_B[row] > 0:
            _row_guesses(
                log, common, rows, rule, row, flight.draft_BK[row], flight.length_B[row], guesses
            )
