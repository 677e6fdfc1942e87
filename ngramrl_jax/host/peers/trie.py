"""A forest of counted suffix trees: what SuffixDecoding and the per-problem tree look drafts up in.

Legend: B rows, T tokens, N nodes, X texts, S token storage, O open texts, D depth.
"""

from collections import defaultdict, deque

import numpy as np

from ngramrl_jax.host.checks import at_least
from ngramrl_jax.host.peers import trie_kernels as kernels
from ngramrl_jax.host.peers.trie_kernels import NODE, NONE, TEXT, Pool
from ngramrl_jax.types import Int32Array

_SMALLEST_BLOCK = 16


class SuffixForest:
    """Trees over texts that grow at their end and leave oldest first; see `trie_kernels`.

    Memory follows the tokens held: at most two nodes a token, and doubling of what is full.

    Attributes:
        depth: D, longest string that a tree holds.
        pool: The arrays, for kernels that read; replaced when something grows.
    """

    def __init__(self, depth: int) -> None:
        """A forest without trees.

        Raises:
            ValueError: `depth` is below 1.
        """
        self.depth = at_least("depth", depth, 1)
        self.pool = Pool(
            nodes_N=np.zeros(64, NODE),
            buckets_H=np.full(64, NONE, np.int32),
            tokens_S=np.zeros(64, np.int32),
            texts_X=np.zeros(8, TEXT),
            ends_OD=np.full((8, depth), NONE, np.int32),
            used=np.array([0, NONE], np.int32),
        )
        self._texts_of: dict[int, deque[int]] = {}
        self._free_texts = list(range(8))
        self._free_ends = list(range(8))
        self._free_blocks: defaultdict[int, list[int]] = defaultdict(list)
        self._stored = 0
        self._held = 0
        self._serial = 0

    @property
    def held_tokens(self) -> int:
        """Tokens of all texts that stand in a tree."""
        return self._held

    @property
    def nodes(self) -> int:
        """Nodes in use, roots included."""
        spare, node = 0, int(self.pool.used[1])
        while node != NONE:
            spare, node = spare + 1, int(self.pool.nodes_N["next"][node])
        return int(self.pool.used[0]) - spare

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.pool)

    def plant(self) -> int:
        """The root of a new, empty tree."""
        self._reserve_nodes(0)
        root = int(kernels.new_node(self.pool, NONE, 0, 0, 0, 0))
        self.pool.nodes_N["length"][root] = 0
        self._texts_of[root] = deque()
        return root

    def texts_of(self, root: int) -> int:
        """How many texts a tree has."""
        return len(self._texts_of[root])

    def open_text(self, root: int, weight: int = 1) -> int:
        """A new, empty text of a tree; every occurrence in it counts `weight`."""
        if not self._free_texts:
            self._free_texts = self._double("texts_X")
        if not self._free_ends:
            self._free_ends = self._double("ends_OD")
        text = self._free_texts.pop()
        self._serial += 1
        self.pool.texts_X[text] = (self._serial, 0, 0, 0, root, weight, self._free_ends.pop())
        self._texts_of[root].append(text)
        return text

    def extend(self, text: int, tokens_T: Int32Array) -> None:
        """An open text goes on with some tokens."""
        self.extend_rows(
            np.array([text], np.int32), tokens_T[None], np.array([tokens_T.size], np.int32)
        )

    def extend_rows(self, text_B: Int32Array, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """Open text `text_B[r]` goes on with `tokens_BT[r, :count_B[r]]`; NONE is no text."""
        growing_B = (text_B != NONE) & (count_B > 0)
        texts, counts = text_B[growing_B], count_B[growing_B]
        needed = self.pool.texts_X["length"][texts] + counts
        full = needed > self.pool.texts_X["capacity"][texts]
        for text, size in zip(texts[full].tolist(), needed[full].tolist(), strict=True):
            self._move_text(text, size)
        self._reserve_nodes(int(counts.sum()))
        kernels.append_rows(self.pool, text_B, tokens_BT, count_B)
        self._held += int(counts.sum())

    def close_text(self, text: int) -> None:
        """The text is complete."""
        self._free_ends.append(int(self.pool.texts_X["open"][text]))
        self.pool.texts_X["open"][text] = NONE

    def weaken(self, text: int) -> None:
        """Every occurrence in a text, whose weight is 2 or more, counts one less."""
        assert self.pool.texts_X["weight"][text] > 1
        kernels.weaken(self.pool, text)

    def drop_oldest(self, root: int) -> int:
        """Removes the oldest text of a tree; says which it was.

        Counts are as if it had never been there; equals keep the order that they have come to.
        """
        text = self._texts_of[root].popleft()
        one = self.pool.texts_X[text]
        if one["open"] != NONE:
            self.close_text(text)
        while one["weight"] > 0:
            kernels.weaken(self.pool, text)
        self._held -= int(one["length"])
        self._free_block(text)
        self._free_texts.append(text)
        return text

    def _move_text(self, text: int, size: int) -> None:
        """Finds a block of storage for `size` tokens; sizes are powers of two, so blocks fit."""
        capacity = max(_SMALLEST_BLOCK, 1 << (size - 1).bit_length())
        if self._free_blocks[capacity]:
            at = self._free_blocks[capacity].pop()
        else:
            at = self._stored
            self._stored += capacity
            while self._stored > self.pool.tokens_S.size:
                self._double("tokens_S")
        one, tokens_S = self.pool.texts_X[text], self.pool.tokens_S
        length = one["length"]
        tokens_S[at : at + length] = tokens_S[one["at"] : one["at"] + length]
        self._free_block(text)
        one["at"], one["capacity"] = at, capacity

    def _free_block(self, text: int) -> None:
        one = self.pool.texts_X[text]
        if one["capacity"]:
            self._free_blocks[int(one["capacity"])].append(int(one["at"]))

    def _reserve_nodes(self, tokens: int) -> None:
        """Makes room for that many more tokens, and for one more root.

        In a tree every leaf ends a string and every other node ends one or has two children, so
        there are at most two nodes for each string, of which a text has one per token.
        """
        needed = 2 * (self._held + tokens) + len(self._texts_of) + 1
        if needed <= self.pool.nodes_N.size:
            return
        while needed > self.pool.nodes_N.size:
            self._double("nodes_N")
        buckets_H = np.full(1 << (self.pool.nodes_N.size - 1).bit_length(), NONE, np.int32)
        self.pool = self.pool._replace(buckets_H=buckets_H)
        kernels.rehash(self.pool)

    def _double(self, name: str) -> list[int]:
        """Doubles one of the arrays; says which of its places are new."""
        array = getattr(self.pool, name)
        grown = np.zeros((2 * len(array), *array.shape[1:]), array.dtype)
        grown[: len(array)] = array
        self.pool = self.pool._replace(**{name: grown})
        return list(range(len(array), len(grown)))
