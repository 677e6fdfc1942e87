"""The comparison of look-ups with the engines' code sees a fault and no other difference."""

import numpy as np
import pytest

from benchmarks.drafting.lookups_check import compare, main
from benchmarks.drafting.peers_check import random_requests
from ngramrl_jax.host.peers import HuggingFaceLookup


def look_up(ngram: int, draft_tokens: int, latest: bool = False):
    """The rule of Hugging Face in plain Python; `latest` is a fault."""

    def draft(text_S) -> list[int]:
        text = text_S.tolist()
        for n in range(min(ngram, len(text) - 1), 0, -1):
            starts = [s for s in range(len(text) - n) if text[s : s + n] == text[-n:]]
            if starts:
                start = starts[-1 if latest else 0] + n
                return text[start : start + draft_tokens]
        return []

    return draft


@pytest.mark.parametrize(
    ("theirs", "equal"),
    [(look_up(2, 10), True), (look_up(3, 10), False), (look_up(2, 10, latest=True), False)],
)
def test_faults_differ_and_the_rule_does_not(theirs, equal):
    rng = np.random.default_rng(0)
    count = compare(HuggingFaceLookup(1, 10), theirs, random_requests(rng), 300, rng)
    assert count["contexts"] == 300
    assert count["with_draft"] > 100
    assert (count["different"] == 0) == equal


def test_without_either_engine_there_is_nothing_to_compare():
    with pytest.raises(ValueError, match="site, vllm: found neither"):
        main([])


def test_a_folder_that_is_not_vllms_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"vllm: found no .*ngram_proposer\.py"):
        main([f"vllm={tmp_path}"])
