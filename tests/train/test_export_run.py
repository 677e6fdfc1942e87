"""A run's weights leave it: export, import, and the very parameters that its checkpoint holds."""

import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from models import checkpoint
from models.importing import import_checkpoint
from tests.support.runs import REPOSITORY, RunCommand, held, make_micro_policy


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three steps, with checkpoints 2 and 3."""
    root = tmp_path_factory.mktemp("run")
    process = RunCommand(make_micro_policy(root / "micro"), root / "run", steps=3).start()
    process.communicate()
    assert process.returncode == 0
    return root / "run"


def export(*arguments):
    command = [sys.executable, "train/export_checkpoint.py", *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("source", "step"), [("", 3), ("checkpoints/2", 2)])
def test_export_and_import_give_back_the_parameters_of_the_checkpoint(run, tmp_path, source, step):
    done = export(run / source, tmp_path / "theirs")
    assert done.returncode == 0, done.stderr
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    config, params = checkpoint.load(tmp_path / "ours")
    before, started = checkpoint.load(run.parent / "micro")
    assert config == before
    stored = held(run, step)["state"]["params"]
    jax.tree.map(np.testing.assert_array_equal, params, stored)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), params, started)
    assert any(jax.tree.leaves(moved))


def test_a_mistake_is_one_line(run, tmp_path):
    broken = tmp_path / "run"
    shutil.copytree(run, broken)
    next((broken / "checkpoints" / "3" / "state" / "d").iterdir()).write_bytes(b"?")
    shutil.rmtree(broken / "checkpoints" / "2")
    damaged = export(broken, tmp_path / "out")
    shutil.rmtree(broken / "checkpoints" / "3")
    empty = export(broken, tmp_path / "out")
    for done, message in ((damaged, "damaged"), (empty, "found no checkpoint")):
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
