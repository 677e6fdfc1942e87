"""A damaged checkpoint is passed over, and nothing that is there is deleted for it."""

import shutil

import numpy as np
import pytest

from tests.support.checkpoints import flip, history, largest, state, truncate
from tests.support.runs import (
    saved_steps,
)
from train.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three") / "checkpoints"
    checkpoints = Checkpoints(folder, keep=3)
    for step in (2, 4, 6):
        checkpoints.save(step, state(step), history(step))
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
