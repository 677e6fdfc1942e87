"""The search finds the places that comparing every place finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host import log as logs
from ngramrl_jax.host.search import LONGEST, longest_matches, match_length
from tests.support.drafter_reference import START, Place, Told, longest, places_of, shared

CAPACITY = 2**13  # so many buckets that no two grams of these tests share one


def found(log, owner, oldest, text, most, steps):
    """Where `text` is matched, and how far; the text stands behind others' tokens."""
    behind = np.array([1, 0, 2, *text, 7], np.int32)
    found_F, alike_F = np.empty((2, most), np.int32)
    count, length = longest_matches(
        log.tokens_C, log.owner_C, log.chain_GC, log.bucket_GH,
        owner, oldest, steps, behind, 3, 3 + len(text), found_F, alike_F,
    )  # fmt: skip
    return found_F[:count].tolist(), length


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    rollouts=st.lists(
        st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=40)),
        max_size=10,
    ),
    forgotten=st.integers(0, 3),
    text=st.lists(st.integers(0, 2), max_size=8),
    most=st.integers(1, 8),
    steps=st.sampled_from([1, 3, 64]),
)
def test_the_places_are_those_of_counting(rollouts, forgotten, text, most, steps):
    """Of the prompt, living, newest first, also where the walk ends before the chain does."""
    log = logs.allocate(CAPACITY)
    none_M, begins = np.zeros(0, np.int32), []
    for prompt_id, tokens in rollouts:
        tokens_N = np.array(tokens, np.int32)
        laws_N, probs_M = np.zeros_like(tokens_N), none_M.astype(np.uint16)
        begins.append(logs.append(log, prompt_id, tokens_N, laws_N, none_M, probs_M))
    for owner in range(3):
        own = [
            (begin, Told(owner, [START, *tokens], []))
            for begin, (prompt_id, tokens) in zip(begins, rollouts, strict=True)
            if prompt_id == owner
        ][forgotten:]
        oldest = own[0][0] if own else int(log.used[0])
        begin_of = {id(told): begin for begin, told in own}
        places = [place for _, told in reversed(own) for place in places_of(told.text, told)]
        expected, length = longest(places, [START, *text], most, steps)
        positions = [begin_of[id(place.told)] + place.at for place in expected]
        assert found(log, owner, oldest, text, most, steps) == (positions, length)


def test_no_two_grams_of_these_tests_share_a_bucket():
    """Else a walk of few steps could end at strangers, which counting knows nothing of."""
    for gram in logs.GRAMS:
        texts = [()]
        for _ in range(gram):
            texts += [(*text, token) for text in texts for token in range(3)]
        ends = {text[-gram:] if len(text) >= gram else (START, *text) for text in texts}
        buckets = {
            logs.bucket_of(np.array(end, np.int32), 0, len(end), gram, owner, CAPACITY)
            for end in ends
            for owner in range(3)
        }
        assert len(buckets) >= 0.95 * 3 * len(ends)


@pytest.mark.parametrize("size", [0, 1, 3, LONGEST - 1, LONGEST, LONGEST + 1, 2 * LONGEST])
def test_matches_are_measured_up_to_the_longest_that_counts(size):
    """All of the text, START included, is as good as that."""
    rng = np.random.default_rng(size)
    text = rng.integers(0, 2, size).tolist()
    behind = np.array([5, *text], np.int32)
    for before, whole in ([], True), ([6], False), ([1, 6], False):
        rollout = [START, *before, *text]
        place = Place(Told(0, rollout, []), len(rollout) - 1)
        length = match_length(np.array(rollout, np.int32), place.at, behind, 1, 1 + size)
        assert length == shared(place, [START, *text])
        assert length == (LONGEST if whole else min(size, LONGEST))
