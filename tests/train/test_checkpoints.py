"""Checkpoints are written beside the steps; damaged ones are passed over, and the best are kept."""

import errno
import shutil
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.checkpoints import flip, history, largest, state, truncate
from tests.support.runs import (
    saved_steps,
)
from train import ending
from train.checkpoints import Checkpoints
from train.learner import TrainState
from train.score import Score


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three") / "checkpoints"
    checkpoints = Checkpoints(folder, keep=3)
    for step in (2, 4, 6):
        checkpoints.save(step, state(step), history(step))
    checkpoints.wait()
    return folder


DAMAGE = {
    "flipped": lambda folder: flip(largest(folder / "state")),
    "truncated": lambda folder: truncate(largest(folder / "state")),
    "emptied": lambda folder: largest(folder / "history").write_bytes(b""),
    "missing": lambda folder: largest(folder / "state").unlink(),
    "no state": lambda folder: shutil.rmtree(folder / "state"),
    "no metadata": lambda folder: (folder / "state" / "_METADATA").unlink(),
    "no record": lambda folder: (folder / "files.json").unlink(),
    "half a record": lambda folder: truncate(folder / "files.json"),
    "nothing": lambda folder: [shutil.rmtree(folder), folder.mkdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_one_before_a_damaged_checkpoint_is_used(three, tmp_path, capsys, damage):
    folder = tmp_path / "checkpoints"
    shutil.copytree(three, folder)
    DAMAGE[damage](folder / "6")
    checkpoints = Checkpoints(folder, keep=2)
    saved = checkpoints.newest(state(0))
    assert saved is not None
    assert saved.next_step == 4
    np.testing.assert_array_equal(saved.state.params["w"], state(4).params["w"])
    np.testing.assert_array_equal(saved.history["tokens"], history(4)["tokens"])
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert f"checkpoint passed over: {folder}/6/" in complaint
    # The next one takes the damaged one's place, not that of a whole one.
    checkpoints.save(6, state(6), history(6))
    checkpoints.wait()
    assert saved_steps(tmp_path) == [4, 6]
    again = Checkpoints(folder).newest(state(0))
    assert again is not None
    assert again.next_step == 6


def test_where_no_checkpoint_is_whole_nothing_is_deleted(three, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(three, folder)
    for step in saved_steps(tmp_path):
        flip(largest(folder / str(step)))
    held = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match="found 3 checkpoints, allowed: one that can be used"):
        Checkpoints(folder).newest(state(0))
    assert sorted(folder.rglob("*")) == held
    assert Checkpoints(tmp_path / "none").newest(state(0)) is None


@pytest.fixture
def held_up(monkeypatch):
    """Checkpoints do not get their names before this event; `written` says that one could."""
    go_on = threading.Event()
    go_on.written = threading.Event()
    complete = Checkpoints._complete

    def wait_and_complete(self, *args):
        go_on.written.set()
        assert go_on.wait(60)
        complete(self, *args)

    monkeypatch.setattr(Checkpoints, "_complete", wait_and_complete)
    yield go_on
    go_on.set()


def test_a_save_returns_before_it_is_written_and_the_next_waits_for_it(tmp_path, held_up):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    checkpoints.save(2, state(2), history(2))
    checkpoints.check()
    assert saved_steps(tmp_path) == []
    threading.Timer(0.05, held_up.set).start()
    checkpoints.save(4, state(4), history(4))
    assert saved_steps(tmp_path)[0] == 2
    checkpoints.close()
    assert saved_steps(tmp_path) == [2, 4]


def test_a_state_that_is_given_away_while_it_is_written_is_saved_as_it_was(tmp_path):
    """Large, so that much of it is written after the first update."""

    def add_one(state):
        return jax.tree.map(lambda x: x + 1, state)

    update = jax.jit(add_one, donate_argnums=0)
    now = TrainState({"w": jnp.zeros(4_000_000)}, {"m": jnp.zeros(5)}, jnp.asarray(0, jnp.int32))
    now = jax.block_until_ready(update(now))
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(1, now, history(1))
    for _ in range(5):
        now = update(now)
    assert float(now.params["w"][0]) == 6.0
    saved = checkpoints.newest(now)
    assert saved is not None
    assert all(np.all(np.asarray(leaf) == 1) for leaf in jax.tree.leaves(saved.state))


@pytest.mark.parametrize("noticed_by", ["check", "wait", "close", "save"])
def test_a_write_that_fails_is_reported_once_and_leaves_the_one_before(
    tmp_path, monkeypatch, noticed_by
):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(2, state(2), history(2))
    checkpoints.wait()

    def fail(self, *_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "_complete", fail)
        checkpoints.save(4, state(4), history(4))
        writing = checkpoints._writing
        assert writing is not None
        assert writing.exception(60)
    again = {"save": (6, state(6), history(6))}.get(noticed_by, ())
    with pytest.raises(OSError, match="No space left"):
        getattr(checkpoints, noticed_by)(*again)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["2"]
    checkpoints.check()
    checkpoints.save(8, state(8), history(8))
    checkpoints.close()
    assert saved_steps(tmp_path) == [8]


def test_where_another_process_fails_nobody_waits_for_its_part(tmp_path, held_up, monkeypatch):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(2, state(2), history(2))
    assert held_up.written.wait(60)  # Orbax, too, asks how many processes there are
    turns = []

    def exchange(work):
        turns.append(work())
        if len(turns) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return [turns[-1], False]

    left = ending._State()
    with monkeypatch.context() as patched:
        patched.setattr("train.checkpoints.exchange", exchange)
        patched.setattr("train.checkpoints.TURN_SECONDS", 0.01)
        patched.setattr(ending, "_state", left)
        patched.setattr(jax, "process_count", lambda: 2)
        with pytest.raises(OSError, match="No space left"):
            checkpoints.wait()
    assert turns == [False, False, False]
    assert left.threads_left
    held_up.set()


def test_the_best_stay_beside_the_newest(tmp_path):
    scores = {1: 0.5, 2: 0.9, 3: None, 4: 0.9, 5: float("nan"), 6: 0.1, 7: 0.2}
    folder, kept = tmp_path / "checkpoints", []
    for step, score in scores.items():  # every time a new process, as after a kill
        checkpoints = Checkpoints(folder, keep=1, keep_best=2)
        checkpoints.save(step, state(step), history(step), score)
        checkpoints.wait()
        kept.append(saved_steps(tmp_path))
    assert kept == [[1], [1, 2], [1, 2, 3], [2, 4], [2, 4, 5], [2, 4, 6], [2, 4, 7]]
    saved = Checkpoints(folder).newest(state(0))
    assert saved is not None
    assert saved.next_step == 7


def test_the_score_is_held_out_accuracy_where_there_is_evaluation_else_reward():
    rows = [
        {"reward_mean": 0.5},
        {"reward_mean": float("nan"), "heldout_new_accuracy": 0.25, "heldout_seen_accuracy": 0.75},
        {"reward_mean": 0.75},
    ]
    for heldout, expected in ((True, [None, 0.5, 0.5]), (False, [0.5, None, 0.75])):
        score = Score(heldout)
        found = []
        for row in rows:
            score.see(row)
            found.append(score.value)
        assert found == expected
