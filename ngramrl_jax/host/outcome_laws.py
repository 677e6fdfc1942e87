# ruff: noqa: ANN001, ANN201, ANN202 (Numba infers the types of kernels)
"""What the host holds of the laws that a round in flight will sample, one a position.

The walk along a draft is the drafter's own (`ngramrl_jax.host.draft`), but where that asks only for
the best token, here all the tokens count that the followed matches know of, and after them what
followed the last token elsewhere: the outcomes that a draft should be held ready for.

Legend: B rows, K draft tokens, T = K + 1 positions of a round, X candidates of one position,
F matches that are followed, S positions of a row's text.
"""

import math

import numpy as np

from ngramrl_jax.host.calibration import Flight, Guesses
from ngramrl_jax.host.draft import Rows, Rule, _follow, _gather, _pick_up, _vote
from ngramrl_jax.host.kernel import inlined, kernel
from ngramrl_jax.host.laws import WHOLE
from ngramrl_jax.host.log import GRAMS, NONE, Log, bucket_of, chain_up
from ngramrl_jax.host.noise import gumbel, threefry
from ngramrl_jax.host.search import LONGEST, longest_matches

WIDTH = 16  # X
_GATHERED = 128
_ELSEWHERE = 0.01  # share of a law that comes from after the last token elsewhere
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
        log_q_BTX=np.zeros(shape, np.float32),
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
    return (_step_of(length, _LENGTHS) * 4 + backing) * (len(_SHARES) + 1) + _step_of(share, _SHARES)


@kernel
def _vote_elsewhere(log, rule, owner, oldest, text_S, start, here, ids_X, mass_X, count, mass):
    """Adds what followed the last token elsewhere in the history; returns the candidates."""
    bucket = bucket_of(text_S, start, here, GRAMS[0], owner, log.bucket_GH.shape[1])
    position = log.bucket_GH[0, bucket]
    last = text_S[here - 1]
    for _ in range(rule.steps):
        if position == NONE or position < oldest:
            break
        if log.tokens_C[position] == last and log.owner_C[position] == owner:
            count = _vote(ids_X, mass_X, count, log.tokens_C[position + 1], mass / rule.steps)
            if rule.laws:
                for entry in range(log.law_C[position], log.law_C[position + 1]):
                    share = mass * log.probs_E[entry] / (WHOLE * rule.steps)
                    count = _vote(ids_X, mass_X, count, log.ids_E[entry], share)
        position = log.chain_GC[0, position]
    return count


@kernel
def _keep_best(ids_X, mass_X, noise_X, count, wanted, guesses, row, t):
    """Enters the candidates that are most likely to be drawn, the draft's own token among them."""
    total = mass_X[:count].sum()
    ids_W = guesses.ids_BTX[row, t]
    log_q_W, noise_W = guesses.log_q_BTX[row, t], guesses.noise_BTX[row, t]
    kept = 0
    for x in range(count):
        log_q, noise = math.log(mass_X[x] / total), noise_X[x]
        score = math.inf if ids_X[x] == wanted else log_q + noise
        if kept == ids_W.size:
            if score <= log_q_W[kept - 1] + noise_W[kept - 1] or ids_W[kept - 1] == wanted:
                continue
            kept -= 1
        place = kept
        while place > 0 and ids_W[place - 1] != wanted and (
            log_q_W[place - 1] + noise_W[place - 1] < score
        ):
            ids_W[place] = ids_W[place - 1]
            log_q_W[place], noise_W[place] = log_q_W[place - 1], noise_W[place - 1]
            place -= 1
        ids_W[place], log_q_W[place], noise_W[place] = ids_X[x], log_q, noise
        kept += 1
    guesses.count_BT[row, t] = kept


@kernel
def _row_guesses(log, rows, rule, row, flight_K, flown, guesses):
    text_S, start, end = rows.text_BS[row], rows.start_B[row], rows.end_B[row]
    chain_GS, bucket_GH = rows.chain_BGS[row], rows.bucket_BGH[row]
    owner, oldest = rows.owner_B[row], rows.oldest_B[row]
    everyone_C = log.owner_C[:0]
    for position in range(rows.noted_B[row], end - 1):
        chain_up(text_S, chain_GS, bucket_GH, position, 0)
    rows.noted_B[row] = max(rows.noted_B[row], end - 1)
    found_F, own_F = np.empty(rule.followed, np.int32), np.empty(1, np.int32)
    ids_X, mass_X = np.empty(_GATHERED, np.int32), np.empty(_GATHERED)
    noise_X = np.zeros(_GATHERED)
    count = length = 0
    for t in range(flown + 1):
        here = end + t
        if count == 0 and oldest != NONE:
            count, length = longest_matches(
                log.tokens_C, log.owner_C, log.chain_GC, log.bucket_GH,
                owner, oldest, rule.steps, text_S, start, here, found_F,
            )  # fmt: skip
        own_length = 0
        if rule.own_text and length < GRAMS[-1]:
            _, own_length = longest_matches(
                text_S, everyone_C, chain_GS, bucket_GH,
                0, 0, rule.steps, text_S, 0, here, own_F,
            )  # fmt: skip
        if length == own_length == 0 and oldest != NONE:
            count = _pick_up(log, rule, owner, oldest, text_S, start, here, found_F)
        candidates = _gather(log, rule, found_F, count, ids_X, mass_X)
        whole = np.float64(WHOLE) * max(count, 1)
        is_own = own_length > length
        if own_length > 0:
            mass = whole if is_own else _OWN * whole
            candidates = _vote(ids_X, mass_X, candidates, text_S[own_F[0] + 1], mass)
        if oldest != NONE:
            candidates = _vote_elsewhere(
                log, rule, owner, oldest, text_S, start, here,
                ids_X, mass_X, candidates, _ELSEWHERE * whole,
            )  # fmt: skip
        wanted = NONE
        if t < flown:
            wanted = flight_K[t]
            candidates = _vote(ids_X, mass_X, candidates, wanted, _UNHEARD * whole)
        if candidates > 0:
            if rule.noise and rows.keyed_B[row]:
                key_W = rows.key_BW[row]
                high, low = threefry(key_W[0], key_W[1], np.uint32(0), np.uint32(here))
                for x in range(candidates):
                    noise_X[x] = gumbel(high, low, ids_X[x])
            share = mass_X[:candidates].max() / mass_X[:candidates].sum()
            guesses.cell_BT[row, t] = _standing(max(length, own_length), count, is_own, share)
            _keep_best(ids_X, mass_X, noise_X, candidates, wanted, guesses, row, t)
        elif t < flown:
            return
        if t < flown:
            text_S[here] = wanted
            count = _follow(log, found_F, count, wanted)
            length = min(length + 1, LONGEST) if count > 0 else 0


@kernel
def guess_rows(
    log: Log, rows: Rows, rule: Rule, first: int, last: int, flight: Flight, guesses: Guesses
) -> None:
    """Fills in what is held of every position that the round in flight may sample.

    From row `first` to before `last`, those without room left out. The text behind the rows' ends holds the drafts afterwards.
    """
    for row in range(first, last):
        if flight.room_B[row] > 0:
            _row_guesses(
                log, rows, rule, row, flight.draft_BK[row], flight.length_B[row], guesses
            )
