"""What a run does when it is killed, interrupted, out of disk, stuck, or given NaN.

The thirty kills are `make faults`; here the same run meets each fault once.
"""

import re
import shutil
import signal
import subprocess
import time
from functools import partial
from io import FileIO

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX import SummaryWriter

from models import checkpoint
from ngramrl_jax.types import Rollout
from tests.support.checkpoints import flip, history, largest, state, truncate
from tests.support.runs import (
    EVERY,
    LOST,
    TINY,
    RunCommand,
    assert_equal_runs,
    committing,
    ended,
    handles_signals,
    held,
    kill,
    make_micro_policy,
    rows,
    saved_steps,
    wait_for,
)
from train.checkpoints import Checkpoints
from train.disk import best_effort, naming, write_whole
from train.ending import RunStopped
from train.metrics import write_atomic
from train.refusals import Refusals, not_finite
from train.tasks.base import Score
from train.watchdog import watched

STEPS = 16


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_micro_policy(tmp_path_factory.mktemp("micro") / "policy")


@pytest.fixture(scope="module")
def whole(policy, tmp_path_factory):
    """A run that nothing happens to."""
    command = RunCommand(policy, tmp_path_factory.mktemp("runs") / "whole", STEPS)
    status, _, complained = command.finish()
    assert status == 0, complained
    return command


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few megabytes, and a function that makes it larger."""
    place = tmp_path / "disk"
    place.mkdir()

    def mount(options):
        return subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", place], check=False)

    if mount(["-o", "size=8m"]).returncode:
        pytest.skip("a small file system needs the right to mount one")
    yield place, lambda: mount(["-o", "remount,size=200m"])
    subprocess.run(["umount", place], check=True)


REWARD = """
from pathlib import Path

def reward(record, response):
    folder = Path(__file__).parent
    with (folder / "calls").open("a") as calls:
        print("called", file=calls)
    if (folder / "mended").exists() or len((folder / "calls").read_text().split()) <= 8:
        return len(response) % 3
    return record["absent"]
