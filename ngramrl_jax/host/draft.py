# ruff: noqa: ANN001, ANN201 (Numba infers the types of kernels)
"""The kernels that draft: follow the best matches, guess each token, search again where they end.

Legend: B rows, K draft budget, C positions of the log, S positions of a row's text, G gram sizes,
H buckets, F matches that are followed, X candidates for one token, W words of a key.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.host.kernel import alive, borrowed, inlined, kernel
from ngramrl_jax.host.log import GRAMS, NONE, Log, chain_up
from ngramrl_jax.host.matches import follow, gather, pick_up
from ngramrl_jax.host.noise import fill_words, threefry, uniform
from ngramrl_jax.host.search import LONGEST, longest_matches
from ngramrl_jax.types import BoolArray, Int32Array, UInt32Array

_CANDIDATES = 128
_UNLIKELY = 2.0**-10  # a candidate of a smaller share is not worth its noise


class Rule(NamedTuple):
    """How the drafter guesses. DECISIONS.md has what each choice is worth.

    Attributes:
        followed: Matches that are asked, of the longest those whose surroundings are most alike.
        steps: Newest positions of a chain that are looked at in search of them.
        skipped: Tokens in a row that no rollout has, after which a match is still picked up.
        own_text: Whether the row's own prompt and response are searched too, where what the history
            matches is shorter than `log.GRAMS[-1]` tokens.
        laws: Whether matches are asked for the policy's law; else for the token that was drawn.
        noise: Whether the target's noise is used where the row's key is known.
    """

    followed: int = 6
    steps: int = 16
    skipped: int = 8
    own_text: bool = True
    laws: bool = True
    noise: bool = True


class Rows(NamedTuple):
    """What the kernels know of the rows.

    Attributes:
        text_BS: int32, prompt and response, with room for a draft behind them.
        start_B: int32, where the response starts.
        end_B: int32, where the text ends.
        owner_B: int32, the id of the prompt.
        oldest_B: int32, where its history begins in the log; NONE where it has none.
        key_BW: uint32, the row's key.
        keyed_B: bool, whether the key is known.
        noted_B: int32, positions of the row's own text that are chained.
        chain_BGS: int32, its chains.
        bucket_BGH: int32, and their newest positions.
    """

    text_BS: Int32Array
    start_B: Int32Array
    end_B: Int32Array
    owner_B: Int32Array
    oldest_B: Int32Array
    key_BW: UInt32Array
    keyed_B: BoolArray
    noted_B: Int32Array
    chain_BGS: Int32Array
    bucket_BGH: Int32Array


class Scratch(NamedTuple):
    """Room to work in, for one row after another.

    Attributes:
        found_F: int32, the matches that are followed.
        alike_F: int32, see `search.longest_matches`.
        own_F: int32 [1], the best match in the row's own text.
        ids_X: int32, candidates for a token.
        mass_X: float64, what speaks for them.
        words_X: uint32, their noise.
    """

    found_F: Int32Array
    alike_F: Int32Array
    own_F: Int32Array
    ids_X: Int32Array
    mass_X: NDArray[np.float64]
    words_X: UInt32Array


@kernel
def empty_scratch(rule: Rule) -> Scratch:
    """Room for the drafts of a rule."""
    return Scratch(
        np.empty(rule.followed, np.int32),
        np.empty(rule.followed, np.int32),
        np.empty(1, np.int32),
        np.empty(_CANDIDATES, np.int32),
        np.empty(_CANDIDATES, np.float64),
        np.empty(_CANDIDATES, np.uint32),
    )


@inlined
def guess(ids_X, mass_X, words_X, candidates, keyed, key_W, position):
    """The token that the target will draw if the candidates' masses are its law.

    Without the key: the most likely one. Among equals the one that was found first.
    """
    best, total = 0, 0.0
    for x in range(candidates):
        total += mass_X[x]
        if mass_X[x] > mass_X[best]:
            best = x
    if not keyed or mass_X[best] > (1 - _UNLIKELY) * total:
        return ids_X[best]
    high, low = threefry(key_W[0], key_W[1], np.uint32(0), np.uint32(position))
    # The largest log mass + Gumbel noise, with one logarithm instead of three.
    fill_words(high, low, ids_X[:candidates], words_X)
    soonest = math.inf
    for x in range(candidates):
        u = uniform(words_X[x])
        # -log u > 1 - u: most candidates come too late whatever their logarithm is.
        if mass_X[x] >= _UNLIKELY * total and 1.0 - u < soonest * mass_X[x]:
            time = -math.log(u) / mass_X[x]
            if time < soonest:
                best, soonest = x, time
    return ids_X[best]


@kernel
def draft_row(log, rows, rule, scratch, row, limit, draft_K):
    """Drafts one row; returns the draft's length and that of the match it starts from.

    The arrays should be `borrowed`.
    """
    text_S, start, end = rows.text_BS[row], rows.start_B[row], rows.end_B[row]
    chain_GS, bucket_GH = rows.chain_BGS[row], rows.bucket_BGH[row]
    owner, oldest = rows.owner_B[row], rows.oldest_B[row]
    everyone_C = log.owner_C[:0]
    for position in range(rows.noted_B[row], end - 1):
        chain_up(text_S, chain_GS, bucket_GH, position, 0)
    rows.noted_B[row] = max(rows.noted_B[row], end - 1)
    found_F, alike_F, own_F, ids_X, mass_X, words_X = scratch
    keyed, key_W = rule.noise and rows.keyed_B[row], rows.key_BW[row]
    count = length = first_length = 0
    for drafted in range(limit):
        here = end + drafted
        if count == 0 and oldest != NONE:
            count, length = longest_matches(
                log.tokens_C, log.owner_C, log.chain_GC, log.bucket_GH,
                owner, oldest, rule.steps, text_S, start, here, found_F, alike_F,
            )  # fmt: skip
        own_length = 0
        if rule.own_text and length < GRAMS[-1]:
            _, own_length = longest_matches(
                text_S, everyone_C, chain_GS, bucket_GH,
                0, 0, rule.steps, text_S, 0, here, own_F, alike_F, length,
            )  # fmt: skip
        if length == own_length == 0 and oldest != NONE:
            count = pick_up(log, rule, owner, oldest, text_S, start, here, found_F, alike_F)
        if own_length > length:
            token = text_S[own_F[0] + 1]
        elif count > 0:
            candidates = gather(log, rule, found_F, count, ids_X, mass_X)
            token = guess(ids_X, mass_X, words_X, candidates, keyed, key_W, here)
        else:
            return drafted, first_length
        if drafted == 0:
            first_length = max(length, own_length)
        draft_K[drafted] = token
        text_S[here] = token
        count = follow(log, found_F, count, token)
        length = min(length + 1, LONGEST) if count > 0 else 0
    return limit, first_length


@kernel
def draft_rows(
    log: Log,
    rows: Rows,
    rule: Rule,
    first: int,
    last: int,
    wanted_B: Int32Array,
    draft_BK: Int32Array,
    length_B: Int32Array,
    match_B: Int32Array,
) -> None:
    """Drafts the rows from `first` to before `last` that want some tokens; idle ones want none.

    `length_B` and `match_B` become the lengths of their drafts and of the matches that these start
    from. Several threads may draft different rows at the same time.
    """
    mine = empty_scratch(rule)
    log, rows, scratch = borrowed(log), borrowed(rows), borrowed(mine)
    for row in range(first, last):
        if wanted_B[row] > 0:
            wanted = np.int64(wanted_B[row])
            length_B[row], match_B[row] = draft_row(
                log, rows, rule, scratch, row, wanted, draft_BK[row]
            )
    alive(mine)
