"""The history stays within its bounds, forgets the oldest first, and takes constant time."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host import log as logs
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import warm_up
from ngramrl_jax.types import BestTokens


def stored(history, prompts):
    return [[r.tolist() for r in history.rollouts(prompt_id)] for prompt_id in range(prompts)]


def all_stored(history):
    """(prompt, tokens) of all rollouts, oldest first."""
    snapshot = history.snapshot()
    ends_R = np.cumsum(snapshot["length_R"])
    texts = np.split(snapshot["tokens_X"], ends_R[:-1])[1:]
    prompts = snapshot["prompt_id_R"][1:].tolist()
    return [(one, text.tolist()) for one, text in zip(prompts, texts, strict=True)]


def uniform(rng, size, width=3):
    """Laws as large as they get."""
    return BestTokens(
        rng.integers(0, 9, (size, width), np.int32), np.full((size, width), -np.log(width))
    )


def test_the_window_keeps_the_last_rollouts_of_each_prompt():
    history = History(window=2)
    for step in range(4):
        history.observe(0, [step], step)
    history.observe(1, [9, 9], 0)
    assert stored(history, 2) == [[[2], [3]], [[9, 9]]]
    assert history.history_tokens == 4
    assert [history.mean_length(prompt_id) for prompt_id in range(3)] == [1.0, 2.0, 0.0]


def test_the_budget_forgets_the_oldest_of_all_prompts():
    history = History(max_bytes=4000)
    told = []
    for step, prompt_id in enumerate([0, 1, 0, 1, 1, 0, 0, 1, 2, 1]):
        history.observe(prompt_id, [step] * 10, step)
        told.append((prompt_id, [step] * 10))
        kept = all_stored(history)
        assert min(len(told), 3) <= len(kept) < 5
        assert kept == told[-len(kept) :]


@pytest.mark.parametrize("best", [False, True])
def test_what_is_larger_than_the_budget_is_not_kept_and_nothing_else_is_forgotten(best):
    history = History(max_bytes=10_000)
    rng = np.random.default_rng(0)
    history.observe(0, [1, 2, 3], 0)
    for size in (10_000, 250):
        history.observe(1, [5] * size, 0, uniform(rng, size) if best else None)
    assert stored(history, 2) == [[[1, 2, 3]], []]
    history.observe(1, [5] * 100, 0, uniform(rng, 100) if best else None)
    assert stored(history, 2)[1] == [[5] * 100]


OBSERVED = st.tuples(st.integers(0, 3), st.integers(1, 400) | st.integers(1, 9), st.integers(0, 4))


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    st.lists(OBSERVED, max_size=60),
    st.integers(64, 4000) | st.integers(64, 200_000),
    st.integers(1, 5),
)
def test_bytes_stay_bounded_and_the_newest_stay(rollouts, max_bytes, window):
    """Of what the windows leave, the budget keeps the newest, whole and with their laws."""
    history = History(window, max_bytes)
    rng = np.random.default_rng(0)
    expected: list[tuple[int, list[int]]] = []
    for step, (prompt_id, size, width) in enumerate(rollouts):
        tokens_N = rng.integers(0, 9, size)
        history.observe(prompt_id, tokens_N, step, uniform(rng, size, width) if width else None)
        assert history.history_bytes <= max_bytes
        kept = all_stored(history)
        if kept and history.snapshot()["step_R"][-1] == step:
            same = [one for one in expected if one[0] == prompt_id]
            if len(same) == window:
                expected.remove(same[0])
            expected = [*expected, (prompt_id, tokens_N.tolist())]
            expected = expected[len(expected) - len(kept) :]
        else:
            assert size > 5 or max_bytes < 2500, "too large to be kept"
        assert kept == expected
        assert history.history_tokens == sum(len(tokens) for _, tokens in kept)
        assert history.log.used[0] <= history.log.tokens_C.size


@pytest.mark.parametrize("max_bytes", [500, 2000, 20_001, 39_149, 300_000])
def test_bytes_stay_bounded_from_many_small_rollouts_to_few_large_ones(max_bytes):
    """Whatever a prompt costs is in the price too, also once its rollouts are gone."""
    history = History(max_bytes=max_bytes)
    rng = np.random.default_rng(0)
    for prompt_id in range(1000):
        history.observe(prompt_id, [1], 0)
        assert history.history_bytes <= max_bytes
    for size in rng.integers(1, max(2, max_bytes // 40), 200).tolist():
        history.observe(size, np.full(size, 1), 0, uniform(rng, size, 2))
        assert history.history_bytes <= max_bytes


def test_bytes_stay_bounded_over_a_hundred_thousand_inserts(monkeypatch):
    """CASES.md B79; and the bound is made use of, and few positions move for each that comes."""
    moved = [0]
    chain_all = logs.chain_all

    def counted(log):
        moved[0] += int(log.used[0])
        chain_all(log)

    monkeypatch.setattr(logs, "chain_all", counted)
    history = History(window=8, max_bytes=500_000)
    rng = np.random.default_rng(0)
    rollouts = rng.integers(0, 50, (100, 20))
    least, most = 500_000, 0
    for step in range(100_000):
        history.observe(step % 5000, rollouts[step % 100], step)
        most = max(most, history.history_bytes)
        if step > 5000:
            least = min(least, history.history_bytes)
    assert 300_000 < least < most <= 500_000
    assert len(all_stored(history)) > 300
    assert moved[0] < 4 * 100_000 * 21


@pytest.fixture
def clearings(monkeypatch):
    """One entry for each clearing of a log, of any history."""
    found = []
    chain_all = logs.chain_all

    def counted(log):
        found.append(int(log.used[0]))
        chain_all(log)

    monkeypatch.setattr(logs, "chain_all", counted)
    return found


@pytest.mark.parametrize(("width", "tokens", "last"), [(0, 922, 1), (4, 412, 1)])
def test_a_log_is_filled_to_its_last_place_before_it_is_cleared(width, tokens, last, clearings):
    """Positions where there are no laws, else entries of laws."""
    history = History()
    rng = np.random.default_rng(0)

    def observe(size):
        ids_NR = np.tile(np.arange(width), (size, 1))
        logps_NR = np.full((size, width), -np.log(max(width, 1)))
        laws = BestTokens(ids_NR, logps_NR) if width else None
        history.observe(0, rng.integers(0, 4, size), 0, laws)

    observe(100)
    observe(tokens)
    capacity = history.log.tokens_C.size
    assert len(clearings) == 1
    assert history.log.used[0] == capacity or history.log.used[1] == logs.ENTRIES * capacity
    observe(last)
    assert len(clearings) == 2


def test_the_budget_is_used_to_its_last_byte(clearings):
    """Of one rollout alone, and of one that the log has room for."""
    for max_bytes, kept in ((1023, []), (1024, [(0, [1, 2])])):
        history = History(max_bytes=max_bytes)
        history.observe(0, [1, 2], 0)
        assert all_stored(history) == kept
    history = History()
    history.observe(0, [1], 0)
    del clearings[:]
    history.max_bytes = history.history_bytes + (history.history_bytes - history.log.nbytes)
    history.observe(0, [2], 1)
    assert history.history_bytes == history.max_bytes
    assert not clearings


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 30, 1500]), st.integers(0, 4), st.integers(1, 60)),
        min_size=1,
        max_size=8,
    ),
    st.integers(10_000, 200_000),
)
def test_a_quarter_of_the_log_is_free_after_every_clearing(told, max_bytes):
    """Also where many small rollouts make room for a large one at a time."""
    history = History(max_bytes=max_bytes)
    rng = np.random.default_rng(0)
    for size, width, times in told:
        for _ in range(1 if size > 1000 else 5 * times):
            before = history.log
            history.observe(
                0, np.ones(size, np.int32), 0, uniform(rng, size, width) if width else None
            )
            capacity = history.log.tokens_C.size
            if history.log is not before:
                assert 4 * history.log.used[0] <= 3 * capacity
                assert 4 * history.log.used[1] <= 3 * logs.ENTRIES * capacity


@pytest.mark.parametrize("best", [False, True])
def test_few_positions_move_for_each_that_comes(best, monkeypatch):
    """Within a window alone, with rollouts of all sizes, counted from the first one on."""
    rng = np.random.default_rng(0)
    history = History(window=4)
    moved = came = 0
    chain_all = logs.chain_all

    def counted(log):
        nonlocal moved
        moved += int(log.used[0])
        chain_all(log)

    monkeypatch.setattr(logs, "chain_all", counted)
    for step in range(3000):
        size = int(rng.integers(1, 10 if step % 10 else 1000))
        history.observe(step % 40, np.full(size, 1), step, uniform(rng, size) if best else None)
        came += size + 1
        assert moved <= 4 * came
    assert moved > came // 2
    assert history.log.tokens_C.size < 3 * (history.history_tokens + 160) * (1.5 if best else 1)


def test_the_price_of_a_rollout_covers_what_python_really_takes():
    texts = [np.arange(60) + i for i in range(3000)]
    warm_up()
    tracemalloc.start()
    history = History()
    for i, text in enumerate(texts):
        history.observe(i % 400, text, 0)
    real = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.8 * history.history_bytes < real <= history.history_bytes
    assert history.bytes_per_token == history.history_bytes / (3000 * 60)


def test_the_price_covers_prompts_of_one_token_each():
    """Python's objects are the most then, just after a dictionary has grown."""
    warm_up()
    tracemalloc.start()
    history = History()
    for i in range(12_000):
        history.observe(i + 1000, [1], i + 1000)
    real = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 0.6 * history.history_bytes < real <= history.history_bytes


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"window": -1}, "window: found -1, allowed: 0 or more"),
        ({"max_bytes": 63}, "max_bytes: found 63, allowed: 64 or more"),
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