"""


@pytest.mark.slow
def test_a_reward_that_raises_ends_the_run_and_loses_nothing(policy, tmp_path):
    """Two to four calls a step, all distinct: the ninth is one of the third step or later."""
    (tmp_path / "own.py").write_text(REWARD)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "c"}\n')
    overrides = (
        f"task={tmp_path}/own.py:reward",
        f"data.path={tmp_path}/prompts.jsonl",
        "train.checkpoint_every=100",
    )
    run = RunCommand(policy, tmp_path / "run", STEPS, overrides)
    status, said, complained = run.finish()
    assert status == 2
    done = len(rows(run.out))
    assert done >= 2
    assert saved_steps(run.out) == [done]
    where = rf"{tmp_path}/prompts\.jsonl, line [123] and the response '.*', allowed: a number"
    word = f"everything is saved; the same command goes on at step {done} of {STEPS}"
    found = rf"found KeyError: 'absent' \(own\.py, line 10\) for {where}; {word}"
    assert re.fullmatch(rf"error: {tmp_path}/own\.py:reward: {found}\n", complained), complained
    left_out = "of which each epoch leaves out 1 (train.prompts_per_step=2)"
    assert f"3 training prompts, {left_out}; held out: nothing\n" in said

    (tmp_path / "mended").touch()
    status, said, complained = run.finish()
    assert (status, complained) == (0, "")
    assert f"resuming at step {done} of {STEPS}" in said
    assert len(rows(run.out)) == STEPS


# Killed and interrupted -----------------------------------------------------------------------


@pytest.mark.slow
def test_kills_and_signals_lose_little_and_change_nothing(policy, whole, tmp_path):
    run = RunCommand(policy, tmp_path / "run", STEPS)

    process = run.start()  # a signal before there is anything to save
    assert wait_for(partial(handles_signals, process), process)
    process.send_signal(signal.SIGTERM)
    status, said, complained = ended(process)
    assert (status, said) == (0, "stopped: nothing had to be saved; the same command starts anew\n")
    assert complained == "stopping; a second signal ends at once\n"

    for begun in (
        lambda since: len(rows(run.out)) > 2,
        lambda since: committing(run.out, since),
    ):
        started = time.time()
        process = run.start()
        assert wait_for(partial(begun, started), process)
        kill(process)
        assert len(rows(run.out)) - max(saved_steps(run.out), default=0) <= LOST

    for number in (signal.SIGINT, signal.SIGTERM):
        before = len(rows(run.out))
        process = run.start()
        assert wait_for(partial(has_more_rows, run.out, before), process)
        process.send_signal(number)
        status, said, complained = ended(process)
        assert status == 0, complained
        done = len(rows(run.out))
        assert max(saved_steps(run.out)) == done  # not a step is lost
        word = f"everything is saved; the same command goes on at step {done} of {STEPS}"
        assert said.splitlines()[-1] == f"stopped: {word}"
        assert f"resuming at step {done}" not in said

    status, said, complained = run.finish()
    assert status == 0, complained
    assert f"resuming at step {done} of {STEPS}" in said
    assert complained == ""
    assert_equal_runs(whole.out, run.out, STEPS)


def has_more_rows(out, before):
    return len(rows(out)) > before


# Damaged checkpoints --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(policy, whole, tmp_path):
    run = RunCommand(policy, tmp_path / "run", STEPS)
    shutil.copytree(whole.out, run.out)
    stored = run.out / "config.yaml"
    stored.write_text(stored.read_text().replace(str(whole.out), str(run.out)))
    newest = run.out / "checkpoints" / str(STEPS)
    flip(largest(newest / "state"))
    status, said, complained = run.finish()
    assert status == 0, complained
    assert f"resuming at step {STEPS - EVERY}" in said
    assert complained.count("\n") == 1
    assert f"checkpoint passed over: {newest}/state/" in complained
    assert_equal_runs(whole.out, run.out, STEPS)

    for step in saved_steps(run.out):
        truncate(largest(run.out / "checkpoints" / str(step)))
    kept = rows(run.out)
    status, _, complained = run.finish()
    assert status == 2
    assert complained.startswith(f"error: {run.out}/checkpoints: found 2 checkpoints")
    assert complained.count("\n") == 1
    assert saved_steps(run.out) == [STEPS - EVERY, STEPS]
    assert rows(run.out) == kept


# Full disk ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_full_disk_costs_one_line_and_no_checkpoint(policy, whole, small_disk):
    place, enlarge = small_disk
    (place / "filler").write_bytes(b"0" * (5 << 20))
    run = RunCommand(policy, place / "run", STEPS, ("train.keep_checkpoints=100",))
    status, _, complained = run.finish()
    assert status == 1
    error = complained.splitlines()[-1]
    assert error.startswith(f"error: {run.out}/checkpoints/")
    assert ": No space left on device, " in error
    assert "Traceback" not in complained
    steps = saved_steps(run.out)
    assert steps
    assert not committing(run.out)
    enlarge()
    status, said, complained = run.finish()
    assert status == 0, complained
    assert f"resuming at step {steps[-1]}" in said
    assert_equal_runs(whole.out, run.out, STEPS)


def test_a_checkpoint_that_does_not_fit_is_not_begun(small_disk):
    place, enlarge = small_disk
    checkpoints = Checkpoints(place / "checkpoints", keep=1)
    checkpoints.save(2, state(2), history(2))
    checkpoints.wait()
    (place / "filler").write_bytes(b"0" * (shutil.disk_usage(place).free - 2**19))
    with pytest.raises(OSError, match=r"No space left on device, [0-9,]+ bytes needed") as caught:
        checkpoints.save(4, state(4), history(4))
    checkpoints.wait()
    assert caught.value.filename == str(place / "checkpoints" / "4")
    assert saved_steps(place) == [2]
    assert not committing(place)
    enlarge()
    checkpoints.save(4, state(4), history(4))
    checkpoints.wait()
    assert saved_steps(place) == [4]


def save_and_wait(checkpoints, step):
    checkpoints.save(step, state(step), history(step))
    checkpoints.wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax's
def test_a_disk_that_fills_up_below_orbax_loses_no_checkpoint(small_disk, monkeypatch):
    place, _ = small_disk
    monkeypatch.setattr(Checkpoints, "_check_room", lambda self, *parts: None)
    checkpoints = Checkpoints(place / "checkpoints", keep=1)
    checkpoints.save(2, state(2), history(2))
    checkpoints.wait()
    filler = place / "filler"
    for room in (0, 8, 24, 48):
        filler.write_bytes(b"0" * (shutil.disk_usage(place).free - room * 1024))
        with pytest.raises(OSError, match="No space left") as caught:
            save_and_wait(checkpoints, 4)
        assert caught.value.filename == str(place / "checkpoints" / "4")
        saved = Checkpoints(place / "checkpoints").newest(state(0))
        assert saved is not None
        assert saved.next_step == 2
        filler.unlink()
    checkpoints.save(4, state(4), history(4))
    checkpoints.wait()
    assert saved_steps(place) == [4]


def test_files_of_a_run_are_named_when_the_disk_is_full(tmp_path):
    report = tmp_path / "report.html"
    report.write_text("old")
    (tmp_path / "report.html.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(report, "new")
    assert caught.value.filename == str(report)
    assert report.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    full = FileIO("/dev/full", "wb")
    with full, pytest.raises(OSError, match="No space left") as caught, naming(report):
        write_whole(full, b"row")
    assert caught.value.filename == str(report)


def test_tensorboard_does_without_a_full_disk(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("train.disk.FileIO", lambda path, mode: FileIO("/dev/full", mode))
    writer = SummaryWriter(best_effort(tmp_path / "tensorboard"))
    for step in range(100):  # more than its queue holds
        writer.add_scalar("reward", 1.0, step)
    writer.close()
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert "tensorboard/events" in complaint
    assert "No space left on device; the run goes on" in complaint


# Numbers that are none ------------------------------------------------------------------------


@pytest.mark.slow
def test_refused_steps_are_named_counted_and_stop_the_run(policy, tmp_path):
    run = RunCommand(policy, tmp_path / "run", 8, ("train.stuck_after_s=1",))
    status, _, complained = run.finish(ODD_NAN_STEPS="1 3 4 5", ODD_SLOW_STEP="2")
    assert status == 1
    lines = complained.splitlines()
    refused = (
        r"refused: step (\d): rewards of 1 of 4 rollouts are not finite, the first of prompt \d"
    )
    assert re.findall(rf"^{refused}$", complained, re.MULTILINE) == ["1", "3", "4", "5"]
    assert lines[-1].startswith("error: stopped after 3 refused steps in a row (train.max_refused)")
    assert [row["refused_steps"] for row in rows(run.out)] == [0, 1, 1, 2, 3, 4]
    assert max(saved_steps(run.out)) == 6
    # Only steps 0 and 2 have left anything.
    assert held(run.out, 6)["state"]["step"] == 2
    assert set(sampled_in(run.out, 6)) == {-1, 0, 2}
    # The step that took its time is named, with the place.
    stuck = next(i for i, line in enumerate(lines) if "step 2: reward" in line)
    assert lines[stuck].startswith("stuck? step 2: reward has not ended for 1 s")
    assert any("odd_task.py" in line and "in score" in line for line in lines[stuck:])

    status, said, complained = run.finish()
    assert status == 0, complained
    assert "resuming at step 6 of 8" in said
    assert [row["refused_steps"] for row in rows(run.out)][-2:] == [4, 4]


@pytest.mark.slow
def test_a_policy_of_nan_is_refused_at_every_step(policy, tmp_path):
    config, params = checkpoint.load(policy)
    params["embedding_VD"] = params["embedding_VD"].at[0, 0].set(jnp.nan)
    checkpoint.save(tmp_path / "nan", config, params, TINY)
    run = RunCommand(tmp_path / "nan", tmp_path / "run", 8)
    status, _, complained = run.finish()
    assert status == 1
    assert "refused: step 0: log-probabilities of 4 of 4 rollouts are not finite" in complained
    assert "Traceback" not in complained
    assert max(saved_steps(run.out)) == 3
    assert sampled_in(run.out, 3) == [-1]


def sampled_in(out, step):
    """For every rollout in the history of a checkpoint, the step that sampled it; -1: a dummy."""
    return held(out, step)["history"]["step_R"].tolist()


def rollout(prompt_id, logps):
    size = len(logps)
    return Rollout(
        prompt_id=prompt_id,
        sibling=0,
        prompt_P=np.zeros(1, np.int32),
        tokens_N=np.zeros(size, np.int32),
        logps_N=np.asarray(logps, np.float32),
        drafted_N=np.zeros(size, np.bool_),
        truncated=False,
        policy_version=0,
        step=0,
        rounds=size,
    )


def test_every_number_that_an_update_reads_is_looked_at():
    good, bad = rollout(7, [-1.0, -2.0]), rollout(8, [-1.0, float("nan")])
    assert not_finite([good, good], [Score(1.0), Score(0.0)]) is None
    found = not_finite([good, bad], [Score(1.0), Score(0.0)])
    assert found == "log-probabilities of 1 of 2 rollouts are not finite, the first of prompt 8"
    for reward in (float("nan"), float("inf"), -float("inf")):
        found = not_finite([good, good], [Score(1.0), Score(reward)])
        assert found == "rewards of 1 of 2 rollouts are not finite, the first of prompt 7"


def test_refusals_count_in_a_row_and_in_all(capsys):
    refusals = Refusals(2, so_far=5)
    assert refusals.count(0, "why")["refused_steps"] == 6
    refusals.check()
    assert refusals.count(1, None)["refused_steps"] == 6
    assert refusals.count(2, "why")["refused_steps"] == 7
    assert not refusals.too_many
    assert refusals.count(3, "so")["refused_steps"] == 8
    with pytest.raises(RunStopped, match="step 3: so"):
        refusals.check()
    assert capsys.readouterr().err.splitlines()[-1] == "refused: step 3: so"
    with pytest.raises(ValueError, match=r"train\.max_refused: found 0"):
        Refusals(0)


# Stuck ----------------------------------------------------------------------------------------


def test_a_stage_that_does_not_end_is_reported_again_and_again(capfd):
    with watched("step 3: rollout", 0.05):
        time.sleep(0.18)
    with watched("never", 0.0), watched("in time", 60.0):
        pass
    time.sleep(0.1)
    said = capfd.readouterr().err
    assert said.count("stuck? step 3: rollout has not ended for") in (2, 3)
    assert "test_a_stage_that_does_not_end" in said
    assert "never" not in said
