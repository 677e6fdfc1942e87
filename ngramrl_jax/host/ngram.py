"""The NgramRL drafter: what the prompt's recent rollouts said next, proposed for all rows at once.

Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, N response tokens, W words of
a key.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from ngramrl_jax.host.checks import as_id, at_least
from ngramrl_jax.host.draft import Rows, Rule, draft_rows
from ngramrl_jax.host.history import History
from ngramrl_jax.host.log import GRAMS, NONE
from ngramrl_jax.host.noise import row_key
from ngramrl_jax.host.text_drafter import TextDrafter
from ngramrl_jax.types import BestTokens, Int32Array, UInt32Array

DEFAULT_RULE = Rule()

_IDLE = -1
_ROWS_A_THREAD = 32  # fewer are not worth waking a thread for
_OWN_BUCKETS = 1024


class NgramDrafter(TextDrafter):
    """Drafts from the prompt's history; see `ngramrl_jax.host.protocol.Drafter`.

    Each draft token continues the longest suffix of (start of response + response + draft so far)
    that occurs in the prompt's history, or the longest suffix of prompt + response that occurs in
    the row's own prompt and response, where that one is longer. Of several places those are asked,
    six at most, before which most of the last 16 tokens are the same. Each says how likely which
    token is: by the policy's law there, where the history knows it, else by the token that was
    drawn. With the row's key known, the draft is the token that the target would draw from the mean
    of these laws with its own noise (`ngramrl_jax.host.noise`); without it, the most likely one.

    Not thread-safe: one thread at a time calls a drafter; the history may be observed by another.

    Attributes:
        history: Rollouts to draft from; may be shared by drafters.
        draft_tokens: K.
        match_length_B: int32, length of the suffix that each of the last drafts continues.
    """

    def __init__(
        self,
        rows: int,
        draft_tokens: int,
        history: History,
        rule: Rule = DEFAULT_RULE,
        *,
        threads: int = 0,
    ) -> None:
        """A drafter for `rows` idle rows.

        Args:
            rows: B, at least 1.
            draft_tokens: K, at least 0.
            history: Rollouts to draft from.
            rule: How it guesses.
            threads: Among which the rows are divided; 0 for one a core, as long as each has 32.

        Raises:
            ValueError: A setting lies outside its range.
        """
        super().__init__(rows, draft_tokens, spare=draft_tokens)
        self.history = history
        self._rule = Rule(*rule)
        at_least("followed", rule.followed, 1)
        at_least("steps", rule.steps, 1)
        at_least("skipped", rule.skipped, 0)
        self._prompt_B = np.full(rows, _IDLE, np.int32)
        self._key_BW = np.zeros((rows, 2), np.uint32)
        self._keyed_B = np.zeros(rows, bool)
        self._noted_B = np.zeros(rows, np.int32)
        threads = threads or max(1, min(os.cpu_count() or 1, rows // _ROWS_A_THREAD))
        bounds = np.linspace(0, rows, at_least("threads", threads, 1) + 1).astype(int).tolist()
        self._spans = list(pairwise(bounds))
        self._helpers = ThreadPoolExecutor(threads)
        self._chain_again()

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """Slot `row` begins a new response to the prompt; its earlier state is forgotten.

        Raises:
            ValueError: No such row, or a prompt id or tokens that are no int32 of 0 or more.
        """
        as_id("prompt_id", prompt_id)
        super().start_row(row, prompt_id, prompt_P)
        self._prompt_B[row] = prompt_id
        self._keyed_B[row] = key_W is not None
        if key_W is not None:
            self._key_BW[row] = key_W
        self._noted_B[row] = 0
        self._bucket_BGH[row] = NONE

    def finish_row(self, row: int) -> None:
        """The row has no prompt; see `TextDrafter.finish_row`."""
        super().finish_row(row)
        self._prompt_B[row] = _IDLE

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """A finished rollout (stop token included) of training step `step` becomes history.

        Raises:
            ValueError: See `History.observe`.
        """
        self.history.observe(prompt_id, tokens_N, step, best)

    def _draft(
        self,
        wanted_B: Int32Array,
        draft_BK: Int32Array,
        length_B: Int32Array,
        match_length_B: Int32Array,
    ) -> None:
        with self.history.lock:
            before = self.history.log, self._view(), self._rule
            after = wanted_B, draft_BK, length_B, match_length_B
            mine, *others = self._spans
            helped = [self._helpers.submit(draft_rows, *before, *span, *after) for span in others]
            draft_rows(*before, *mine, *after)
            for one in helped:
                one.result()

    def _view(self) -> Rows:
        if self._chain_BGS.shape[2] != self._text.text_BS.shape[1]:
            self._chain_again()
        oldest = [self.history.oldest(prompt_id) for prompt_id in self._prompt_B.tolist()]
        return Rows(
            text_BS=self._text.text_BS,
            start_B=self._text.start_B,
            end_B=self._text.end_B,
            owner_B=self._prompt_B,
            oldest_B=np.array(oldest, np.int32),
            key_BW=self._key_BW,
            keyed_B=self._keyed_B,
            noted_B=self._noted_B,
            chain_BGS=self._chain_BGS,
            bucket_BGH=self._bucket_BGH,
        )

    def _chain_again(self) -> None:
        """Chains for texts of the present capacity; they fill when next needed."""
        capacity = self._text.text_BS.shape[1]
        self._noted_B[:] = 0
        self._chain_BGS = np.zeros((self.rows, len(GRAMS), capacity), np.int32)
        buckets = max(_OWN_BUCKETS, 1 << (capacity - 1).bit_length())
        self._bucket_BGH = np.full((self.rows, len(GRAMS), buckets), NONE, np.int32)


def warm_up() -> None:
    """Compiles every kernel, or loads it from the cache on disk, before it is needed in a hurry."""
    tokens_N = np.array([1, 2, 1, 2], np.int32)
    best = BestTokens(np.ones((4, 2), np.int32), np.zeros((4, 2), np.float32))
    history = History(window=1)
    drafter = NgramDrafter(1, 2, history)
    one_B = np.ones(1, np.int32)
    drafter.start_row(0, 0, tokens_N, np.zeros(2, np.uint32))
    for step in range(2):
        drafter.propose(one_B)
        drafter.commit(one_B[:, None], one_B)
        drafter.observe(0, tokens_N, step, best)
    history.restore(history.snapshot())
    row_key(0, 0, 0, 0, 0)
