"""Rows survive kills and resumes; the summary's arithmetic equals figures worked out by hand."""

import json
import math
import shutil
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.rollout.counters import RolloutCounters
from train.metrics import (
    MetricsWriter,
    average,
    compare_heldout,
    describe_environment,
    git_commit,
    read_rows,
    reward_parts,
    stages,
    summarise,
    to_json,
    wilson_interval,
    write_atomic,
)
from train.step_metrics import total


def rows_of(steps, **metrics):
    return [{"step": step, "epoch": step // 5} | metrics for step in range(steps)]


def test_rows_come_back_as_written(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        writer.write({"step": 0, "loss": np.float32(0.5), "tpf": jnp.float32(2.0), "by": (1, None)})
        on_disk = read_rows(tmp_path / "metrics.jsonl")  # flushed before the writer closes
        writer.write({"step": 1, "loss": math.nan, "by": np.array([0.25, np.inf])})
    assert on_disk == [{"step": 0, "loss": 0.5, "tpf": 2.0, "by": [1, None]}]
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert json.loads(text.splitlines()[1]) == {"step": 1, "loss": None, "by": [0.25, None]}


def test_a_kill_at_any_byte_loses_at_most_the_last_row(tmp_path):
    rows = [{"step": step, "name": "é", "loss": -1.5e-3} for step in range(3)]
    whole = "".join(to_json(row) + "\n" for row in rows).encode()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    path = tmp_path / "metrics.jsonl"
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        # A row is complete with its closing brace, one byte before the end of its line.
        assert read_rows(path) == rows[: sum(end - 1 <= length for end in ends)]


def test_a_corrupt_line_before_the_last_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl: line 2 is not JSON"):
        read_rows(path)


def test_resume_cuts_back_and_goes_on(tmp_path):
    with MetricsWriter(tmp_path) as writer:
        for row in rows_of(5):
            writer.write(row)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-4])  # killed while it wrote step 4
    with MetricsWriter(tmp_path, first_step=3) as writer:
        assert [row["step"] for row in read_rows(path)] == [0, 1, 2]
        writer.write({"step": 3, "loss": 7.0})
    assert [row["step"] for row in read_rows(path)] == [0, 1, 2, 3]
    assert read_rows(path)[-1]["loss"] == 7.0


def test_tensorboard_gets_scalars_and_vectors_by_index(tmp_path, monkeypatch):
    written = []
    with MetricsWriter(tmp_path) as writer:
        monkeypatch.setattr(writer._events, "add_scalar", lambda *args: written.append(args))
        writer.write({"step": 4, "loss": 0.5, "kl": None, "ok": True, "by": [0.9, None, 0.1]})
    assert written == [("step", 4, 4), ("loss", 0.5, 4), ("by/00", 0.9, 4), ("by/02", 0.1, 4)]
    assert list((tmp_path / "tensorboard").iterdir())


def test_writer_may_be_closed_twice(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.close()
    writer.close()


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "summary.json"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "new \ud800")
    assert path.read_text() == "old"


def test_rates_are_ratios_of_sums():
    rows = [
        {"tokens_per_forward": 4.0, "committed_tokens": 40, "row_rounds": 10},
        {"tokens_per_forward": 1.0, "committed_tokens": 30, "row_rounds": 30},
    ]
    assert average(rows)["tokens_per_forward"] == 70 / 40  # the mean of ratios would be 2.5
    without_sums = [{"tokens_per_forward": row["tokens_per_forward"]} for row in rows]
    assert average(without_sums)["tokens_per_forward"] == 2.5


def test_average_skips_what_a_step_lacks():
    rows = [
        {"step": 0, "kl": None, "by": [1.0, None], "name": "a", "flag": True},
        {"step": 1, "kl": 4.0, "by": [0.5, 0.25, 1.0]},
        {"step": 2, "loss": math.nan},
    ]
    assert average(rows) == {"kl": 4.0, "by": [0.75, 0.25, 1.0]}


def test_summary_of_ten_steps():
    rows = [
        row | {"reward_mean": row["step"] / 10, "reward_execution_match_mean": row["step"] / 20}
        for row in rows_of(10, time_rollout_s=1.0, time_train_s=3.0, time_step_s=4.5)
    ]
    summary = summarise(rows, {"new": {"start": [0, 1]}}, {"seed": 3, "git_commit": None})
    assert summary["steps"] == 10
    assert summary["last"] == rows[-1]
    assert summary["warm"]["reward_mean"] == pytest.approx(0.8)  # steps 7, 8, 9
    assert summary["cold"]["reward_mean"] == pytest.approx(0.2)  # steps 0 to 4
    assert [epoch["epoch"] for epoch in summary["epochs"]] == [0, 1]
    assert summary["epochs"][1]["reward_execution_match_mean"] == pytest.approx(0.35)
    assert summary["time_s"] == {"rollout": 10.0, "train": 30.0}
    assert summary["heldout"] == {"new": {"items": 2, "start": 0.5}}
    assert summary["seed"] == 3
    assert json.loads(to_json(summary)) == summary


@pytest.mark.parametrize(("steps", "warm"), [(1, 1), (2, 1), (3, 1), (4, 2), (10, 3), (11, 4)])
def test_warm_is_the_last_thirty_percent_rounded_up(steps, warm):
    rows = [row | {"loss": float(row["step"] >= steps - warm)} for row in rows_of(steps)]
    summary = summarise(rows, {}, {})
    assert summary["warm"]["loss"] == 1.0
    if warm < steps:
        rows[steps - warm]["loss"] = 0.0
        assert summarise(rows, {}, {})["warm"]["loss"] < 1.0


def test_summary_of_no_steps():
    summary = summarise([], {}, {})
    assert (summary["steps"], summary["warm"], summary["epochs"]) == (0, {}, [])


def test_stages_and_reward_parts():
    row = {"time_step_s": 1, "time_data_s": 1, "reward_runs_mean": 1, "time_train_s": 1}
    row |= {"reward_execution_match_mean": 1, "reward_mean": 1, "reward_std": 1}
    assert stages([row]) == ["data", "train"]
    assert reward_parts(row) == ["reward_execution_match_mean", "reward_runs_mean"]


def test_heldout_by_hand():
    # 10 items: 3 won, 1 lost. Mean difference .2; squared deviations
    # 3 * .8² + 1 * 1.2² + 6 * .2² = 3.6; variance 3.6 / 9 = .4; standard error sqrt(.04) = .2.
    start = [0, 0, 0, 1, 1, 1, 1, 0, 0, 0]
    end = [1, 1, 1, 0, 1, 1, 1, 0, 0, 0]
    result = compare_heldout(start, end)
    assert (result["items"], result["start"], result["end"]) == (10, 0.4, 0.6)
    assert result["difference"] == pytest.approx(0.2)
    assert result["interval"] == pytest.approx([0.2 - 0.392, 0.2 + 0.392])
    assert result["p_worse"] == pytest.approx(15 / 16)  # P(Binomial(4, 1/2) ≥ 1)
    assert result["significantly_worse"] is False


@pytest.mark.parametrize(
    ("lost", "won", "worse"),
    [(4, 0, False), (5, 0, True), (8, 2, False), (9, 2, True), (0, 9, False), (0, 0, False)],
)
def test_worse_by_the_exact_sign_test(lost, won, worse):
    """p = 1/16, 1/32, 56/1024, 67/2048, 1, 1 against 5 %."""
    start = [1] * lost + [0] * won + [1, 0] * 20
    end = [0] * lost + [1] * won + [1, 0] * 20
    assert compare_heldout(start, end)["significantly_worse"] is worse


@pytest.mark.stat
def test_sign_test_errs_at_most_at_five_percent_and_finds_a_planted_loss():
    """Exact test at 5 %: with no change, rejections in 2,000 runs stay below 5 % + 4 sd = 7 %.

    That bound fails by chance with probability under 1e-4 (binomial tail). Planted: 15 % of items
    lost against 3 % won must be found in more than 90 % of runs.
    """
    random = np.random.default_rng(5)

    def share_called_worse(runs, lost, won, items=200):
        start = np.array([1] * (items // 2) + [0] * (items // 2))
        called = 0
        for _ in range(runs):
            flip = random.random(items) < np.where(start == 1, lost, won)
            called += compare_heldout(start.tolist(), np.where(flip, 1 - start, start).tolist())[
                "significantly_worse"
            ]
        return called / runs

    assert share_called_worse(2000, 0.1, 0.1) < 0.07
    assert share_called_worse(100, 0.3, 0.06) > 0.9


def test_single_item_has_no_interval():
    assert compare_heldout([1], [1])["interval"] is None


@pytest.mark.parametrize(("start", "end"), [([], []), ([1, 0], [1])])
def test_unpaired_outcomes_are_refused(start, end):
    with pytest.raises(ValueError, match="held-out outcomes: found"):
        compare_heldout(start, end)


@pytest.mark.parametrize(("right", "items"), [(0, 240), (240, 240), (1, 3), (131, 240), (1, 1)])
def test_wilson_ends_are_the_shares_that_lie_just_196_errors_from_the_observed(right, items):
    low, high = wilson_interval(right, items)
    assert 0.0 <= low <= right / items <= high <= 1.0
    assert low < high
    for end in {low, high} - {0.0, 1.0}:
        error = math.sqrt(end * (1 - end) / items)
        assert abs(right / items - end) == pytest.approx(1.96 * error, rel=1e-9)


def test_wilson_of_none_right():
    assert [f"{end:.3f}" for end in wilson_interval(0, 240)] == ["0.000", "0.016"]


def test_environment_names_device_versions_and_seed():
    found = describe_environment(11)
    assert found["seed"] == 11
    assert "cpu" in found["device"]
    assert set(found["versions"]) == {"python", "jax", "flax", "ngramrl_jax"}


def test_git_commit_with_changes_and_without_git(tmp_path, monkeypatch):
    if shutil.which("git") is None:
        pytest.skip("needs git")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_commit(tmp_path) is None  # no repository
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null"]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    clean = git_commit(tmp_path)
    assert clean is not None
    assert len(clean) == 40
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{clean}-dirty"
    monkeypatch.setenv("PATH", "")
    assert git_commit(tmp_path) is None


def test_the_counters_of_several_processes_add_up_and_none_is_left_out():
    """A field that is no sum has to be named in `total`, or this fails with it."""
    parts = [RolloutCounters(2), RolloutCounters(2)]
    for i, part in enumerate(parts, start=1):
        for name, value in vars(part).items():
            if name != "draft_tokens" and isinstance(value, int | float | np.ndarray):
                setattr(part, name, value + i)
    whole = total(parts)
    assert whole.draft_tokens == 2
    for name, value in vars(whole).items():
        if name != "draft_tokens" and isinstance(value, int | float | np.ndarray):
            assert np.all(value == 3), name
    assert whole.prefetch == parts[0].prefetch
    assert total(parts[:1]) is parts[0]
