# ruff: noqa: ANN001, ANN201, ANN202 (Numba infers the types of kernels)
"""What follows a few tokens anywhere: the mean law behind them, over many rollouts.

Where a row leaves what its prompt's history knows, the token that it says next is most often one
that the policy says there in other prompts too, or elsewhere in this one: good enough to have a
draft ready behind it, with the target's own noise to choose among them. So there are laws over the
rollouts of all prompts, and others over those of the prompt alone. (Drafts never cross from one
prompt to another.)

Legend: O kinds of contexts, H buckets, X tokens kept of each law, C positions of the log, S
positions of a row's text, Y candidates for one token, L laws that they are judged by.
"""

from typing import NamedTuple

import numpy as np

from ngramrl_jax.host.kernel import borrowed, inlined, kernel
from ngramrl_jax.host.laws import WHOLE
from ngramrl_jax.host.log import NONE, START, Log, bucket_of
from ngramrl_jax.host.pool import enter, speak
from ngramrl_jax.types import Float32Array, Int32Array

# The contexts: so many tokens, behind which so many are passed over. The last word that a row has
# said may be a number that nobody has said before; what stood before it has been heard.
_LENGTHS = (1, 2, 5, 2, 0, 1, 2, 1)
_SKIPPED = (0, 0, 0, 1, 0, 0, 0, 1)
_OF_ALL = 4  # so many contexts are those of all prompts, the others of the prompt alone
CONTEXTS = len(_LENGTHS)
_BUCKETS = 1 << 16
_WIDTH = 24
_KEPT = np.float32(0.99)  # of a law, at each new one of the same context


class CommonLaws(NamedTuple):
    """A hash table of laws. Contexts that share a bucket share their law.

    Attributes:
        ids_OHX: int32, tokens, in places of some mass.
        mass_OHX: float32, their probabilities added up, older ones forgetting.
    """

    ids_OHX: Int32Array
    mass_OHX: Float32Array


def no_common_laws() -> CommonLaws:
    """Nothing seen."""
    shape = CONTEXTS, _BUCKETS, _WIDTH
    return CommonLaws(np.zeros(shape, np.int32), np.zeros(shape, np.float32))


@inlined
def _law_behind(common, kind, owner, text_S, start, end):
    whose = NONE if kind < _OF_ALL else owner
    buckets = common.ids_OHX.shape[1]
    bucket = bucket_of(text_S, start, end - _SKIPPED[kind], _LENGTHS[kind], whose, buckets)
    return common.ids_OHX[kind, bucket], common.mass_OHX[kind, bucket]


@kernel
def learn_log(common: CommonLaws, log: Log, first: int, last: int) -> None:
    """Adds what the history's log holds from `first`, where a rollout begins, to before `last`.

    The laws at its positions, and the tokens drawn where those are unknown.
    """
    common, log = borrowed(common), borrowed(log)
    begin = first
    for position in range(first, last - 1):
        if log.tokens_C[position] == START:
            begin = position + 1
        drawn = log.tokens_C[position + 1]
        if drawn == START:
            continue
        for kind in range(CONTEXTS):
            owner = log.owner_C[position]
            ids_X, mass_X = _law_behind(common, kind, owner, log.tokens_C, begin, position + 1)
            mass_X *= _KEPT
            for entry in range(log.law_C[position], log.law_C[position + 1]):
                share = np.float32(log.probs_E[entry] / WHOLE)
                _add(ids_X, mass_X, log.ids_E[entry], share)
            if log.law_C[position] == log.law_C[position + 1]:
                _add(ids_X, mass_X, drawn, np.float32(1.0))


@kernel
def _add(ids_X, mass_X, token, mass):
    """Adds to a token's mass; a new token takes the place of the lightest, if that is lighter."""
    lightest = 0
    for x in range(ids_X.size):
        if ids_X[x] == token:
            mass_X[x] += mass
            return
        if mass_X[x] < mass_X[lightest]:
            lightest = x
    if mass_X[lightest] < mass:
        ids_X[lightest], mass_X[lightest] = token, mass


@inlined
def _slot_of(token, ids_Y, place_Z):
    """Where a token stands, or would stand, in a hash table of places in `ids_Y`."""
    slot = token & (place_Z.size - 1)
    while place_Z[slot] >= 0 and ids_Y[place_Z[slot]] != token:
        slot = (slot + 1) & (place_Z.size - 1)
    return slot


@kernel
def add_common_laws(common, owner, text_S, start, here, ids_Y, panel, count, place_Z):
    """Lets the laws behind `text_S[start:here]` speak; see `ngramrl_jax.host.pool`.

    They are the last `CONTEXTS` of the panel. Tokens that are not among `ids_Y[:count]` come behind
    them, as far as there is room; `place_Z` is scratch, longer than `ids_Y`, a power of two.
    Returns how many ids there are then.
    """
    place_Z[:] = -1
    for y in range(count):
        place_Z[_slot_of(ids_Y[y], ids_Y, place_Z)] = y
    first = panel.weight_L.size - CONTEXTS
    for kind in range(CONTEXTS):
        ids_X, mass_X = _law_behind(common, kind, owner, text_S, start, here)
        total = mass_X.sum()
        if total < 0.1:
            continue
        for x in range(ids_X.size):
            if mass_X[x] <= 0:
                continue
            slot = _slot_of(ids_X[x], ids_Y, place_Z)
            if place_Z[slot] < 0:
                if count == ids_Y.size:
                    continue
                ids_Y[count], place_Z[slot] = ids_X[x], count
                enter(panel, count)
                count += 1
            speak(panel, place_Z[slot], first + kind, mass_X[x] / total)
    return count
