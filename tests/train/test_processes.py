"""Two processes of four devices train as one does, and what they leave goes on anywhere."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.runs import REPOSITORY, SETTINGS, make_micro_policy

SAME = ("reward_mean", "response_len_mean", "committed_tokens", "history_tokens")
CLOSE = ("loss", "grad_norm", "entropy")
OVERRIDES = (
    *SETTINGS,
    "train.group=4",
    "train.micro_batch=8",
    "rollout.slots=8",
    "evaluation.slots=8",
    "optimizer.learning_rate=1e-4",
)
LINE = "error: process 1 of 2 ended by signal SIGKILL and the others were stopped"


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_micro_policy(tmp_path_factory.mktemp("micro") / "policy")


def start(policy, out, steps, devices, *overrides, processes=1, script="train/train.py"):
    """Training on so many virtual devices in each of so many processes."""
    launcher = ["train/launch.py", "--processes", str(processes), "--"] if processes > 1 else []
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [
            sys.executable, *launcher, script, "configs/quickstart.yaml", *OVERRIDES,
            f"model.checkpoint={policy}", f"out={out}", f"train.steps={steps}", *overrides,
        ],
        cwd=REPOSITORY,
        env=os.environ | {"XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def finished(process):
    said, complained = process.communicate(timeout=600)
    assert process.returncode == 0, complained
    return said


def rows(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_eight_devices_of_two_processes_then_one_then_four_are_one_run(policy, tmp_path):
    out, alone = tmp_path / "moved", tmp_path / "alone"
    said = finished(start(policy, out, 2, 4, "mesh.data=2", "mesh.fsdp=4", processes=2))
    assert said.count("report: ") == 1  # only the first process speaks
    finished(start(policy, out, 3, 1))
    finished(start(policy, out, 4, 4, "mesh.fsdp=2", "mesh.data=2"))
    finished(start(policy, alone, 4, 1))
    moved, expected = rows(out), rows(alone)
    assert [row["step"] for row in moved] == [0, 1, 2, 3]
    for one, other in zip(moved, expected, strict=True):
        assert {name: one[name] for name in SAME} == {name: other[name] for name in SAME}
        found, wanted = ([row[n] for n in CLOSE] for row in (one, other))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    assert all(row["refused_steps"] == 0 for row in moved)


def children(pid):
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_killed_process_ends_the_others_with_one_line(policy, tmp_path):
    launcher = start(policy, tmp_path / "run", 10_000, 4, "mesh.data=8", processes=2)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        assert launcher.poll() is None, launcher.communicate()[1]
        time.sleep(0.05)
    both = children(launcher.pid)
    os.kill(both[1], signal.SIGKILL)
    killed = time.monotonic()
    _, complained = launcher.communicate(timeout=60)
    assert time.monotonic() - killed < 30
    assert launcher.returncode == 1
    assert complained.strip().splitlines()[-1].startswith(LINE)
    assert not [pid for pid in both if Path(f"/proc/{pid}").exists()]


def test_a_signal_saves_in_all_processes(policy, tmp_path):
    out = tmp_path / "run"
    launcher = start(policy, out, 10_000, 4, "mesh.data=8", processes=2)
    while not (out / "metrics.jsonl").exists() or (out / "metrics.jsonl").stat().st_size == 0:
        assert launcher.poll() is None, launcher.communicate()[1]
        time.sleep(0.05)
    launcher.send_signal(signal.SIGTERM)
    said, complained = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, complained
    assert "everything is saved" in said
    done = len(rows(out))
    assert (out / "checkpoints" / str(done) / "files.json").exists()


FULL_ON_ONE = """
import resource, runpy, signal, sys
sys.path.insert(0, {repository!r})
if "distributed.process=1" in sys.argv:  # as if its disk were full: no file beyond 20 kB
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.argv[0] = {train!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_where_one_process_cannot_write_its_part_all_end_with_one_line(policy, tmp_path):
    train = str(REPOSITORY / "train" / "train.py")
    script = tmp_path / "full_on_one.py"
    script.write_text(FULL_ON_ONE.format(repository=str(REPOSITORY), train=train))
    run = start(policy, tmp_path / "run", 10_000, 4, "mesh.fsdp=8", processes=2, script=str(script))
    _, complained = run.communicate(timeout=600)
    errors = [line for line in complained.splitlines() if line.startswith("error: ")]
    assert run.returncode == 1
    assert errors, complained
    assert all("File too large" in line and "checkpoints/2" in line for line in errors)
    assert not list((tmp_path / "run" / "checkpoints").glob("[0-9]*"))
