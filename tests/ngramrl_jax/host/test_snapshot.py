"""A history survives a checkpoint to the last draft, and nothing else passes for one."""

import numpy as np
import pytest

from ngramrl_jax.host.history import History
from ngramrl_jax.host.laws import WHOLE
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.types import BestTokens

PROMPTS = 9


def random_best(rng, size):
    logps_NR = np.log(rng.dirichlet(np.ones(4), size))
    return BestTokens(
        rng.integers(0, 6, (size, 4), np.int32), -np.sort(-logps_NR, axis=1).astype(np.float32)
    )


def random_history(rollouts=60, **bounds):
    rng = np.random.default_rng(3)
    history = History(**bounds)
    for step in range(rollouts):
        size = int(rng.integers(1, 30))
        best = random_best(rng, size) if rng.random() < 0.7 else None
        history.observe(int(rng.integers(PROMPTS)), rng.integers(0, 3, size), step, best)
    return history


def assert_equal(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])


def started(history, budget=16):
    drafter = NgramDrafter(PROMPTS, budget, history)
    for prompt_id in range(PROMPTS):
        key_W = np.array([prompt_id, 7], np.uint32) if prompt_id % 2 else None
        drafter.start_row(prompt_id, prompt_id, np.array([1]), key_W)
    return drafter


def newest(snapshot, count):
    """Steps of the last rollouts; `random_history` numbers them."""
    return snapshot["step_R"][-count:].tolist()


@pytest.mark.parametrize("past", ["none", "small", "large", "tight"])
def test_a_restored_history_drafts_the_same(past):
    """Whatever it held before, and while both go on."""
    history = random_history(window=4)
    snapshot = history.snapshot()
    assert all(array.dtype == np.int32 and array.size for array in snapshot.values())
    bytes_needed = History(window=4)
    bytes_needed.restore(snapshot)
    restored = History(4, 2 * bytes_needed.history_bytes if past == "tight" else 2**30)
    for step in range({"none": 0, "small": 1}.get(past, 50)):
        restored.observe(step, np.arange(1000), step)
    restored.restore({name: array.astype(np.int64) for name, array in snapshot.items()})
    assert_equal(restored.snapshot(), snapshot)
    drafters = [started(kept) for kept in (history, restored)]
    rng = np.random.default_rng(0)
    drafted = 0
    for step in range(20):
        (one_BK, one_B), (other_BK, other_B) = (d.propose(np.full(PROMPTS, 16)) for d in drafters)
        np.testing.assert_array_equal(one_BK, other_BK)
        np.testing.assert_array_equal(one_B, other_B)
        drafted += one_B.sum()
        tokens, new, best = rng.integers(0, 3, (PROMPTS, 2)), rng.integers(0, 3, 12), None
        if step % 2:
            best = random_best(rng, 12)
        for drafter in drafters:
            drafter.commit(tokens, np.full(PROMPTS, 2))
            drafter.observe(step % PROMPTS, new, step, best)
    assert drafted > 20 * PROMPTS


def test_a_smaller_window_keeps_the_newest_of_each_prompt():
    history = random_history(window=4)
    smaller = History(window=2)
    smaller.restore(history.snapshot())
    for prompt_id in range(PROMPTS):
        for kept, was in zip(
            smaller.rollouts(prompt_id), history.rollouts(prompt_id)[-2:], strict=True
        ):
            np.testing.assert_array_equal(kept, was)


@pytest.mark.parametrize("max_bytes", [500, 2000, 9000, 30_000])
def test_a_smaller_budget_keeps_the_newest_of_all(max_bytes):
    snapshot = random_history(window=9).snapshot()
    smaller = History(9, max_bytes)
    smaller.restore(snapshot)
    kept = smaller.snapshot()["step_R"].size - 1
    assert smaller.history_bytes <= max_bytes
    assert kept < snapshot["step_R"].size - 1
    if max_bytes > 4000:
        assert kept > 0
        assert newest(smaller.snapshot(), kept) == newest(snapshot, kept)


def test_an_empty_history_survives_too():
    snapshot = History().snapshot()
    assert all(array.size for array in snapshot.values())
    history = random_history()
    history.restore(snapshot)
    assert history.history_tokens == 0
    assert_equal(history.snapshot(), snapshot)