@pytest.mark.parametrize("number", [-1, 2**31])
def test_numbers_that_no_snapshot_could_hold_are_refused(number):
    history = History()
    with pytest.raises(ValueError, match=f"prompt_id: found {number}, allowed: 0 to 2147483647"):
        history.observe(number, [1], 0)
    with pytest.raises(ValueError, match=f"step: found {number}, allowed: 0 to 2147483647"):
        history.observe(0, [1], number)
    history.observe(2**31 - 1, [1], 2**31 - 1)
    history.restore(history.snapshot())
    assert all_stored(history) == [(2**31 - 1, [1])]


def test_a_window_of_nothing_keeps_nothing():
    history = History(window=0)
    history.observe(0, [1, 2, 3], 0)
    assert history.history_tokens == 0
    assert history.history_bytes <= logs.EMPTY_BYTES
    assert history.bytes_per_token == 0.0


def test_what_is_handed_out_is_a_copy():
    history = History()
    history.observe(0, [1, 2], 0)
    history.rollouts(0)[0][:] = 9
    assert stored(history, 1) == [[[1, 2]]]


def test_the_mean_length_is_that_of_the_rollouts_in_store():
    history = History(window=2)
    assert history.mean_length(0) == 0.0
    for length in (9, 4, 1):
        history.observe(0, [1] * length, 0)
    assert history.mean_length(0) == 2.5


