# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""Prompt look-up: what followed when the row's last tokens were said before.

Saxena's idea, by the rules of two engines. Both see the row's own prompt and response only, take
the earliest place, and draft no further than the text reaches.

- Hugging Face, `PromptLookupCandidateGenerator` of transformers: the last 2 tokens, else the last
  one (`max_matching_ngram_size`), never the text's own end nor all of it; a stop token ends the
  draft before it, and may leave nothing of it.
- vLLM, method `ngram`: the longest end of `prompt_lookup_min` to `prompt_lookup_max` tokens, both 5
  unless set, that stands anywhere before.

A proposal reads the whole text once per n (Hugging Face) or once (vLLM).

Legend: B rows, S capacity of a row's text, K draft budget.
"""

from ngramrl_jax.host.checks import at_least
from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.host.peers.trie_kernels import NONE
from ngramrl_jax.host.text_drafter import TextDrafter
from ngramrl_jax.types import Int32Array


class HuggingFaceLookup(TextDrafter):
    """Prompt look-up by the rule of Hugging Face's transformers."""

    def __init__(
        self, rows: int, draft_tokens: int, *, max_ngram: int = 2, stop_id: int = NONE
    ) -> None:
        """A drafter for `rows` idle rows.

        Args:
            rows: B, at least 1.
            draft_tokens: K, at least 0; `num_output_tokens` there, 10 unless set.
            max_ngram: `max_matching_ngram_size`, at least 1.
            stop_id: Token that is never drafted; -1 for none.

        Raises:
            ValueError: A setting lies outside its range.
        """
        super().__init__(rows, draft_tokens)
        self._max_ngram = at_least("max_ngram", max_ngram, 1)
        self._stop_id = at_least("stop_id", stop_id, NONE)

    def _draft(
        self,
        wanted_B: Int32Array,
        draft_BK: Int32Array,
        length_B: Int32Array,
        match_length_B: Int32Array,
    ) -> None:
        _draft_hf(
            self._text.text_BS,
            self._text.end_B,
            wanted_B,
            self._max_ngram,
            self._stop_id,
            draft_BK,
            length_B,
            match_length_B,
        )


class VllmLookup(TextDrafter):
    """Prompt look-up by the rule of vLLM."""

    def __init__(
        self, rows: int, draft_tokens: int, *, min_ngram: int = 5, max_ngram: int = 5
    ) -> None:
        """A drafter for `rows` idle rows.

        Args:
            rows: B, at least 1.
            draft_tokens: K, at least 0; `num_speculative_tokens` there.
            min_ngram: `prompt_lookup_min`, at least 1.
            max_ngram: `prompt_lookup_max`, at least `min_ngram`.

        Raises:
            ValueError: A setting lies outside its range.
        """
        super().__init__(rows, draft_tokens)
        self._min_ngram = at_least("min_ngram", min_ngram, 1)
        self._max_ngram = at_least("max_ngram", max_ngram, min_ngram)

    def _draft(
        self,
        wanted_B: Int32Array,
        draft_BK: Int32Array,
        length_B: Int32Array,
        match_length_B: Int32Array,
    ) -> None:
        _draft_vllm(
            self._text.text_BS,
            self._text.end_B,
            wanted_B,
            self._min_ngram,
            self._max_ngram,
            draft_BK,
            length_B,
            match_length_B,
        )


@kernel
def _agreement(text_S, position, end, most):
    """How many tokens, at most `most`, before `position` equal those before `end`."""
    size = 0
    while size < min(most, position) and text_S[position - 1 - size] == text_S[end - 1 - size]:
        size += 1
    return size


@kernel
def _draft_hf(text_BS, end_B, wanted_B, max_ngram, stop_id, draft_BK, length_B, match_length_B):
    for row in range(end_B.size):
        end = end_B[row]
        if wanted_B[row] <= 0:
            continue
        text_S = text_BS[row]
        source, size = NONE, min(max_ngram, end - 1)
        while size > 0 and source == NONE:
            for position in range(size, end):
                if _agreement(text_S, position, end, size) == size:
                    source = position
                    break
            size -= 1
        if source == NONE:
            continue
        match_length_B[row] = size + 1
        for count in range(min(wanted_B[row], end - source)):
            if text_S[source + count] == stop_id:
                break
            draft_BK[row, count] = text_S[source + count]
            length_B[row] = count + 1


@kernel
def _draft_vllm(text_BS, end_B, wanted_B, min_ngram, max_ngram, draft_BK, length_B, match_length_B):
    for row in range(end_B.size):
        end = end_B[row]
        if wanted_B[row] <= 0:
            continue
        text_S = text_BS[row]
        longest, source = 0, NONE
        for position in range(1, end):
            size = _agreement(text_S, position, end, max_ngram)
            if size > longest:
                longest, source = size, position
                if size == max_ngram:
                    break
        if longest < min_ngram:
            continue
        match_length_B[row] = longest
        for count in range(min(wanted_B[row], end - source)):
            draft_BK[row, count] = text_S[source + count]
            length_B[row] = count + 1
