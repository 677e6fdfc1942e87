"""Suffix trees and SuffixDecoding in plain Python: every string in a dictionary, slow and obvious.

The rules are those of `ngramrl_jax.host.peers`; nothing is compressed and nothing is shared.
"""

from collections.abc import Sequence

import numpy as np

from ngramrl_jax.host.peers import SuffixRule

String = tuple[int, ...]


class PlainTree:
    """Counts of all strings of up to `depth` tokens, and children in order of frequency."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.counts: dict[String, int] = {(): 0}
        self.children: dict[String, list[int]] = {(): []}
        self.texts: list[list[int]] = []
        self.weights: list[int] = []

    def open_text(self, weight: int = 1) -> list[int]:
        self.texts.append([])
        self.weights.append(weight)
        return self.texts[-1]

    def extend(self, text: list[int], tokens: Sequence[int]) -> None:
        index = next(i for i, one in enumerate(self.texts) if one is text)
        for token in tokens:
            text.append(int(token))
            self.counts[()] += self.weights[index]
            for start in range(max(0, len(text) - self.depth), len(text)):
                for _ in range(self.weights[index]):
                    self._gain(tuple(text[start:]))

    def weaken(self, text: list[int]) -> None:
        index = next(i for i, one in enumerate(self.texts) if one is text)
        self.weights[index] -= 1
        for start in range(len(text)):
            self.counts[()] -= 1
            for end in range(min(len(text), start + self.depth), start, -1):
                self._lose(tuple(text[start:end]))

    def drop_oldest(self) -> list[int]:
        while self.weights[0]:
            self.weaken(self.texts[0])
        self.weights.pop(0)
        return self.texts.pop(0)

    def share(self, string: String, over_siblings: bool) -> np.float32:
        above = string[:-1]
        whole = self.counts[above]
        if over_siblings:
            whole = sum(self.counts[*above, token] for token in self.children[above])
        return np.float32(self.counts[string]) / np.float32(whole)

    def _gain(self, string: String) -> None:
        above, token = string[:-1], string[-1]
        siblings = self.children[above]
        if string not in self.counts:
            self.counts[string] = 1
            self.children[string] = []
            siblings.append(token)
            return
        count = self.counts[string]
        was_first = next(t for t in siblings if self.counts[*above, t] == count) == token
        siblings.remove(token)
        self.counts[string] += 1
        most = count + 2 if was_first else count + 1
        siblings.insert(sum(self.counts[*above, t] >= most for t in siblings), token)

    def _lose(self, string: String) -> None:
        above, token = string[:-1], string[-1]
        siblings = self.children[above]
        siblings.remove(token)
        self.counts[string] -= 1
        if self.counts[string]:
            ahead = sum(self.counts[*above, t] > self.counts[string] for t in siblings)
            siblings.insert(ahead, token)
        else:
            del self.counts[string], self.children[string]


def plain_draft(
    tree: PlainTree, context: Sequence[int], wanted: int, rule: SuffixRule
) -> tuple[list[int], np.float32, int]:
    """The best draft of one tree, its score and the length of its match."""
    recent = tuple(int(token) for token in context[-rule.depth :])
    best: tuple[list[int], np.float32, int] = ([], np.float32(0), 0)
    for size in range(1, len(recent)):
        string = recent[len(recent) - size :]
        if string not in tree.counts:
            break
        room = np.float32(size) * np.float32(rule.factor) + np.float32(rule.offset)
        allowed = min(wanted, rule.max_tokens, int(float(room) + 1e-6))
        draft, prob, score = [], np.float32(1), np.float32(0)
        while len(draft) < allowed and tree.children[string]:
            string = (*string, tree.children[string][0])
            prob *= tree.share(string, rule.over_siblings)
            if prob < np.float32(rule.min_prob):
                break
            draft.append(string[-1])
            score += prob
        if score >= best[1]:
            best = (draft, score, size)
    return best


class PlainSuffixDecoding:
    """`SuffixDecodingDrafter` for rows that are asked one at a time."""

    def __init__(self, rule: SuffixRule, cached_requests: int) -> None:
        self.rule, self.cached_requests = rule, cached_requests
        self.shared = PlainTree(rule.depth)
        self.own: dict[int, PlainTree] = {}
        self.running: dict[int, list[int]] = {}

    def start(self, row: int, prompt: Sequence[int]) -> None:
        self.own[row] = PlainTree(self.rule.depth)
        self.own[row].extend(self.own[row].open_text(), prompt)
        self.running[row] = self._new_request()

    def say(self, row: int, tokens: Sequence[int]) -> None:
        self.own[row].extend(self.own[row].texts[0], tokens)
        if any(text is self.running[row] for text in self.shared.texts):
            self.shared.extend(self.running[row], tokens)

    def learn(self, tokens: Sequence[int]) -> None:
        self.shared.extend(self._new_request(), tokens)

    def draft(self, row: int, wanted: int) -> tuple[list[int], int]:
        context = self.own[row].texts[0]
        own, own_score, own_match = plain_draft(self.own[row], context, wanted, self.rule)
        other, score, match = plain_draft(self.shared, context, wanted, self.rule)
        return (own, own_match) if own_score >= score else (other, match)

    def _new_request(self) -> list[int]:
        text = self.shared.open_text()
        while len(self.shared.texts) > self.cached_requests:
            self.shared.drop_oldest()
        return text
