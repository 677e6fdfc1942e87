"""Tree drafters for tests: random trees, and the truth hidden among wrong branches."""

import numpy as np

from ngramrl_jax.host.trees import DraftTrees
from tests.support.drafters import OracleDrafter, RandomDrafter


def random_trees(rng, limit_B, nodes, low, high, hostile=False) -> DraftTrees:
    """Trees of random shape and size; where `hostile`, with impossible parents."""
    rows = len(limit_B)
    tokens_BN = rng.integers(low, high, (rows, nodes), dtype=np.int32)
    parent_BN, depth_BN = np.zeros((2, rows, nodes + 1), np.int32)
    count_B = rng.integers(0, nodes + 1, rows, dtype=np.int32)
    count_B[np.asarray(limit_B) == 0] = 0
    for row, limit in enumerate(limit_B):
        for node in range(1, count_B[row] + 1):
            shallow = np.flatnonzero(depth_BN[row, :node] < limit)
            # later parents are likelier, so that trees are deep too
            parent = shallow[max(rng.integers(0, len(shallow), 2))]
            parent_BN[row, node], depth_BN[row, node] = parent, depth_BN[row, parent] + 1
    deepest_B = depth_BN.max(axis=1).astype(np.int32)
    parent_BN = parent_BN[:, 1:]
    if hostile:
        parent_BN[rng.random(parent_BN.shape) < 0.1] = rng.choice([-1, nodes, 2**31 - 1])
    return DraftTrees(tokens_BN, parent_BN, count_B, deepest_B)


class RandomTreeDrafter(RandomDrafter):
    """Random trees of random tokens."""

    def __init__(self, rows, draft_tokens, vocab, seed=0, hostile=False):
        super().__init__(rows, draft_tokens, vocab, seed, hostile)
        self._hostile = hostile

    def propose_tree(self, limit_B):
        return random_trees(
            self._rng, limit_B, self._shape[1], self._low, self._high, self._hostile
        )


class OracleTreeDrafter(OracleDrafter):
    """Trees of random shape, one branch of which says what the row is known to say next."""

    def __init__(self, rows, draft_tokens, future, vocab):
        super().__init__(rows, draft_tokens, future)
        self._vocab = vocab

    def propose_tree(self, limit_B):
        trees = random_trees(self._rng, limit_B, self._shape[1], 0, self._vocab)
        for row, limit in enumerate(limit_B):
            at, said = 0, 0
            for node in range(1, trees.count_B[row] + 1):
                true = said < min(limit, len(self._text[row])) and self._rng.random() < 0.7
                if trees.parent_BN[row, node - 1] == at and true:
                    trees.tokens_BN[row, node - 1] = self._text[row][said]
                    at, said = node, said + 1
        return trees
