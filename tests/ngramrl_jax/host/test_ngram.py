"""The n-gram drafter proposes exactly what a brute-force statement of its rule proposes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host.draft import Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from tests.support.drafter_reference import PlainDrafter, Row
from tests.support.drafters import best_tokens, drafts

ROWS, BUDGET = 3, 6
EVERYWHERE = 10_000  # steps: the reference knows nothing of hash buckets that strangers share


TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=12)
PROMPT_ID = st.integers(0, 2)
ROW = st.integers(0, ROWS - 1)
SEED = st.none() | st.integers(0, 2**32 - 1)
OBSERVE = st.tuples(st.just("observe"), PROMPT_ID, TEXT, SEED)
START_ROW = st.tuples(st.just("start"), st.tuples(ROW, PROMPT_ID), TEXT, SEED)
COMMIT = st.tuples(st.just("commit"), ROW, TEXT, st.none())
OPERATION = st.one_of(
    *[OBSERVE] * 3,
    *[START_ROW] * 2,
    *[COMMIT] * 2,
    st.tuples(st.just("finish"), ROW, st.none(), st.none()),
    st.tuples(st.just("restore"), st.none(), st.none(), st.none()),
)
RULE = st.builds(
    Rule,
    followed=st.sampled_from([1, 2, 8]),
    steps=st.just(EVERYWHERE),
    skipped=st.sampled_from([0, 2, 8]),
    own_text=st.booleans(),
    laws=st.booleans(),
    noise=st.booleans(),
)


def apply(operation, drafter, reference):
    name, which, text, seed = operation
    if name == "observe":
        best = None if seed is None else best_tokens(np.random.default_rng(seed), text)
        drafter.observe(which, np.array(text), 0, best)
        reference.observe(which, text, best)
        kept = drafter.history.snapshot()["prompt_id_R"][1:].tolist()
        reference.rollouts = reference.rollouts[len(reference.rollouts) - len(kept) :]
        assert kept == [told.prompt_id for told in reference.rollouts]
    elif name == "start":
        row, prompt_id = which
        key = None if seed is None else (seed, seed ^ 0x9E3779B9)
        drafter.start_row(row, prompt_id, np.array(text), key and np.array(key, np.uint32))
        reference.rows[row] = Row(prompt_id, text, key)
    elif name == "commit" and which in reference.rows:
        count_B = np.where(np.arange(ROWS) == which, len(text), 0)
        drafter.commit(np.tile(text, (ROWS, 1)), count_B)
        reference.rows[which].response.extend(text)
    elif name == "finish":
        drafter.finish_row(which)
        reference.rows.pop(which, None)
    elif name == "restore":
        drafter.history.restore(drafter.history.snapshot())


def expected(reference, limits):
    return [
        reference.draft(row, min(limits[row], BUDGET)) if row in reference.rows else ([], 0)
        for row in range(ROWS)
    ]


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    operations=st.lists(OPERATION, min_size=8, max_size=30),
    limits=st.lists(st.integers(0, BUDGET + 2), min_size=ROWS, max_size=ROWS),
    window=st.integers(0, 5),
    max_bytes=st.sampled_from([5000, 2**30]),
    rule=RULE,
)
def test_drafts_equal_those_of_counting(operations, limits, window, max_bytes, rule):
    """After every insertion, eviction, restore, commit and swap of rows."""
    reference = PlainDrafter(window, rule)
    drafter = NgramDrafter(ROWS, BUDGET, History(window, max_bytes), rule)
    for operation in operations:
        apply(operation, drafter, reference)
        found = drafts(drafter, limits)
        matches = drafter.match_length_B.tolist()
        assert list(zip(found, matches, strict=True)) == expected(reference, limits)


@pytest.mark.parametrize(
    "fault",
    [
        {},
        {"followed": 7},
        {"skipped": 7},
        {"own_text": False},
        {"laws": False},
        {"noise": False},
    ],
)
def test_the_comparison_sees_a_fault_in_every_part_of_the_rule(fault):
    rng = np.random.default_rng(0)
    differences = 0
    for _ in range(20):
        reference = PlainDrafter(20, Rule(**fault))
        drafter = NgramDrafter(ROWS, BUDGET, History(20))
        prompt = rng.integers(0, 4, 3).tolist()
        apply(("start", (0, 0), prompt, int(rng.integers(2**32))), drafter, reference)
        for _ in range(10):
            apply(("observe", 0, rng.integers(0, 4, 14).tolist(), 7), drafter, reference)
        unknown = [*range(20, 20 + rng.integers(9)), int(rng.integers(4))]
        for text in ([10, 11, 10], unknown, [*range(30, 38)]):
            apply(("commit", 0, text, None), drafter, reference)
            differences += drafts(drafter, [6, 0, 0])[0] != reference.draft(0, 6)[0]
    assert (differences > 0) == bool(fault)


def test_long_matches_and_long_texts_are_found_again():
    """Texts and their chains grow; what is behind 32 tokens no longer matters."""
    rng = np.random.default_rng(1)
    rollout = rng.integers(0, 4, 3000)
    drafter = NgramDrafter(1, 16, History())
    for end in (1, 31, 32, 63, 64, 500, 2000):
        drafter.start_row(0, 0, rng.integers(0, 4, 700))
        drafter.commit(rollout[None, :end], np.array([end]))
        drafter.observe(0, rollout, 0)
        assert drafts(drafter, [16]) == [rollout[end : end + 16].tolist()]
        assert drafter.match_length_B[0] == 32


def test_own_text_is_still_found_after_the_rows_became_longer():
    drafter = NgramDrafter(2, 4, History())
    drafter.start_row(0, 0, np.array([1, 2, 3, 4, 5, 6, 1, 2]))
    assert drafts(drafter, [4, 4]) == [[3, 4, 5, 6], []]
    drafter.start_row(1, 0, np.arange(5000) + 10)
    assert drafts(drafter, [4, 4]) == [[3, 4, 5, 6], []]
    drafter.commit(np.array([[3], [12]]), np.array([1, 1]))
    assert drafts(drafter, [4, 4]) == [[4, 5, 6, 1], [13, 14, 15, 16]]


@pytest.mark.parametrize("size", [400, 20_000])
def test_a_long_own_text_is_found_to_its_first_token(size):
    """No bucket is so crowded that what was said first is out of reach."""
    drafter = NgramDrafter(2, 3, History())
    drafter.start_row(0, 0, np.arange(size))
    for token in (0, 5, 50):
        drafter.commit(np.array([[token], [0]]), np.array([1, 0]))
        assert drafts(drafter, [3, 3]) == [[token + 1, token + 2, token + 3], []]


def test_the_first_token_of_a_text_is_found_after_another_row_became_longer():
    drafter = NgramDrafter(2, 2, History())
    drafter.start_row(0, 0, np.array([1, 2, 3, 1]))
    assert drafts(drafter, [2, 2]) == [[2, 3], []]
    drafter.start_row(1, 0, np.arange(5000) + 10)
    assert drafts(drafter, [2, 2]) == [[2, 3], []]


def test_the_least_of_every_setting_is_allowed():
    history = History()
    history.observe(0, [1, 2, 3], 0)
    for budget, expected in ((0, []), (2, [1, 2])):
        drafter = NgramDrafter(1, budget, history, Rule(followed=1, steps=1, skipped=0))
        assert drafter.match_length_B.tolist() == [0]
        drafter.start_row(0, 0, np.array([7]))
        assert drafts(drafter, [4]) == [expected]


def test_a_match_is_picked_up_after_tokens_that_no_rollout_has():
    drafter = NgramDrafter(1, 4, History())
    drafter.observe(0, np.array([1, 2, 3, 4, 5, 6]), 0)
    drafter.start_row(0, 0, np.array([50]))
    drafter.commit(np.array([[1, 2, 77, 78]]), np.array([4]))
    assert drafts(drafter, [4]) == [[5, 6]]
    assert drafter.match_length_B[0] == 0


def test_a_swapped_row_never_gets_the_former_prompts_draft():
    drafter = NgramDrafter(1, 4, History())
    drafter.observe(1, np.array([10, 11, 12, 13]), 0)
    drafter.observe(2, np.array([10, 21, 22, 23]), 0)
    drafter.start_row(0, 1, np.array([5]))
    drafter.commit(np.array([[10]]), np.array([1]))
    assert drafts(drafter, [4]) == [[11, 12, 13]]
    drafter.start_row(0, 2, np.array([5]))
    assert drafts(drafter, [4]) == [[10, 21, 22, 23]]
    drafter.commit(np.array([[10]]), np.array([1]))
    assert drafts(drafter, [4]) == [[21, 22, 23]]
    drafter.start_row(0, 3, np.array([5]))
    drafter.commit(np.array([[10]]), np.array([1]))
    assert drafts(drafter, [4]) == [[]]
    drafter.finish_row(0)
    assert drafts(drafter, [4]) == [[]]


def test_an_idle_row_gets_no_draft_even_where_its_last_prompt_has_one():
    drafter = NgramDrafter(1, 3, History())
    drafter.observe(0, np.array([1, 2, 3]), 0)
    drafter.start_row(0, 0, np.array([1, 2, 1]))
    assert drafts(drafter, [3]) == [[1, 2, 3]]
    drafter.finish_row(0)
    assert drafts(drafter, [3]) == [[]]


def test_each_proposal_is_fresh_memory():
    drafter = NgramDrafter(1, 4, History())
    drafter.observe(0, np.array([1, 2, 3]), 0)
    drafter.start_row(0, 0, np.array([5]))
    first = drafter.propose(np.array([4]))
    first[0][:], first[1][:] = 9, 9
    assert drafts(drafter, [4]) == [[1, 2, 3]]


def test_bad_input_is_refused_by_name_and_changes_nothing():
    history = History()
    for setting in ({"rows": 0}, {"draft_tokens": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(setting))}: found .*, allowed: "):
            NgramDrafter(**{"rows": 2, "draft_tokens": 4, "history": history, **setting})
    with pytest.raises(ValueError, match="threads: found -1, allowed: 0 or more"):
        NgramDrafter(2, 4, history, threads=-1)
    for rule in (Rule(followed=0), Rule(steps=0), Rule(skipped=-1)):
        with pytest.raises(ValueError, match=r"(followed|steps|skipped): found .*, allowed: "):
            NgramDrafter(2, 4, history, rule)
    drafter = NgramDrafter(2, 4, history)
    for prompt in ([], [-1], [2**31], [1.0], [[1]]):
        with pytest.raises(ValueError, match="prompt_P: found"):
            drafter.start_row(0, 0, np.array(prompt))
    for prompt_id in (-1, 2**31):
        with pytest.raises(ValueError, match=f"prompt_id: found {prompt_id}"):
            drafter.start_row(0, prompt_id, np.array([1]))
    for row in (-1, 2):
        with pytest.raises(ValueError, match="row: found"):
            drafter.finish_row(row)
        with pytest.raises(ValueError, match="row: found"):
            drafter.start_row(row, 0, np.array([1]))
    drafter.start_row(0, 0, np.array([1, 2, 1]))
    before = drafts(drafter, [4, 4])
    assert before == [[2, 1, 2, 1], []]
    for tokens, count in (([[7], [7]], [0, 1]), ([[-7], [7]], [1, 0]), ([[7], [7]], [2, 0])):
        with pytest.raises(ValueError, match=r"row \d: found"):
            drafter.commit(np.array(tokens), np.array(count))
    with pytest.raises(ValueError, match="count_B: found"):
        drafter.commit(np.array([[7], [7]]), np.array([1]))
    with pytest.raises(ValueError, match="limit_B: found"):
        drafter.propose(np.array([4]))
    assert drafts(drafter, [4, 4]) == before
