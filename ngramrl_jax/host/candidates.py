# ruff: noqa: ANN001, ANN201 (Numba infers the types of kernels)
"""What may come next at any place of a draft: the candidates, and how much speaks for each.

The same choices as in `ngramrl_jax.host.draft`, of which only the guess is left out, written again:
one kernel for both makes drafting slower by a third. A test holds them together.

Legend: F matches followed, X candidates for one token.
"""

from typing import NamedTuple

import numpy as np

from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.host.log import GRAMS, NONE, chain_up
from ngramrl_jax.host.matches import follow, gather, pick_up
from ngramrl_jax.host.search import LONGEST, longest_matches

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


@kernel
def matches_at(log, rows, rule, row, place, found_F, own_F, shorter_own):
    """The matches that are followed at a place, and the best one in the row's own text.

    Returns how many are followed, their length, and the own one's: 0 where that is not longer,
    unless `shorter_own`.
    """
    text_S, start = rows.text_BS[row], rows.start_B[row]
    owner, oldest = rows.owner_B[row], rows.oldest_B[row]
    here, count, length = place.here, place.matches, place.length
    alike_F = np.empty(found_F.size, np.int32)
    if count == 0 and oldest != NONE:
        count, length = longest_matches(
            log.tokens_C, log.owner_C, log.chain_GC, log.bucket_GH,
            owner, oldest, rule.steps, text_S, start, here, found_F, alike_F,
        )  # fmt: skip
    own_length = 0
    if rule.own_text and length < GRAMS[-1]:
        _, own_length = longest_matches(
            text_S, log.owner_C[:0], rows.chain_BGS[row], rows.bucket_BGH[row],
            0, 0, rule.steps, text_S, 0, here, own_F, alike_F, 0 if shorter_own else length,
        )  # fmt: skip
    if length == own_length == 0 and oldest != NONE:
        count = pick_up(log, rule, owner, oldest, text_S, start, here, found_F, alike_F)
    return count, length, own_length


@kernel
def candidate_law(log, rows, rule, row, place, found_F, own_F, ids_X, mass_X):
    """What the drafter takes for the next token's law: masses, not normalised.

    The text behind the row's end holds the draft so far, and `found_F` the matches; both are the
    caller's.

    Returns:
        How many candidates, the length of the match that they continue, and the place as the
        search has left it.
    """
    count, length, own_length = matches_at(log, rows, rule, row, place, found_F, own_F, False)
    place = Place(place.here, np.int64(count), np.int64(length))
    if own_length > length:
        ids_X[0], mass_X[0] = rows.text_BS[row, own_F[0] + 1], 1.0
        return 1, own_length, place
    return gather(log, rule, found_F, count, ids_X, mass_X), length, place


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
    count = follow(log, found_F, place.matches, token)
    length = min(place.length + 1, LONGEST) if count > 0 else 0
    return Place(place.here + 1, np.int64(count), np.int64(length))
