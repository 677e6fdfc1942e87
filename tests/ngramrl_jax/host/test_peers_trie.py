"""The compressed forest against all strings in a dictionary."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host.peers.trie import SuffixForest
from ngramrl_jax.host.peers.trie_kernels import NONE, find_child
from tests.support.suffix_reference import PlainTree, String

# What happens to a forest: a tree gets a text, an open text goes on, is closed, loses a weight, or
# a tree loses its oldest text; which one is drawn as a number and taken modulo the choices.
_ACTION = st.tuples(
    st.sampled_from(["open", "extend", "extend", "extend", "close", "weaken", "drop"]),
    st.integers(0, 100),
    st.lists(st.integers(0, 2), min_size=1, max_size=9),
)


def _children(forest: SuffixForest, node: int) -> list[int]:
    nodes, found = forest.pool.nodes_N, []
    child = nodes["first"][node]
    while child != NONE:
        assert find_child(forest.pool, node, nodes["token"][child]) == child
        assert nodes["parent"][child] == node
        found.append(int(child))
        child = nodes["next"][child]
    return found


def _strings(forest: SuffixForest, root: int) -> tuple[dict[String, int], dict[String, list[int]]]:
    """Counts and ordered children of every string that a tree has."""
    pool = forest.pool
    counts: dict[String, int] = {(): int(pool.nodes_N["count"][root])}
    children: dict[String, list[int]] = {}
    waiting: list[tuple[int, String]] = [(root, ())]
    while waiting:
        node, string = waiting.pop()
        children[string] = []
        for child in _children(forest, node):
            one = pool.nodes_N[child]
            at = int(pool.texts_X["at"][one["text"]]) + int(one["start"])
            label = [int(token) for token in pool.tokens_S[at : at + one["length"]]]
            assert label[0] == one["token"]
            children[string].append(label[0])
            for size in range(1, len(label) + 1):
                counts[*string, *label[:size]] = int(one["count"])
                if size < len(label):
                    children[*string, *label[:size]] = [label[size]]
            waiting.append((child, (*string, *label)))
    return counts, children


class _Pair:
    """A forest of two trees and their plain likenesses, through the same actions."""

    def __init__(self, depth: int) -> None:
        self.forest = SuffixForest(depth)
        self.roots = [self.forest.plant(), self.forest.plant()]
        self.plain = [PlainTree(depth), PlainTree(depth)]
        self.texts: list[list[tuple[int, list[int]]]] = [[], []]
        self.open: set[int] = set()

    def act(self, action: str, which: int, tokens: list[int]) -> None:
        tree, rest = which % 2, which // 2
        texts = self.texts[tree]
        if action == "open":
            weight = 1 + rest % 3
            text = self.forest.open_text(self.roots[tree], weight)
            texts.append((text, self.plain[tree].open_text(weight)))
            self.open.add(text)
        elif texts:
            text, plain = texts[rest % len(texts)]
            if action == "extend" and text in self.open:
                self.forest.extend(text, np.array(tokens, np.int32))
                self.plain[tree].extend(plain, tokens)
            elif action == "close" and text in self.open:
                self.forest.close_text(text)
                self.open.remove(text)
            elif action == "weaken" and text not in self.open:
                if self.forest.pool.texts_X["weight"][text] > 1:
                    self.forest.weaken(text)
                    self.plain[tree].weaken(plain)
            elif action == "drop":
                oldest, _ = texts.pop(0)
                assert self.forest.drop_oldest(self.roots[tree]) == oldest
                self.plain[tree].drop_oldest()
                self.open.discard(oldest)

    def check(self) -> None:
        for root, plain in zip(self.roots, self.plain, strict=True):
            counts, children = _strings(self.forest, root)
            assert counts == plain.counts
            assert children == plain.children
        held = sum(len(text) for plain in self.plain for text in plain.texts)
        assert self.forest.held_tokens == held
        assert self.forest.nodes <= 2 * held + 2


@settings(max_examples=80, deadline=None)
@given(depth=st.integers(1, 6), actions=st.lists(_ACTION, min_size=10, max_size=60))
def test_counts_and_order_of_children_equal_those_of_all_strings(depth, actions):
    pair = _Pair(depth)
    for action in actions:
        pair.act(*action)
    pair.check()


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, 3), max_size=30), min_size=1, max_size=8))
def test_a_count_is_the_number_of_occurrences(texts):
    forest, occurrences = SuffixForest(5), Counter()
    root = forest.plant()
    for tokens in texts:
        text = forest.open_text(root)
        forest.extend(text, np.array(tokens, np.int32))
        occurrences.update(
            tuple(tokens[start:end])
            for start in range(len(tokens))
            for end in range(start, min(len(tokens), start + 5) + 1)
        )
    counts, _ = _strings(forest, root)
    assert +Counter(counts) == Counter({s: n for s, n in occurrences.items() if s}) + Counter(
        {(): sum(map(len, texts))}
    )


def test_a_forest_that_gives_up_what_it_takes_in_does_not_grow():
    rng = np.random.default_rng(0)
    forest = SuffixForest(24)
    root = forest.plant()
    sizes = []
    for turn in range(300):
        text = forest.open_text(root)
        forest.extend(text, rng.integers(0, 50, 100).astype(np.int32))
        forest.close_text(text)
        if turn >= 10:
            forest.drop_oldest(root)
        sizes.append(forest.nbytes)
    assert sizes[20] == sizes[-1]
    assert forest.held_tokens == 1000
    while forest.texts_of(root):
        forest.drop_oldest(root)
    assert (forest.nodes, forest.held_tokens) == (1, 0)


def test_a_stored_token_takes_at_most_250_bytes():
    rng = np.random.default_rng(0)
    forest = SuffixForest(64)
    root = forest.plant()
    for _ in range(60):
        text = forest.open_text(root)
        forest.extend(text, rng.integers(0, 5000, 500).astype(np.int32))
        forest.close_text(text)
    assert forest.nbytes / forest.held_tokens < 250


def test_depth_is_checked():
    with pytest.raises(ValueError, match="depth: found 0, allowed: 1 or more"):
        SuffixForest(0)
