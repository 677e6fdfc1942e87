# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""Drafts that branch, in replay: the best-first tree of so many nodes, walked by the true tokens.

The tree starts from the row's text. Again and again, of all candidates after any node, the one most
likely to be reached becomes a node, so that no tree of as many nodes has a larger expected number
of kept tokens (if the chances are right). The target then walks from the root: it samples a token
and follows the child that is this token, if there is one. How likely a candidate is after its node:

* Without the row's key: its share of the mass of the candidate law.
* With it, candidates are ranked by log mass + the target's noise, as a chain's draft is chosen, and
  the r-th guess is right as often as it was in the steps before, after matches of about this length
  and with the best two guesses about this far apart.

A tree of K nodes costs the target as much as a chain of K tokens: both put K + 1 tokens into it.

Legend: K nodes, N response tokens that a row has yet to say, X candidates for one token, D depth of
the tree, F matches followed, E candidates after all nodes, M buckets, Z ranks.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.drafting.foreseen import ForeseenDrafter, kernel
from ngramrl_jax.host.candidates import CANDIDATES, Place, candidate_law, one_on, start_of_draft
from ngramrl_jax.host.draft import Rows, Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.host.log import NONE
from ngramrl_jax.host.ngram import DEFAULT_RULE
from ngramrl_jax.host.noise import gumbel, threefry
from ngramrl_jax.types import Int32Array, Rollout

_LENGTHS = 7  # buckets of match lengths: 0, 1, 2 to 3, ... 32 and more
_GAPS = 6  # buckets of gaps between the scores of the best two: under 0.5, 1, 2, 4, more, no second
_ROOT = 0

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


class TreeDrafts(ForeseenDrafter):
    """Keeps the true tokens that a tree of K nodes holds.

    Attributes:
        chance_MZ: float64, how often the guess of each rank is taken to be right.
    """

    def __init__(
        self,
        rows: int,
        draft_tokens: int,
        history: History,
        rule: Rule = DEFAULT_RULE,
        branches: int = 8,
    ) -> None:
        """A drafter for idle rows.

        Args:
            rows: B.
            draft_tokens: K.
            history: Rollouts to draft from.
            rule: How the candidate laws are found, and whether the noise is used.
            branches: Children of a node, at most; 1 makes the tree a chain.
        """
        super().__init__(rows, draft_tokens, history, rule)
        self._right_MZ = np.zeros((_LENGTHS * _GAPS, branches))
        self._seen_M = np.zeros(_LENGTHS * _GAPS)
        self.end_batch()

    def end_batch(self) -> None:
        """A step is done: from now on its guesses count. Before the first: 4/5, 4/25 and so on."""
        prior_1Z = 4 * 0.2 ** np.arange(1, self._right_MZ.shape[1] + 1)[None, :]
        self.chance_MZ = (self._right_MZ + prior_1Z) / (self._seen_M[:, None] + 1)

    def kept(self, rows: Rows, row: int, rollout: Rollout, said: int, limit: int) -> int:
        """How far the true tokens lead into the tree."""
        return _kept(
            self.history.log,
            rows,
            self._rule,
            row,
            rollout.tokens_N[said : said + limit],
            limit,
            self.draft_tokens,
            self.chance_MZ,
            self._right_MZ,
            self._seen_M,
        )


class _Tree(NamedTuple):
    """Nodes, of which 0 is the root, and all candidates after them, of which some became nodes.

    Attributes:
        text_KD: int32, the tokens on the way to a node.
        depth_K: int64, how many they are.
        found_KF: int32, matches that are followed after it.
        count_K: int64, how many they are.
        length_K: int64, their length.
        bucket_K: int64, where its guesses are counted; NONE where it has none.
        parent_E: int32, the node that a candidate comes after.
        token_E: int32.
        rank_E: int32, its place among the candidates after the same node.
        reach_E: float64, how likely it is reached; 0 once it is a node.
        node_E: int32, the node that it became; the root where it became none.
    """

    text_KD: Int32Array
    depth_K: Counts
    found_KF: Int32Array
    count_K: Counts
    length_K: Counts
    bucket_K: Counts
    parent_E: Int32Array
    token_E: Int32Array
    rank_E: Int32Array
    reach_E: Floats
    node_E: Int32Array


