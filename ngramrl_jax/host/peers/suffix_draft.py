# ruff: noqa: ANN001, ANN201, ANN202 (Numba infers the types of kernels)
"""Which continuation SuffixDecoding reads off a suffix tree (Oliaro et al., arXiv 2411.04975).

Every suffix of the context that the tree has, from one token up to all but one of the last
`depth`, is continued along its most frequent children. A draft's probability starts at 1 and is
multiplied, token by token, by the child's share; the draft ends where it falls below `min_prob`, or
at `factor` tokens for each token matched. A draft scores the sum of its tokens' probabilities.
The highest score wins; of equals the longer match, and the tree that is asked first.
Arithmetic is float32 as in ArcticInference 0.3.0, so that equal means equal.

Legend: B rows, S capacity of a row's text, F trees of a row, K draft budget.
"""

from dataclasses import dataclass

import numpy as np

from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.host.peers.trie_kernels import NONE, find_child


@dataclass(frozen=True)
class SuffixRule:
    """How far a suffix tree is trusted.

    Attributes:
        depth: Longest match and draft together.
        factor: Draft tokens allowed for each matched one.
        offset: Draft tokens allowed on top.
        min_prob: Least probability of a drafted token.
        max_tokens: Draft tokens at most, whatever the budget.
        over_siblings: A child's share is of its siblings' counts (SRT), not of its parent's, which
            also counts the texts that end there (ArcticInference).

    Raises:
        ValueError: A setting lies outside its range.
    """

    depth: int
    factor: float = 1.0
    offset: float = 0.0
    min_prob: float = 0.1
    max_tokens: int = 1 << 30
    over_siblings: bool = False

    def __post_init__(self) -> None:
        allowed = {
            "depth": self.depth >= 1,
            "factor": self.factor >= 0,
            "offset": abs(self.offset) < float("inf"),
            "min_prob": 0 <= self.min_prob <= 1,
            "max_tokens": self.max_tokens >= 0,
        }
        for name, fits in allowed.items():
            if not fits:
                raise ValueError(
                    f"{name}: found {getattr(self, name)}, allowed: a depth of 1 or more, factors "
                    "and lengths of 0 or more, finite offsets, probabilities"
                )


@kernel
def _locate(pool, root, text_S, begin, end):
    """Node in which `text_S[begin:end]` ends, and how many of its label's tokens are read."""
    nodes, texts, tokens_S = pool.nodes_N, pool.texts_X, pool.tokens_S
    node, read, at, length = root, 0, 0, 0
    for position in range(begin, end):
        if read == length:
            node, read = find_child(pool, node, text_S[position]), 0
            if node == NONE:
                break
            at, length = texts[nodes[node].text].at + nodes[node].start, nodes[node].length
        elif tokens_S[at + read] != text_S[position]:
            node = NONE
            break
        read += 1
    return node, read


@kernel
def _whole(pool, node, over_siblings):
    """What a child's count is a share of."""
    if not over_siblings:
        return pool.nodes_N[node].count
    whole = 0
    child = pool.nodes_N[node].first
    while child != NONE:
        whole += pool.nodes_N[child].count
        child = pool.nodes_N[child].next
    return whole


@kernel
def _follow(pool, node, read, allowed, min_prob, over_siblings, draft_K):
    """Writes the most frequent continuation; its length and score."""
    length, prob, score = 0, np.float32(1), np.float32(0)
    while length < allowed and prob >= min_prob:
        one = pool.nodes_N[node]
        if read < one.length:
            draft_K[length] = pool.tokens_S[pool.texts_X[one.text].at + one.start + read]
            length += 1
            read += 1
            score += prob
        else:
            if one.first == NONE:
                break
            whole = _whole(pool, node, over_siblings)
            node, read = one.first, 0
            prob *= np.float32(pool.nodes_N[node].count) / np.float32(whole)
    return length, score


@kernel
def _best_of_tree(pool, root, text_S, end, wanted, rule, trial_K, best_K):
    """The best draft of one tree; its length, score and match."""
    depth, factor, offset, min_prob, over_siblings = rule
    length, score, match = 0, np.float32(0), 0
    for size in range(1, min(end, depth)):
        node, read = _locate(pool, root, text_S, end - size, end)
        if node == NONE:
            break
        room = np.float64(np.float32(size) * factor + offset) + 1e-6
        allowed = min(wanted, np.int64(room))
        found, found_score = _follow(pool, node, read, allowed, min_prob, over_siblings, trial_K)
        if found_score >= score:
            length, score, match = found, found_score, size
            best_K[:found] = trial_K[:found]
    return length, score, match


@kernel
def draft_rows(pool, root_BF, text_BS, end_B, wanted_B, rule, draft_BK, length_B, match_length_B):
    """Fills in, for every row that wants one, the best draft of its trees; NONE is no tree."""
    trial_K = np.empty(draft_BK.shape[1], np.int32)
    best_K = np.empty(draft_BK.shape[1], np.int32)
    for row in range(end_B.size):
        if wanted_B[row] <= 0:
            continue
        best = np.float32(-1)
        for root in root_BF[row]:
            if root == NONE:
                continue
            length, score, match = _best_of_tree(
                pool, root, text_BS[row], end_B[row], wanted_B[row], rule, trial_K, best_K
            )
            if score > best:
                best = score
                length_B[row], match_length_B[row] = length, match
                draft_BK[row, :length] = best_K[:length]
                draft_BK[row, length:] = 0


def as_arguments(rule: SuffixRule) -> tuple[int, np.float32, np.float32, np.float32, bool]:
    """The rule as the kernels take it."""
    return (
        rule.depth,
        np.float32(rule.factor),
        np.float32(rule.offset),
        np.float32(rule.min_prob),
        rule.over_siblings,
    )