DAMAGES = {
    "missing": ("law_ids_M", None, "found no law_ids_M"),
    "too few prompts": ("prompt_id_R", lambda a: a[:-1], "of prompt_id_R"),
    "too few tokens": ("tokens_X", lambda a: a[:-1], "of tokens_X"),
    "too many tokens": ("tokens_X", lambda a: np.append(a, 1), "of tokens_X"),
    "too few laws": ("laws_X", lambda a: a[:-1], "of laws_X"),
    "too few entries": ("law_ids_M", lambda a: a[:-1], "of law_ids_M"),
    "too many probabilities": ("law_probs_M", lambda a: np.append(a, 1), "of law_probs_M"),
    "empty rollout": ("length_R", lambda a: a * 0, "lengths of 1 or more"),
    "negative tokens": ("tokens_X", lambda a: -a, "^tokens_X: found int32 of"),
    "negative prompts": ("prompt_id_R", lambda a: a - 1, "^prompt_id_R: found"),
    "negative counts": ("laws_X", lambda a: -a, "^laws_X: found"),
    "beyond int32": ("tokens_X", lambda a: a.astype(np.int64) + 2**31, "^tokens_X: found int64"),
    "beyond certainty": ("law_probs_M", lambda a: a + WHOLE + 1, f"none above {WHOLE}$"),
    "floats": ("step_R", lambda a: a * 1.0, "^step_R: found float64"),
    "two dimensions": ("step_R", lambda a: a[None], r"^step_R: found int32 of shape \(1, "),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_snapshot_is_refused_and_nothing_changes(damage):
    name, change, message = DAMAGES[damage]
    history = random_history()
    before = history.snapshot()
    broken = dict(before)
    if change is None:
        del broken[name]
    else:
        broken[name] = change(before[name])
    with pytest.raises(ValueError, match=message) as refusal:
        history.restore(broken)
    assert "\n" not in str(refusal.value)
    assert_equal(history.snapshot(), before)


def test_a_snapshot_begins_with_a_dummy_and_tells_the_order_of_all_prompts():
    history = History()
    for step, prompt_id in enumerate([5, 2, 5]):
        history.observe(prompt_id, [step] * (step + 1), step)
    snapshot = history.snapshot()
    assert snapshot["prompt_id_R"].tolist() == [-1, 5, 2, 5]
    assert snapshot["step_R"].tolist() == [-1, 0, 1, 2]
    assert snapshot["length_R"].tolist() == [1, 1, 2, 3]
    assert snapshot["tokens_X"].tolist() == [-1, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("bounds", [{}, {"window": 3}, {"max_bytes": 60_000}])
def test_a_restored_history_takes_as_much_and_forgets_when_the_other_does(bounds):
    """Logs are cleared and grow at the same times, whatever dead rollouts lay in them."""
    rng = np.random.default_rng(5)
    history, sizes = random_history(**bounds), set()
    for step in range(60, 360):
        restored = History(**bounds)
        restored.restore(history.snapshot())
        for _ in range(int(rng.integers(1, 5))):
            tokens_N = rng.integers(0, 3, rng.integers(1, 30))
            best = random_best(rng, tokens_N.size)
            for one in (history, restored):
                one.observe(step % PROMPTS, tokens_N, step, best)
            assert restored.history_bytes == history.history_bytes
            assert_equal(restored.snapshot(), history.snapshot())
        sizes.add(history.history_bytes)
    assert len(sizes) > 1


@pytest.mark.parametrize("sizes", [[], [1], [10, -1, 0], [0, 0, 0], [-5, 9, 9], [2**31 - 1, 9, 9]])
def test_sizes_that_cannot_be_are_left_alone(sizes):
    history = random_history()
    snapshot = history.snapshot() | {"log_sizes": np.array(sizes, np.int64)}
    restored = History()
    restored.restore(snapshot)
    del snapshot["log_sizes"]
    after = restored.snapshot()
    assert_equal({name: after[name] for name in snapshot}, snapshot)


@pytest.mark.parametrize("fewer", [(1, 0), (0, 1)])
def test_a_log_with_less_in_use_than_its_rollouts_take_cannot_be(fewer):
    history = random_history()
    snapshot = history.snapshot()
    lengths, entries = snapshot["length_R"][1:], snapshot["law_ids_M"].size - 1
    least = lengths.sum() + lengths.size, entries
    snapshot["log_sizes"] = np.array([4096, least[0] - fewer[0], least[1] - fewer[1]], np.int32)
    restored = History()
    restored.restore(snapshot)
    capacity, used, used_entries = restored.snapshot()["log_sizes"]
    assert capacity != 4096
    assert (used, used_entries) == least
    assert_equal_rollouts(restored, history)


def assert_equal_rollouts(one, other):
    for prompt_id in range(PROMPTS):
        for a, b in zip(one.rollouts(prompt_id), other.rollouts(prompt_id), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_restored_history_forgets_in_the_same_order():
    """Over all prompts: a snapshot that lists prompt by prompt would pass every other test."""
    history = History()
    for step, prompt_id in enumerate([1, 0, 1, 0]):
        history.observe(prompt_id, [step] * 10, step)
    restored = History()
    restored.restore(history.snapshot())
    assert restored.snapshot()["step_R"].tolist() == [-1, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("tokens_X", np.zeros((3, 1), int), r"tokens_X: found int64 of shape \(3, 1\)"),
        ("tokens_X", np.array([-1.0, 1.0, 2.0]), "tokens_X: found float64"),
        ("prompt_id_R", np.array([-1, -2]), "prompt_id_R: found"),
        ("step_R", np.array([-1, -1]), "step_R: found"),
        ("step_R", np.array([-1]), "1 of step_R"),
        ("prompt_id_R", np.array([-1, 0, 0]), "3 of prompt_id_R"),
        ("length_R", np.array([0, 3]), "lengths of 1 or more"),
        ("length_R", np.array([3, 0]), "lengths of 1 or more"),
        ("length_R", np.array([1, 1]), "lengths of 1 or more"),
    ],
)
def test_a_snapshot_with_one_wrong_array_is_refused(name, array, message):
    history = History()
    history.observe(0, [1, 2], 0)
    with pytest.raises(ValueError, match=message):
        history.restore({**history.snapshot(), name: array})
    assert [r.tolist() for r in history.rollouts(0)] == [[1, 2]]