def test_a_search_may_begin_where_the_prompts_oldest_rollout_begins():
    history = History(window=2)
    for step in range(5):
        history.observe(step % 2, [step, 9, 9], step)
        for prompt_id in range(min(step, 1) + 1):
            begin = history.oldest(prompt_id)
            first = history.rollouts(prompt_id)[0]
            assert history.log.tokens_C[begin] == logs.START
            assert history.log.tokens_C[begin + 1 : begin + 4].tolist() == first.tolist()


def test_the_version_is_another_after_every_change():
    """Also where a restored history is empty, or as large as what it replaces."""
    history, empty = History(window=1), History().snapshot()
    versions = [history.version]
    for change in ("observe", "observe", "restore", "empty", "empty", "observe", "restore"):
        if change == "observe":
            history.observe(0, [1], 0)
        else:
            history.restore(empty if change == "empty" else history.snapshot())
        versions.append(history.version)
    assert len(set(versions)) == len(versions)
    assert min(versions) >= 0


def test_nobody_has_to_choose_a_size():
    history = History()
    assert (history.window, history.max_bytes) == (32, 2**30)


def test_a_prompt_of_which_all_is_forgotten_leaves_nothing_behind():
    history = History(max_bytes=20_000)
    for prompt_id in range(2000):
        history.observe(prompt_id, [prompt_id] * 5, 0)
    known = {prompt_id for prompt_id, _ in all_stored(history)}
    assert 0 < len(known) < 100
    assert set(history._windows) == known
    assert [history.oldest(prompt_id) == logs.NONE for prompt_id in (0, 1999)] == [True, False]
