"""The real SuffixDecoding library as a drafter, where it is installed (see `peers_check.py`).

Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, N response tokens, W words of
a key, D tokens of context.
"""

import importlib
import importlib.util
from itertools import count

import numpy as np

from ngramrl_jax.host.peers import VLLM_RULE
from ngramrl_jax.host.peers.suffix_decoding import VLLM_REQUESTS
from ngramrl_jax.host.text_drafter import TextDrafter
from ngramrl_jax.types import BestTokens, Int32Array, UInt32Array


def installed() -> bool:
    """Whether this Python finds the library."""
    return importlib.util.find_spec("arctic_inference") is not None


class ArcticDrafter(TextDrafter):
    """`arctic_inference.suffix_decoding` at vLLM's defaults, called row by row as vLLM calls it."""

    def __init__(self, rows: int, draft_tokens: int) -> None:
        """A drafter for `rows` idle rows.

        Raises:
            ImportError: The library is not installed.
        """
        super().__init__(rows, draft_tokens)
        library = importlib.import_module("arctic_inference.suffix_decoding")
        self._cache = library.SuffixDecodingCache(VLLM_RULE.depth, VLLM_REQUESTS)
        self._serials = count()
        self._request: dict[int, int] = {}  # by row, while it runs

    @property
    def nbytes(self) -> int:
        """The library's own estimate for the tree that all requests share."""
        return self._cache._global_tree.estimate_memory()

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """A request begins; see `TextDrafter.start_row`."""
        super().start_row(row, prompt_id, prompt_P)
        self._request[row] = next(self._serials)
        self._cache.start_request(self._request[row], prompt_P)

    def commit(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """The library learns what a row says at once; see `TextDrafter.commit`."""
        super().commit(tokens_BT, count_B)
        for row, request in self._request.items():
            self._cache.add_active_response(request, tokens_BT[row, : count_B[row]])

    def finish_row(self, row: int) -> None:
        """The request ends, its response stays; see `TextDrafter.finish_row`."""
        super().finish_row(row)
        if row in self._request:
            self._cache.stop_request(self._request.pop(row))

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """Learns a rollout the only way there is: as the response of a request, with its tree."""
        request = next(self._serials)
        self._cache.start_request(request, tokens_N[:1])
        self._cache.add_active_response(request, tokens_N)
        self._cache.stop_request(request)

    def _draft(
        self,
        wanted_B: Int32Array,
        draft_BK: Int32Array,
        length_B: Int32Array,
        match_length_B: Int32Array,
    ) -> None:
        for row, request in self._request.items():
            end = self._text.end_B[row]
            context_D = self._text.text_BS[row, max(0, end - VLLM_RULE.depth) : end]
            draft = self._cache.speculate(
                request,
                context_D,
                max_spec_tokens=int(wanted_B[row]),
                max_spec_factor=VLLM_RULE.factor,
                max_spec_offset=VLLM_RULE.offset,
                min_token_prob=VLLM_RULE.min_prob,
            )
            length_B[row], match_length_B[row] = len(draft.token_ids), draft.match_len
            draft_BK[row, : length_B[row]] = np.array(draft.token_ids, np.int32)
