"""`train/check.py` on the embedded checkpoint, with few samples, in a process of its own."""

import json
import subprocess
import sys

import pytest

CHECKPOINT = "data/checkpoints/tiny"
FEW = (
    "--prompts=24", "--group=4", "--prefixes=3", "--draws=400",
    "rollout.slots=16", "rollout.draft_tokens=8", "rollout.max_new_tokens=24",
)  # fmt: skip


def run(repository, *arguments):
    return subprocess.run(
        [sys.executable, "train/check.py", *arguments],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.mark.stat
@pytest.mark.slow
def test_the_embedded_policy_is_lossless(repository, tmp_path):
    """Two statistical checks at alpha 1e-3 each, seed fixed; the planted faults are caught."""
    path = tmp_path / "figures.json"
    done = run(repository, CHECKPOINT, *FEW, "--json", str(path), "rollout.temperature=1.2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Verdict: lossless." in done.stdout
    (subject,) = json.loads(path.read_text())["subjects"]
    assert [finding["outcome"] for finding in subject["findings"]] == ["holds"] * 4
    assert [fault["caught"] for fault in subject["planted"]] == [True] * len(subject["planted"])
    assert len(subject["planted"]) >= 5
    assert subject["rounding"] == {"rms": 1e-4, "tie": 1e-4}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere"], "/nowhere: found no config.json, allowed: a checkpoint folder"),
        ([CHECKPOINT, "rollout.temprature=1"], "nearest: rollout.temperature"),
        ([CHECKPOINT, "rollout.temperature=0"], "temperature: found arg-max"),
        ([CHECKPOINT, "--prompts", "1"], "prompts: found 1, allowed: 2 or more"),
        ([], "checkpoint"),
    ],
)
def test_a_mistake_costs_one_line_and_status_2(repository, arguments, words):
    done = run(repository, *arguments)
    assert done.returncode == 2, done.stderr
    line = done.stderr.strip()
    assert line.startswith("error: ")
    assert words in line
    assert "\n" not in line
