"""Every example runs: our own task from the checkout, the library alone from the built wheel."""

import json
import re
import subprocess
import sys
import zipfile
from contextlib import closing

import pytest

from train.config_file import load_config
from train.loop import run
from train.tasks.registry import open_task

EXAMPLES = {"library_alone.py", "own_prompts.jsonl", "own_task.py", "own_task.yaml"}
SMALL = ("rollout.slots=4", "rollout.draft_tokens=4", "train.group=4", "train.micro_batch=4")


def test_no_example_is_left_without_a_test(repository):
    assert {path.name for path in (repository / "examples").glob("*.*")} == EXAMPLES


@pytest.mark.slow
def test_own_prompts_and_reward_train(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(repository)
    more = (f"out={tmp_path}/run", "train.steps=2", "train.prompts_per_step=2", *SMALL)
    run(load_config(repository / "examples" / "own_task.yaml", more), quiet=True)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 2
    for row in rows:
        assert row["reward_mean"] > 0.0
        assert row["killed_frac"] == 0.0
        assert row["tokens_per_forward"] > 1.0
    assert (tmp_path / "run" / "report.html").stat().st_size > 0


def test_own_task_class(repository, monkeypatch):
    monkeypatch.chdir(repository)
    override = "task=examples/own_task.py:CountRows"
    config = load_config(repository / "examples" / "own_task.yaml", [override])
    with closing(open_task(config)) as task:
        item, other = task.train_items[:2]
        scores = task.score([item, other], [f"SELECT COUNT(*) FROM {item.payload}", "SELECT 1"])
        assert [score.reward for score in scores] == [1.0, 0.0]
        assert item.payload in task.prompt(item)
        assert [len(task.train_items), len(task.heldout["new"])] == [4, 1]


def test_the_library_alone_runs_from_the_wheel(repository, tmp_path):
    """Drafting keeps more than 1.2 tokens per forward, and every token is plain decoding's."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=repository,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    program = f"""
import runpy, sys
sys.path.insert(0, {str(tmp_path / "site")!r})
runpy.run_path({str(repository / "examples" / "library_alone.py")!r}, run_name="__main__")
assert not {{"models", "train", "flax", "optax", "orbax"}} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kept = [float(kept) for kept in re.findall(r"([\d.]+) tokens per forward", done.stdout)]
    same = re.findall(r"(\d+) of (\d+) tokens as in plain decoding", done.stdout)
    reward = [float(reward) for reward in re.findall(r"reward ([\d.]+)", done.stdout)]
    assert len(kept) == len(same) == len(reward) >= 3
    assert min(kept[2:]) > 1.2
    assert kept[2] > kept[0]
    assert all(equal == of for equal, of in same)
    assert reward[-1] > 2 * reward[0]
