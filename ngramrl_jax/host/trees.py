"""Draft trees: what a drafter proposes when one continuation is not enough.

Legend: B rows, N nodes of a tree, the draft budget.
"""

from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from ngramrl_jax.host.protocol import Drafter
from ngramrl_jax.types import Int32Array


@dataclass(frozen=True)
class DraftTrees:
    """One tree a row. Nodes are numbered from 1 on; 0 is the root, the last committed token.

    Attributes:
        tokens_BN: int32, the token of node n + 1; padded with 0.
        parent_BN: int32, the node that it continues, lower than its own number; padded with 0.
        count_B: int32, how many nodes there are.
        deepest_B: int32, how many of them the longest branch has.
    """

    tokens_BN: Int32Array
    parent_BN: Int32Array
    count_B: Int32Array
    deepest_B: Int32Array

    @property
    def columns_BX(self) -> Int32Array:
        """Tokens, then parents: what `rollout.wire.pack_drafts` takes."""
        return np.concatenate([self.tokens_BN, self.parent_BN], axis=1)


class TreeDrafter(Drafter, Protocol):
    """A drafter that proposes trees of as many nodes as its chains have tokens."""

    def propose_tree(self, limit_B: Int32Array) -> DraftTrees:
        """Trees for the next round, fresh on every call.

        Args:
            limit_B: int32, how deep a tree may be; 0 for idle rows, whose trees have no node.
        """
        ...


def as_tree_drafter(drafter: Drafter) -> TreeDrafter:
    """The drafter, which must be able to propose trees.

    Raises:
        ValueError: It is not.
    """
    if not hasattr(drafter, "propose_tree"):
        raise ValueError(
            f"draft_shape: found tree with {type(drafter).__name__}, allowed: chain, as this "
            "drafter has no propose_tree"
        )
    return cast(TreeDrafter, drafter)
