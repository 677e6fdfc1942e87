# ruff: noqa: ANN001, ANN201 (Numba infers the types of kernels)
"""The matches that a draft follows: what they say comes next, and where they stand one token on.

Legend: C positions of the log, F matches that are followed, X candidates for one token.
"""

import numpy as np

from ngramrl_jax.host.kernel import inlined, kernel
from ngramrl_jax.host.laws import WHOLE
from ngramrl_jax.host.log import NONE, START
from ngramrl_jax.host.search import longest_matches


@kernel
def vote(ids_X, mass_X, count, token, mass):
    """Adds to a candidate's mass; returns how many candidates there are."""
    for x in range(count):
        if ids_X[x] == token:
            mass_X[x] += mass
            return count
    if count == ids_X.size:
        return count
    ids_X[count] = token
    mass_X[count] = mass
    return count + 1


@inlined
def gather(log, rule, found_F, count, ids_X, mass_X):
    """The laws at the followed positions, added up; returns the number of candidates."""
    candidates = 0
    for f in range(count):
        position = found_F[f]
        first, last = log.law_C[position], log.law_C[position + 1]
        if not rule.laws:
            last = first
        drawn = log.tokens_C[position + 1]
        rest = WHOLE
        for entry in range(first, last):
            mass = np.int64(log.probs_E[entry])
            candidates = vote(ids_X, mass_X, candidates, log.ids_E[entry], mass)
            rest -= mass
            if log.ids_E[entry] == drawn:
                drawn = NONE
        if drawn != NONE and rest > 0:
            # The drawn token stands for all that the law does not list.
            candidates = vote(ids_X, mass_X, candidates, drawn, rest)
    return candidates


@inlined
def follow(log, found_F, count, token):
    """Keeps the matches that `token` follows, one token on; returns how many."""
    kept = 0
    for f in range(count):
        if log.tokens_C[found_F[f] + 1] == token:
            found_F[kept] = found_F[f]
            kept += 1
    return go_on(log, found_F, kept)


@inlined
def go_on(log, found_F, count):
    """Moves the matches one token on and drops those that end there; returns how many stay."""
    kept = 0
    for f in range(count):
        after = found_F[f] + 1
        if after + 1 < log.used[0] and log.tokens_C[after + 1] != START:
            found_F[kept] = after
            kept += 1
    return kept


@kernel
def pick_up(log, rule, owner, oldest, text_S, start, here, found_F, alike_F):
    """Where the matches stand that ended at tokens which no rollout has: as if each replaced one.

    Returns how many there are.
    """
    for skipped in range(1, min(rule.skipped, here - start + 1) + 1):
        count, _ = longest_matches(
            log.tokens_C, log.owner_C, log.chain_GC, log.bucket_GH,
            owner, oldest, rule.steps, text_S, start, here - skipped, found_F, alike_F,
        )  # fmt: skip
        if count > 0:
            for _ in range(skipped):
                count = go_on(log, found_F, count)
            return count
    return 0
