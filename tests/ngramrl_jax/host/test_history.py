"""The history stays within its bounds, forgets the oldest first, and survives a checkpoint."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host.history import History
from ngramrl_jax.host.index import BYTES_PER_TOKEN
from ngramrl_jax.host.ngram import NgramDrafter, warm_up


def stored(history, prompts):
    return [[r.tolist() for r in history.rollouts(prompt_id)] for prompt_id in range(prompts)]


def test_the_window_keeps_the_last_rollouts_of_each_prompt():
    history = History(window=2)
    for step in range(4):
        history.observe(0, [step], step)
    history.observe(1, [9, 9], 0)
    assert stored(history, 2) == [[[2], [3]], [[9, 9]]]
    assert history.history_tokens == 4


def test_the_budget_forgets_the_oldest_of_all_prompts():
    one = History()
    one.observe(0, [1] * 10, 0)
    history = History(max_bytes=3 * one.history_bytes)
    for step, prompt_id in enumerate([0, 1, 0, 1, 1]):
        history.observe(prompt_id, [step] * 10, step)
    assert stored(history, 2) == [[[2] * 10], [[3] * 10, [4] * 10]]
    history.observe(2, [5] * 10_000, 5)
    assert stored(history, 3) == [[], [], []], "what is larger than the budget is not kept"
    assert history.history_tokens == history.history_bytes == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("observe"), st.integers(0, 3), st.integers(1, 400)),
            st.tuples(st.just("start"), st.integers(0, 3), st.integers(0, 1)),
            st.tuples(st.just("finish"), st.none(), st.integers(0, 1)),
            st.tuples(st.just("end"), st.none(), st.none()),
        ),
        max_size=60,
    ),
    st.integers(1, 400_000),
    st.integers(1, 5),
)
def test_bytes_stay_bounded_whatever_is_in_use(operations, max_bytes, window):
    history = History(window, max_bytes)
    drafter = NgramDrafter(2, 4, history)
    rng = np.random.default_rng(0)
    for name, prompt_id, number in operations:
        if name == "observe":
            drafter.observe(prompt_id, rng.integers(0, 3, number), 0)
        elif name == "start":
            drafter.start_row(number, prompt_id, np.array([1]))
        elif name == "finish":
            drafter.finish_row(number)
        else:
            drafter.end_batch()
        assert history.history_bytes <= max_bytes
        kept = [len(history.rollouts(i)) for i in range(4)]
        assert max(kept) <= window
        arena = history.index.arena
        assert arena.used[0] <= arena.states.size
        assert arena.used[1] <= arena.edges.size


def test_bytes_stay_bounded_over_a_hundred_thousand_inserts():
    """CASES.md B79: also while the prompt is indexed, and the price is never below the truth."""
    history = History(window=8, max_bytes=2_000_000)
    rng = np.random.default_rng(0)
    rollouts = rng.integers(0, 50, (100, 20))
    most = 0
    for step in range(100_000):
        history.observe(step % 5000, rollouts[step % 100], step)
        most = max(most, history.history_bytes)
    assert 1_000_000 < most <= 2_000_000
    history.acquire(7)
    for step in range(2000):
        history.observe(7, rollouts[step % 100], step)
        assert history.index.nbytes < 200_000
    history.release(7)
    history.drop_resting()
    assert history.index.nbytes == 0


def test_the_price_of_a_rollout_covers_what_python_really_takes():
    texts = [np.arange(60) + i for i in range(3000)]
    warm_up()
    tracemalloc.start()
    history = History()
    for i, text in enumerate(texts):
        history.observe(i % 400, text, 0)
    real = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.6 * history.history_bytes < real <= history.history_bytes
    assert history.bytes_per_token == history.history_bytes / (3000 * 60)


def test_a_snapshot_restores_the_same_drafts_bit_for_bit():
    rng = np.random.default_rng(3)
    history = History(window=4)
    for step in range(60):
        history.observe(int(rng.integers(0, 9)), rng.integers(0, 3, rng.integers(1, 30)), step)
    snapshot = history.snapshot()
    assert all(array.dtype == np.int32 and array.size for array in snapshot.values())
    restored = History(window=4)
    restored.observe(3, [1, 2, 3], 0)
    restored.restore({name: array.copy() for name, array in snapshot.items()})
    again = restored.snapshot()
    assert list(again) == list(snapshot)
    assert all(np.array_equal(again[name], snapshot[name]) for name in snapshot)
    drafters = [NgramDrafter(9, 16, kept) for kept in (history, restored)]
    for drafter in drafters:
        for prompt_id in range(9):
            drafter.start_row(prompt_id, prompt_id, np.array([1]))
    for step in range(20):
        proposals = [drafter.propose(np.full(9, 16)) for drafter in drafters]
        assert np.array_equal(proposals[0][0], proposals[1][0])
        assert np.array_equal(proposals[0][1], proposals[1][1])
        tokens, new = rng.integers(0, 3, (9, 2)), rng.integers(0, 3, 12)
        for drafter in drafters:
            drafter.commit(tokens, np.full(9, 2))
            drafter.observe(step % 9, new, step)


def test_an_empty_history_survives_a_snapshot_too():
    snapshot = History().snapshot()
    assert all(array.size for array in snapshot.values())
    history = History()
    history.observe(0, [1], 0)
    history.restore(snapshot)
    assert history.history_tokens == 0


def test_broken_snapshots_are_refused():
    history = History()
    history.observe(0, [1, 2], 0)
    snapshot = history.snapshot()
    with pytest.raises(ValueError, match="snapshot: found no tokens"):
        history.restore({name: snapshot[name] for name in list(snapshot)[:3]})
    with pytest.raises(ValueError, match="snapshot: found 2 prompt ids"):
        history.restore({**snapshot, "tokens": snapshot["tokens"][:-1]})
    with pytest.raises(ValueError, match=r"tokens: found int32 .* allowed: one dimension"):
        history.restore({**snapshot, "tokens": -snapshot["tokens"]})
    assert stored(history, 1) == [[[1, 2]]]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"window": -1}, "window: found -1, allowed: 0 or more"),
        ({"max_bytes": 0}, "max_bytes: found 0, allowed: 1 or more"),
    ],
)
def test_settings_out_of_range_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        History(**setting)


@pytest.mark.parametrize("tokens", [[], [-1], [2**31], [0.5], [[1]]])
def test_tokens_that_are_no_int32_ids_are_refused(tokens):
    history = History()
    with pytest.raises(ValueError, match=r"tokens_N: found .*, allowed: "):
        history.observe(0, np.array(tokens), 0)
    assert history.history_tokens == 0


def test_a_window_of_nothing_keeps_nothing():
    history = History(window=0)
    history.acquire(0)
    history.observe(0, [1, 2, 3], 0)
    assert history.history_tokens == history.history_bytes == 0
    assert history.bytes_per_token == 0.0


def test_an_index_at_rest_is_kept_up_used_again_and_dropped_before_any_rollout():
    history = History(window=4)
    for step in range(4):
        history.observe(0, [1, 2, step], step)
    drafter = NgramDrafter(1, 4, history)
    fresh = NgramDrafter(1, 4, history)
    drafter.start_row(0, 0, np.array([9]))
    drafter.finish_row(0)
    kept = history.index.arena
    history.observe(0, [1, 7, 7], 4)  # pushes one out while the index rests
    drafter.start_row(0, 0, np.array([9]))
    assert history.index.arena is kept
    some = drafter.propose(np.array([4]))
    drafter.finish_row(0)
    drafter.end_batch()
    assert history.index.nbytes == 0
    fresh.start_row(0, 0, np.array([9]))
    for one, other in zip(some, fresh.propose(np.array([4])), strict=True):
        assert np.array_equal(one, other)


def test_an_index_at_rest_makes_room_before_a_rollout_is_forgotten():
    texts = [[1, 2, step] for step in range(4)]
    stored_bytes = History()
    for text in texts:
        stored_bytes.observe(0, text, 0)
    charge = BYTES_PER_TOKEN * sum(len(text) + 1 for text in texts)
    history = History(window=4, max_bytes=stored_bytes.history_bytes + charge)
    for text in texts:
        history.observe(0, text, 0)
    history.acquire(0)
    history.release(0)
    assert history.index.nbytes > 0
    history.observe(1, [3] * 100, 5)
    assert history.index.nbytes == 0
    assert history.history_tokens == 4 * 3 + 100
