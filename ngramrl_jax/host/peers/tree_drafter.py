"""What drafters from suffix trees have in common.

Legend: B rows, F trees of a row, K draft budget.
"""

import numpy as np

from ngramrl_jax.host.peers.suffix_draft import SuffixRule, as_arguments, draft_rows
from ngramrl_jax.host.peers.trie import SuffixForest
from ngramrl_jax.host.peers.trie_kernels import NONE
from ngramrl_jax.host.text_drafter import TextDrafter
from ngramrl_jax.types import Int32Array


class TreeDrafter(TextDrafter):
    """Reads drafts off the trees that each row draws on.

    Attributes:
        rule: Which continuation is drafted.
        forest: The trees.
    """

    def __init__(self, rows: int, draft_tokens: int, rule: SuffixRule, trees: int) -> None:
        """A drafter for `rows` idle rows that draw on `trees` trees each, on none yet.

        Raises:
            ValueError: `rows` is below 1, or `draft_tokens` below 0.
        """
        super().__init__(rows, draft_tokens)
        self.rule = rule
        self.forest = SuffixForest(rule.depth)
        self._prompts = [NONE] * rows
        self._root_BF = np.full((rows, trees), NONE, np.int32)

    def _draft(
        self,
        wanted_B: Int32Array,
        draft_BK: Int32Array,
        length_B: Int32Array,
        match_length_B: Int32Array,
    ) -> None:
        draft_rows(
            self.forest.pool,
            self._root_BF,
            self._text.text_BS,
            self._text.end_B,
            np.minimum(wanted_B, self.rule.max_tokens).astype(np.int32),
            as_arguments(self.rule),
            draft_BK,
            length_B,
            match_length_B,
        )
