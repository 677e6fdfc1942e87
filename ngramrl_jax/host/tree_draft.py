# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""The kernels that draft trees: again and again, the candidate most likely reached becomes a node.

Best first, no tree of as many nodes has a larger expected number of kept tokens, if the chances are
right (as for DDTree, propositions 1 and 2). A candidate x of mass q after a match of m tokens is
taken to be what the target says there with chance

    (m + 0.3) / (m + 1)  *  exp((log q(x) + g(x)) / s) / the sum of that over all candidates

where g is the target's own Gumbel noise at that position. The target says the largest log p + g; if
its log p differs from log q by Gumbel noise of scale s, the second factor is the chance of each.
How good q is hangs on the match: s = 2.8 / sqrt(m), as our traces have it from m = 1 to 31 on two
workloads (DECISIONS.md). The first factor is for what no match has said. Without the row's key g is
0 and s is 1: the shares themselves.

Legend: B rows, N nodes of a tree, X candidates for one token, F matches followed, D candidates kept
for one token, E candidates after all nodes.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.host.candidates import CANDIDATES, Place, candidate_law, one_on, start_of_draft
from ngramrl_jax.host.draft import Rows, Rule
from ngramrl_jax.host.kernel import borrowed, kernel
from ngramrl_jax.host.log import Log
from ngramrl_jax.host.noise import exponential, threefry
from ngramrl_jax.host.search import LONGEST
from ngramrl_jax.types import Int32Array

BRANCHES = 8  # children of a node, at most
_UNLIKELY = 2.0**-10  # a candidate of a smaller share is not worth its noise
_SCALE = 2.8
_SEEN = 0.3
_WHOLE = 4 * LONGEST  # how long matches of LONGEST tokens or more are taken to be
_ROOT = 0


class _Open(NamedTuple):
    """Candidates after all nodes.

    Attributes:
        parent_E: int32, the node that each comes after.
        token_E: int32.
        reach_E: float64, how likely it is reached; 0 once it is a node.
    """

    parent_E: Int32Array
    token_E: Int32Array
    reach_E: NDArray[np.float64]


@kernel
def _weigh(ids_X, mass_X, candidates, matched, keyed, key_W, position):
    """Turns masses into what chances are proportional to, 0 for unlikely ones; returns the sum."""
    total = mass_X[:candidates].sum()
    likely = 0
    for x in range(candidates):
        if mass_X[x] < _UNLIKELY * total:
            mass_X[x] = 0.0
        likely += mass_X[x] > 0.0
    if keyed and likely > 1:
        high, low = threefry(key_W[0], key_W[1], np.uint32(0), np.uint32(position))
        for x in range(candidates):
            if mass_X[x] > 0.0:
                mass_X[x] /= exponential(high, low, ids_X[x])
        largest = mass_X[:candidates].max()
        power = math.sqrt(max(matched, 1)) / _SCALE
        for x in range(candidates):
            mass_X[x] = (mass_X[x] / largest) ** power
    return mass_X[:candidates].sum()


@kernel
def _open_best(ids_X, weight_X, candidates, node, scale, opened, entries):
    """Lists the best candidates after a node, best first; returns how many entries there are."""
    for _ in range(min(candidates, BRANCHES)):
        best = np.argmax(weight_X[:candidates])
        if weight_X[best] == 0.0:
            break
        opened.parent_E[entries] = node
        opened.token_E[entries] = ids_X[best]
        opened.reach_E[entries] = scale * weight_X[best]
        weight_X[best] = 0.0
        entries += 1
    return entries


@kernel
def _write_way(text_S, end, tokens_N, parent_N, node, depth):
    """Puts the tokens on the way to a node behind the row's text."""
    while node != _ROOT:
        depth -= 1
        text_S[end + depth] = tokens_N[node - 1]
        node = parent_N[node - 1]


