"""SuffixDecoding (Oliaro et al., arXiv 2411.04975) as ArcticInference 0.3.0 does it.

Equal to that library's drafts: `benchmarks/drafting/peers_check.py`.

Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, N response tokens, W words of
a key.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from ngramrl_jax.host.checks import as_rows, as_token_ids, at_least
from ngramrl_jax.host.peers.suffix_draft import SuffixRule
from ngramrl_jax.host.peers.tree_drafter import TreeDrafter
from ngramrl_jax.host.peers.trie_kernels import NONE
from ngramrl_jax.types import BestTokens, Int32Array, UInt32Array

# ArcticInference's own default, and that of vLLM's method "suffix".
ARCTIC_RULE, ARCTIC_REQUESTS = SuffixRule(depth=64), 100_000
VLLM_RULE, VLLM_REQUESTS = SuffixRule(depth=24), 10_000


class SuffixDecodingDrafter(TreeDrafter):
    """Two trees a row: its own prompt and response, and the responses of all requests.

    The second, shared by all prompts, holds what running requests have said so far as well. It
    keeps the last `cached_requests` that were started: starting one more removes the oldest, even
    while that runs, and from then on nothing more of it is learnt. Of equal scores the row's own
    tree wins.
    """

    def __init__(
        self,
        rows: int,
        draft_tokens: int,
        rule: SuffixRule = ARCTIC_RULE,
        cached_requests: int = ARCTIC_REQUESTS,
    ) -> None:
        """A drafter for `rows` idle rows.

        Args:
            rows: B, at least 1.
            draft_tokens: K, at least 0.
            rule: Which continuation is drafted.
            cached_requests: Responses that the shared tree holds, at least 1.

        Raises:
            ValueError: A setting lies outside its range.
        """
        super().__init__(rows, draft_tokens, replace(rule, over_siblings=False), trees=2)
        self._cached_requests = at_least("cached_requests", cached_requests, 1)
        self._shared = self.forest.plant()
        self._root_BF[:, 0] = [self.forest.plant() for _ in range(rows)]
        self._root_BF[:, 1] = self._shared
        self._own_B = np.full(rows, NONE, np.int32)
        self._shared_B = np.full(rows, NONE, np.int32)
        self._untold: Counter[tuple[int, bytes]] = Counter()

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """A request begins; see `TextDrafter.start_row`."""
        super().start_row(row, prompt_id, prompt_P)
        self._prompts[row] = prompt_id
        self._own_B[row] = self.forest.open_text(int(self._root_BF[row, 0]))
        self.forest.extend(int(self._own_B[row]), self._text.text_BS[row, : self._text.end_B[row]])
        self._shared_B[row] = self._new_request()

    def commit(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """Both trees learn what a row says at once; see `TextDrafter.commit`."""
        before_B = self._text.end_B.copy()
        super().commit(tokens_BT, count_B)
        said_B = self._text.end_B - before_B
        new_BT = as_rows("tokens_BT", tokens_BT, (self.rows, -1))
        self.forest.extend_rows(self._own_B, new_BT, said_B)
        self.forest.extend_rows(self._shared_B, new_BT, said_B)

    def finish_row(self, row: int) -> None:
        """The request's own tree goes, its response stays; see `TextDrafter.finish_row`."""
        if 0 <= row < self.rows and self._own_B[row] != NONE:
            response_N = self._text.text_BS[row, self._text.start_B[row] : self._text.end_B[row]]
            self._untold[self._prompts[row], response_N.tobytes()] += 1
            self.forest.drop_oldest(int(self._root_BF[row, 0]))
            if self._shared_B[row] != NONE:
                self.forest.close_text(int(self._shared_B[row]))
            self._own_B[row] = self._shared_B[row] = NONE
        super().finish_row(row)

    def end_batch(self) -> None:
        """Responses that nobody reported as rollouts will not be reported any more."""
        self._untold.clear()

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """Learns a rollout that no row here has said; what a row said is known already.

        Raises:
            ValueError: A negative prompt id, or tokens that are no int32 ids.
        """
        at_least("prompt_id", prompt_id, 0)
        ids_N = as_token_ids("tokens_N", tokens_N)
        rollout = (prompt_id, ids_N.tobytes())
        if self._untold[rollout]:
            self._untold -= Counter([rollout])
            return
        text = self._new_request()
        self.forest.extend(text, ids_N)
        self.forest.close_text(text)

    def _new_request(self) -> int:
        """A new text of the shared tree, which gives up its oldest where it holds too many."""
        text = self.forest.open_text(self._shared)
        while self.forest.texts_of(self._shared) > self._cached_requests:
            self._shared_B[self._shared_B == self.forest.drop_oldest(self._shared)] = NONE
        return text
