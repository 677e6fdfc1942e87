"""Prompt look-up against its two rules in plain Python."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host.peers import HuggingFaceLookup, VllmLookup
from ngramrl_jax.host.text_drafter import TextDrafter

_TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def _hugging_face(text: list[int], wanted: int, max_ngram: int, stop_id: int) -> list[int]:
    for n in range(min(max_ngram, len(text) - 1), 0, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                draft = text[start + n : start + n + wanted]
                return draft[: draft.index(stop_id)] if stop_id in draft else draft
    return []


def _vllm(text: list[int], wanted: int, min_ngram: int, max_ngram: int) -> list[int]:
    for n in range(max_ngram, min_ngram - 1, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                return text[start + n : start + n + wanted]
    return []


def _draft(drafter: TextDrafter, text: list[int], said: int, limit: int) -> list[int]:
    """What the second of three rows drafts after `text`, whose end it said itself."""
    said = min(said, len(text) - 1)
    drafter.start_row(1, 0, np.array(text[: len(text) - said], np.int32))
    tokens_BT = np.zeros((3, max(said, 1)), np.int32)
    tokens_BT[1, :said] = text[len(text) - said :]
    drafter.commit(tokens_BT, np.array([0, said, 0], np.int32))
    draft_BK, length_B = drafter.propose(np.array([limit, limit, limit], np.int32))
    assert length_B[[0, 2]].tolist() == [0, 0]
    assert not draft_BK[1, length_B[1] :].any()
    return draft_BK[1, : length_B[1]].tolist()


@settings(max_examples=200, deadline=None)
@given(
    text=_TEXT,
    said=st.integers(0, 20),
    limit=st.integers(0, 12),
    max_ngram=st.integers(1, 4),
    stop_id=st.integers(-1, 3),
)
def test_hugging_faces_rule(text, said, limit, max_ngram, stop_id):
    drafter = HuggingFaceLookup(3, 10, max_ngram=max_ngram, stop_id=stop_id)
    wanted = min(limit, 10)
    assert _draft(drafter, text, said, limit) == _hugging_face(text, wanted, max_ngram, stop_id)


@settings(max_examples=200, deadline=None)
@given(
    text=_TEXT,
    said=st.integers(0, 20),
    limit=st.integers(0, 12),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)).map(sorted),
)
def test_vllms_rule(text, said, limit, sizes):
    drafter = VllmLookup(3, 10, min_ngram=sizes[0], max_ngram=sizes[1])
    assert _draft(drafter, text, said, limit) == _vllm(text, min(limit, 10), *sizes)


def test_vllms_own_example():
    assert _draft(VllmLookup(3, 4, min_ngram=2, max_ngram=3), [1, 2, 3, 4, 2, 3], 0, 4) == [4, 2, 3]


def test_vllm_looks_up_five_tokens_unless_set():
    text = [1, 2, 3, 4, 5, 9, 2, 3, 4, 5]
    assert _draft(VllmLookup(3, 4), text, 0, 4) == []
    assert _draft(VllmLookup(3, 4), [*text[:-4], 1, *text[-4:]], 0, 4) == [9, 1, 2, 3]


@pytest.mark.parametrize("size", [511, 512, 513, 1024, 1025, 5000])
def test_texts_of_any_length_have_room(size):
    text = [*range(size - 5), 0, 1, 2, 3, 4]
    for said in (0, 5, size - 1):
        assert _draft(VllmLookup(3, 2), text, said, 2) == [5, 6]


def test_hugging_face_prefers_the_longer_end_then_the_earlier_place():
    assert _draft(HuggingFaceLookup(3, 2), [2, 7, 1, 2, 8, 1, 2, 9, 1, 2], 0, 2) == [8, 1]


@pytest.mark.parametrize("peer", [HuggingFaceLookup, VllmLookup])
def test_other_rows_change_nothing(peer):
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 2, size).astype(np.int32) for size in (40, 3, 25, 60)]
    forwards, backwards = peer(4, 8), peer(4, 8)
    for row, text in enumerate(texts):
        forwards.start_row(row, row, text)
        backwards.start_row(3 - row, row, text)
    limit_B = np.array([8, 8, 3, 5], np.int32)
    draft_BK, length_B = forwards.propose(limit_B)
    other_BK, other_B = backwards.propose(limit_B[::-1])
    np.testing.assert_array_equal(draft_BK, other_BK[::-1])
    np.testing.assert_array_equal(length_B, other_B[::-1])
    assert (length_B <= limit_B).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HuggingFaceLookup(0, 4), "rows: found 0"),
        (lambda: HuggingFaceLookup(1, -1), "draft_tokens: found -1"),
        (lambda: HuggingFaceLookup(1, 4, max_ngram=0), "max_ngram: found 0"),
        (lambda: HuggingFaceLookup(1, 4, stop_id=-2), "stop_id: found -2"),
        (lambda: VllmLookup(1, 4, min_ngram=0), "min_ngram: found 0"),
        (lambda: VllmLookup(1, 4, min_ngram=6), "max_ngram: found 5"),
        (lambda: VllmLookup(1, 4).finish_row(1), "row: found 1, allowed: 0 to 0"),
        (lambda: VllmLookup(1, 4).start_row(0, -1, np.array([1])), "prompt_id: found -1"),
        (lambda: VllmLookup(2, 4).propose(np.array([1])), "limit_B: found"),
    ],
)
def test_settings_and_calls_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