@kernel
def _grow(log, rows, rule, row, limit, tokens_N, parent_N):
    """Grows a row's tree; returns its nodes, those of its longest branch, and the match's length.

    The places after its nodes are kept: how long the text is there, and which matches go on.
    """
    nodes = tokens_N.size
    text_S, end = rows.text_BS[row], rows.end_B[row]
    keyed, key_W = rule.noise and rows.keyed_B[row], rows.key_BW[row]
    depth_N = np.zeros(nodes + 1, np.int64)
    matches_N, length_N = np.zeros_like(depth_N), np.zeros_like(depth_N)
    found_NF, own_F = np.empty((nodes + 1, rule.followed), np.int32), np.empty(1, np.int32)
    ids_X, mass_X = np.empty(CANDIDATES, np.int32), np.empty(CANDIDATES, np.float64)
    most = (nodes + 1) * BRANCHES
    opened = _Open(np.empty(most, np.int32), np.empty(most, np.int32), np.zeros(most, np.float64))
    place, reach = start_of_draft(rows, row), 1.0
    entries = deepest = first_length = 0
    for node in range(nodes + 1):
        if node > _ROOT:
            if entries == 0:
                return 0, 0, 0
            best = np.argmax(opened.reach_E[:entries])
            reach = opened.reach_E[best]
            if reach == 0.0:
                return node - 1, deepest, first_length
            opened.reach_E[best] = 0.0
            parent, token = opened.parent_E[best], opened.token_E[best]
            tokens_N[node - 1], parent_N[node - 1] = token, parent
            depth_N[node] = depth_N[parent] + 1
            deepest = max(deepest, depth_N[node])
            found_NF[node] = found_NF[parent]
            matches, length = np.int64(matches_N[parent]), np.int64(length_N[parent])
            before = Place(end + depth_N[parent], matches, length)
            place = one_on(log, before, found_NF[node], token)
        if node == nodes or depth_N[node] == limit:
            continue
        _write_way(text_S, end, tokens_N, parent_N, node, depth_N[node])
        candidates, matched, place = candidate_law(
            log, rows, rule, row, place, found_NF[node], own_F, ids_X, mass_X
        )
        matches_N[node], length_N[node] = place.matches, place.length
        if node == _ROOT:
            first_length = matched
        known = matched if matched < LONGEST else _WHOLE
        weight = _weigh(ids_X, mass_X, candidates, known, keyed, key_W, place.here)
        if weight > 0.0:
            scale = reach * (known + _SEEN) / (known + 1.0) / weight
            entries = _open_best(ids_X, mass_X, candidates, node, scale, opened, entries)
    return nodes, deepest, first_length


@kernel
def draft_trees(
    log: Log,
    rows: Rows,
    rule: Rule,
    first: int,
    last: int,
    wanted_B: Int32Array,
    tokens_BN: Int32Array,
    parent_BN: Int32Array,
    count_B: Int32Array,
    deepest_B: Int32Array,
    match_B: Int32Array,
) -> None:
    """Drafts trees for the rows from `first` to before `last`, at most `wanted_B` tokens deep.

    Arrays as in `ngramrl_jax.host.trees.DraftTrees`; `match_B` becomes the length of the match that
    a tree starts from. Several threads may draft different rows at the same time.
    """
    log, rows = borrowed(log), borrowed(rows)
    for row in range(first, last):
        if wanted_B[row] > 0:
            wanted = np.int64(wanted_B[row])
            count_B[row], deepest_B[row], match_B[row] = _grow(
                log, rows, rule, row, wanted, tokens_BN[row], parent_BN[row]
            )


@kernel
def true_depths(
    tokens_BN: Int32Array, parent_BN: Int32Array, count_B: Int32Array, ahead_BT: Int32Array
) -> Int32Array:
    """How many of the tokens ahead are nodes one after the other, from the root on: int32 [B].

    Of siblings that say the same the first one counts, as in `verify.tree`.
    """
    accepted_B = np.zeros(count_B.size, np.int32)
    for row in range(count_B.size):
        at = _ROOT
        # A node comes after its parent: one pass meets the nodes on the way in their order.
        for node in range(1, count_B[row] + 1):
            here = accepted_B[row]
            if parent_BN[row, node - 1] == at and tokens_BN[row, node - 1] == ahead_BT[row, here]:
                at, accepted_B[row] = node, here + 1
    return accepted_B