@kernel
def _kept(log, rows, rule, row, ahead_N, limit, nodes, chance_MZ, right_MZ, seen_M):
    """Grows the tree and walks it; counts on the way which guesses were right."""
    most = (nodes + 1) * chance_MZ.shape[1]
    tree = _Tree(
        text_KD=np.empty((nodes + 1, limit), np.int32),
        depth_K=np.zeros(nodes + 1, np.int64),
        found_KF=np.empty((nodes + 1, rule.followed), np.int32),
        count_K=np.zeros(nodes + 1, np.int64),
        length_K=np.zeros(nodes + 1, np.int64),
        bucket_K=np.full(nodes + 1, NONE, np.int64),
        parent_E=np.empty(most, np.int32),
        token_E=np.empty(most, np.int32),
        rank_E=np.empty(most, np.int32),
        reach_E=np.zeros(most, np.float64),
        node_E=np.full(most, _ROOT, np.int32),
    )
    start = start_of_draft(rows, row)
    entries = _branch(log, rows, rule, row, start, tree, _ROOT, 1.0, chance_MZ, 0)
    for node in range(1, nodes + 1):
        best = np.argmax(tree.reach_E)
        reach = tree.reach_E[best]
        if reach == 0.0:
            break
        place = _become_node(log, tree, best, node, start.here)
        if tree.depth_K[node] < limit:
            entries = _branch(log, rows, rule, row, place, tree, node, reach, chance_MZ, entries)
    return _walk(tree, entries, ahead_N, right_MZ, seen_M)


@kernel
def _become_node(log, tree, entry, node, start):
    """Makes a candidate a node; returns the place after it."""
    parent, token = tree.parent_E[entry], tree.token_E[entry]
    depth = tree.depth_K[parent]
    tree.text_KD[node, :depth] = tree.text_KD[parent, :depth]
    tree.text_KD[node, depth] = token
    tree.depth_K[node] = depth + 1
    tree.found_KF[node] = tree.found_KF[parent]
    tree.node_E[entry] = node
    tree.reach_E[entry] = 0.0
    before = Place(start + depth, tree.count_K[parent], tree.length_K[parent])
    return one_on(log, before, tree.found_KF[node], token)


@kernel
def _branch(log, rows, rule, row, place, tree, node, reach, chance_MZ, entries):
    """Lists the best candidates after a node behind the `entries` there are; returns how many."""
    depth = tree.depth_K[node]
    rows.text_BS[row, place.here - depth : place.here] = tree.text_KD[node, :depth]
    own_F = np.empty(1, np.int32)
    ids_X, mass_X = np.empty(CANDIDATES, np.int32), np.empty(CANDIDATES, np.float64)
    candidates, matched, place = candidate_law(
        log, rows, rule, row, place, tree.found_KF[node], own_F, ids_X, mass_X
    )
    tree.count_K[node], tree.length_K[node] = place.matches, place.length
    if candidates == 0:
        return entries
    score_X = np.log(mass_X[:candidates])
    keyed = rule.noise and rows.keyed_B[row]
    if keyed:
        key_W = rows.key_BW[row]
        high, low = threefry(key_W[0], key_W[1], np.uint32(0), np.uint32(place.here))
        for x in range(candidates):
            score_X[x] += gumbel(high, low, ids_X[x])
    share_X = mass_X[:candidates] / mass_X[:candidates].sum()
    order_X = np.argsort(-score_X, kind="mergesort")
    bucket = _bucket(matched, score_X, order_X)
    tree.bucket_K[node] = bucket
    for rank in range(min(candidates, chance_MZ.shape[1])):
        chance = chance_MZ[bucket, rank] if keyed else share_X[order_X[rank]]
        tree.parent_E[entries], tree.token_E[entries] = node, ids_X[order_X[rank]]
        tree.rank_E[entries], tree.reach_E[entries] = rank, reach * chance
        entries += 1
    return entries


@kernel
def _bucket(matched, score_X, order_X):
    """Where guesses after such a match, so far apart, are counted."""
    length = 0
    while matched > 0 and length < _LENGTHS - 1:
        matched //= 2
        length += 1
    gap = _GAPS - 1
    if order_X.size > 1:
        apart = score_X[order_X[0]] - score_X[order_X[1]]
        gap = 0
        while gap < _GAPS - 2 and apart >= 0.5 * 2.0**gap:
            gap += 1
    return length * _GAPS + gap


@kernel
def _walk(tree, entries, ahead_N, right_MZ, seen_M):
    """How many of the true tokens are nodes, one after the other."""
    node = _ROOT
    for n in range(ahead_N.size):
        bucket = tree.bucket_K[node]
        if bucket == NONE:
            return n
        seen_M[bucket] += 1
        parent, node = node, _ROOT
        for entry in range(entries):
            if tree.parent_E[entry] == parent and tree.token_E[entry] == ahead_N[n]:
                right_MZ[bucket, tree.rank_E[entry]] += 1
                node = tree.node_E[entry]
        if node == _ROOT:
            return n
    return ahead_N.size
