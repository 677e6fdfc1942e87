"""What a run does when it is killed, interrupted, out of disk, stuck, or given NaN.

The thirty kills are `make faults`; here the same run meets each fault once.
"""

import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from io import FileIO

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX import SummaryWriter

from models import checkpoint
from ngramrl_jax.types import Rollout
from tests.support.runs import (
    EVERY,
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
from train.interrupt import Interrupted, deferred, handled
from train.learner import TrainState
from train.metrics import write_atomic
from train.refusals import Refusals, not_finite
from train.tasks.base import Score
from train.watchdog import watched

STEPS = 16
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


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
        assert len(rows(run.out)) - max(saved_steps(run.out), default=0) <= EVERY

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


BUSY = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"  # minutes inside C
SLEEP = "time.sleep(60)"


def signalled(body, *numbers):
    """Runs the body as a command and sends it signals, half a second apart."""
    script = (
        "import gc, hashlib, sys, time\nfrom train.ending import fail_in_one_line\n"
        "from train.interrupt import deferred\n"
        f"with fail_in_one_line():\n    print('ready', flush=True)\n    {body}"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1.0)  # into the body
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.5)
    said, complained = process.communicate(timeout=30)
    return process.returncode, said, complained


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_well_and_the_second_at_once(number):
    assert signalled(SLEEP, number)[:2] == (
        0,
        "stopped: nothing had to be saved; the same command starts anew\n",
    )
    for body in (BUSY, f"\n    with deferred(): {SLEEP}"):
        status, said, complained = signalled(body, number, number)
        assert (status, said) == (128 + number, "")
        assert complained == "stopping; a second signal ends at once\n"


def test_a_deferred_block_runs_to_its_end():
    body = (
        "\n    with deferred(): time.sleep(3.0); print('saved', flush=True)\n    print('not here')"
    )
    status, said, _ = signalled(body, signal.SIGTERM)
    assert status == 0
    assert said.splitlines()[0] == "saved"
    assert "not here" not in said


@pytest.mark.parametrize(
    "slow",
    [
        "gc.callbacks.append(lambda *_: time.sleep(3.0))\n    gc.collect()",
        "def __del__(self): time.sleep(3.0)\n    type('Slow', (), {'__del__': __del__})()",
        "sys.path.insert(0, SLOW)\n    import slow_module",
    ],
)
def test_a_signal_is_not_lost_where_python_swallows_exceptions(tmp_path, slow):
    text = "import time\ntry:\n    time.sleep(3.0)\nexcept BaseException:\n    raise ImportError\n"
    (tmp_path / "slow_module.py").write_text(text)
    body = slow.replace("SLOW", repr(str(tmp_path))) + "\n    print('on')\n    time.sleep(60)"
    status, said, complained = signalled(body, signal.SIGTERM)
    assert (status, complained) == (0, "stopping; a second signal ends at once\n")
    assert "stopped: nothing had to be saved" in said


def test_handlers_are_restored():
    before = [signal.getsignal(number) for number in NUMBERS]
    with pytest.raises(Interrupted), handled(), handled(), deferred():
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in NUMBERS] == before
    with handled(), deferred():
        pass  # nothing of the signal is left for the next command


# Damaged checkpoints --------------------------------------------------------------------------


def state(value):
    params = {"w": jnp.full((64, 64), float(value)), "b": jnp.arange(5.0) + value}
    return TrainState(params, {"m": jnp.zeros(3) + value}, jnp.asarray(value, jnp.int32))


def history(value):
    return {"tokens": np.full(3, value, np.int32)}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three") / "checkpoints"
    checkpoints = Checkpoints(folder, keep=3)
    for step in (2, 4, 6):
        checkpoints.save(step, state(step), history(step))
    return folder


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def truncate(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - max(2, len(content) // 8)])


def largest(folder):
    return max((f for f in folder.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


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
    (place / "filler").write_bytes(b"0" * (shutil.disk_usage(place).free - 2**19))
    with pytest.raises(OSError, match=r"No space left on device, [0-9,]+ bytes needed") as caught:
        checkpoints.save(4, state(4), history(4))
    assert caught.value.filename == str(place / "checkpoints" / "4")
    assert saved_steps(place) == [2]
    assert not committing(place)
    enlarge()
    checkpoints.save(4, state(4), history(4))
    assert saved_steps(place) == [4]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Orbax's
def test_a_disk_that_fills_up_below_orbax_loses_no_checkpoint(small_disk, monkeypatch):
    place, _ = small_disk
    monkeypatch.setattr(Checkpoints, "_check_room", lambda self, *parts: None)
    checkpoints = Checkpoints(place / "checkpoints", keep=1)
    checkpoints.save(2, state(2), history(2))
    filler = place / "filler"
    for room in (0, 8, 24, 48):
        filler.write_bytes(b"0" * (shutil.disk_usage(place).free - room * 1024))
        with pytest.raises(OSError, match="No space left") as caught:
            checkpoints.save(4, state(4), history(4))
        assert caught.value.filename == str(place / "checkpoints" / "4")
        saved = Checkpoints(place / "checkpoints").newest(state(0))
        assert saved is not None
        assert saved.next_step == 2
        filler.unlink()
    checkpoints.save(4, state(4), history(4))
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
