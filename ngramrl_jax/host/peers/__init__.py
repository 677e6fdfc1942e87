"""Model-free drafters that others have published, by their own rules, to be compared with ours.

What each may see: prompt look-up the row's prompt and response; SuffixDecoding those, and all
responses of all prompts so far; the problem tree finished rollouts of the row's prompt.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ngramrl_jax.host.peers.problem_tree import DAS_RULE, ProblemTreeDrafter
from ngramrl_jax.host.peers.prompt_lookup import HuggingFaceLookup, VllmLookup
from ngramrl_jax.host.peers.suffix_decoding import (
    ARCTIC_REQUESTS,
    ARCTIC_RULE,
    VLLM_REQUESTS,
    VLLM_RULE,
    SuffixDecodingDrafter,
)
from ngramrl_jax.host.peers.suffix_draft import SuffixRule
from ngramrl_jax.host.protocol import Drafter

__all__ = [
    "ARCTIC_RULE",
    "DAS_RULE",
    "PEERS",
    "VLLM_RULE",
    "HuggingFaceLookup",
    "ProblemTreeDrafter",
    "SuffixDecodingDrafter",
    "SuffixRule",
    "VllmLookup",
    "suffix_decoding_arctic",
    "suffix_decoding_best",
    "suffix_decoding_vllm",
]


def suffix_decoding_arctic(rows: int, draft_tokens: int) -> SuffixDecodingDrafter:
    """SuffixDecoding with ArcticInference's own defaults."""
    return SuffixDecodingDrafter(rows, draft_tokens, ARCTIC_RULE, ARCTIC_REQUESTS)


def suffix_decoding_vllm(rows: int, draft_tokens: int) -> SuffixDecodingDrafter:
    """SuffixDecoding with the defaults of vLLM's method `suffix`."""
    return SuffixDecodingDrafter(rows, draft_tokens, VLLM_RULE, VLLM_REQUESTS)


def suffix_decoding_best(
    rows: int, draft_tokens: int, *, factor: float = 4.0, depth: int = 64, max_tokens: int = 16
) -> SuffixDecodingDrafter:
    """SuffixDecoding that trusts a match further than its defaults do; to be swept."""
    rule = SuffixRule(depth=depth, factor=factor, max_tokens=max_tokens)
    return SuffixDecodingDrafter(rows, draft_tokens, rule, ARCTIC_REQUESTS)


PEERS: Mapping[str, Callable[[int, int], Drafter]] = MappingProxyType(
    {
        "prompt_lookup_hf": HuggingFaceLookup,
        "prompt_lookup_vllm": VllmLookup,
        "suffix_decoding_arctic": suffix_decoding_arctic,
        "suffix_decoding_vllm": suffix_decoding_vllm,
        "suffix_decoding_best": suffix_decoding_best,
        "problem_tree": ProblemTreeDrafter,
    }
)
