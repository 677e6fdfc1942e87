"""The NgramRL drafter of trees.

Legend: B rows, N nodes of a tree, the draft budget.
"""

import numpy as np

from ngramrl_jax.host.checks import as_rows
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.tree_draft import draft_trees
from ngramrl_jax.host.trees import DraftTrees
from ngramrl_jax.types import Int32Array


class NgramTreeDrafter(NgramDrafter):
    """`NgramDrafter`, which also proposes trees; see `ngramrl_jax.host.trees.TreeDrafter`.

    A tree branches where the history, and the target's noise, leave open what comes next; where
    they do not, it is a chain (`ngramrl_jax.host.tree_draft`). Trees are a function of the history
    and the row alone.
    """

    def propose_tree(self, limit_B: Int32Array) -> DraftTrees:
        """Trees of at most K nodes for the next round, at most `limit_B` tokens deep.

        Raises:
            ValueError: `limit_B` is not one integer per row.
        """
        wanted_B = np.minimum(as_rows("limit_B", limit_B, (self.rows,)), self.draft_tokens)
        wanted_B[self._text.end_B == 0] = 0
        tokens_BN, parent_BN = np.zeros((2, self.rows, self.draft_tokens), np.int32)
        count_B, deepest_B, self.match_length_B = np.zeros((3, self.rows), np.int32)
        with self.history.lock:
            trees = tokens_BN, parent_BN, count_B, deepest_B
            self._divided(draft_trees, self._view(), wanted_B, *trees, self.match_length_B)
        return DraftTrees(tokens_BN, parent_BN, count_B, deepest_B)


def warm_up() -> None:
    """As `ngram.warm_up`, for the kernels of trees."""
    history = History(window=1)
    history.observe(0, np.array([1, 2, 1, 2], np.int32), 0)
    drafter = NgramTreeDrafter(1, 2, history)
    drafter.start_row(0, 0, np.array([1, 2], np.int32), np.zeros(2, np.uint32))
    drafter.propose_tree(np.full(1, 2, np.int32))
