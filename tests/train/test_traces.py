"""The trace of a run: whole and exact, also after a resume; a full disk is named."""

import shutil
import subprocess
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ngramrl_jax.replay.registry import chosen
from ngramrl_jax.replay.report import replay
from ngramrl_jax.replay.source import open_source
from ngramrl_jax.trace.store import Trace
from ngramrl_jax.types import Rollout
from tests.support.runs import SETTINGS, make_micro_policy
from tests.support.traces import assert_same_step, random_step
from train.config import TraceSection
from train.config_file import load_config
from train.loop import run
from train.metrics import read_rows
from train.tasks.base import Score
from train.traces import open_trace
from train.trainer import StepOutcome

STEPS = 5
DRAFT_TOKENS = 3  # of SETTINGS


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_micro_policy(tmp_path_factory.mktemp("micro") / "policy")


def train(repository, policy, out, steps, *overrides):
    config = load_config(
        repository / "configs" / "quickstart.yaml",
        [*SETTINGS, f"model.checkpoint={policy}", f"out={out}", f"train.steps={steps}", *overrides],
    )
    run(config, quiet=True)
    return out


@pytest.fixture(scope="module")
def whole(repository, policy, tmp_path_factory):
    return train(repository, policy, tmp_path_factory.mktemp("runs") / "whole", STEPS)


@pytest.mark.slow
def test_replay_of_a_run_takes_its_own_rounds(whole):
    source = open_source(whole)
    found = replay(source, chosen(["ngram"], source.header), DRAFT_TOKENS)
    rows = read_rows(whole / "metrics.jsonl")
    ngram = found["drafters"]["ngram"]
    assert ngram["rounds_by_step"] == {row["step"]: row["row_rounds"] for row in rows}
    assert ngram["accepted_per_round"] > 0
    assert found["trace"]["tokens"] == sum(row["committed_tokens"] for row in rows)
    assert source.header.steps_per_epoch == 4
    for step, row in zip(Trace(whole).steps(), rows, strict=True):
        assert float(step.reward_N.mean()) == pytest.approx(row["reward_mean"])
        assert {r.policy_version for r in step.rollouts} == {row["policy_version"]}
        assert max(r.finished for r in step.rollouts) == row["rounds"]


@pytest.mark.slow
def test_a_resumed_run_leaves_the_trace_of_an_unbroken_one(repository, policy, whole, tmp_path):
    out = train(repository, policy, tmp_path / "run", 3)
    shutil.rmtree(out / "checkpoints" / "3")  # as if it had been killed after step 3
    assert Trace(out).step_numbers() == [0, 1, 2]
    train(repository, policy, out, STEPS)
    for one, other in zip(Trace(whole).steps(), Trace(out).steps(), strict=True):
        assert_same_step(one, other)


def outcome(step: int, refused: str | None = None) -> StepOutcome:
    traced = random_step(step)
    rollouts: list[Rollout] = list(traced.rollouts)
    scores = [Score(float(reward)) for reward in traced.reward_N]
    return StepOutcome({"step": step}, rollouts, scores, refused)


@pytest.fixture
def trainer() -> Any:
    settings = SimpleNamespace(slots=4, draft_tokens=4, max_new_tokens=20, shares_noise=True)
    history = SimpleNamespace(window=8, max_bytes=2**20)
    return SimpleNamespace(
        engine=SimpleNamespace(settings=settings), history=history, steps_per_epoch=3
    )


def test_no_trace_is_kept_where_none_is_wanted(trainer, tmp_path):
    with open_trace(TraceSection(enabled=False), tmp_path / "traces", trainer, 0, 0) as trace:
        trace.keep(outcome(0))
        trace.flush()
    assert not (tmp_path / "traces").exists()


def test_a_refused_step_is_not_kept(trainer, tmp_path):
    with open_trace(TraceSection(), tmp_path / "traces", trainer, 0, 0) as trace:
        for step in range(4):
            trace.keep(outcome(step, "NaN" if step == 2 else None))
        trace.flush()
        assert Trace(tmp_path).step_numbers() == [0, 1, 3]
    assert Trace(tmp_path).header.shares_noise
    for step in Trace(tmp_path).steps():
        np.testing.assert_array_equal(step.reward_N, random_step(step.step).reward_N)


def test_a_full_disk_is_named_and_what_was_whole_stays(trainer, tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]
    if subprocess.run(mount, check=False).returncode:
        pytest.skip("a small file system needs the right to mount one")
    try:
        trace = open_trace(TraceSection(), place / "traces", trainer, 0, 0)
        trace.keep(outcome(0))
        trace.flush()
        free = shutil.disk_usage(place).free
        (place / "filler").write_bytes(b"0" * free)
        trace.keep(outcome(1))
        with pytest.raises(OSError, match="No space left") as caught, trace:
            trace.flush()
        assert str(caught.value.filename).startswith(str(place / "traces"))
        assert Trace(place).step_numbers() == [0]
        (place / "filler").unlink()
        with open_trace(TraceSection(), place / "traces", trainer, 0, 1) as trace:
            trace.keep(outcome(1))
        assert [step.step for step in Trace(place).steps()] == [0, 1]
    finally:
        subprocess.run(["umount", place], check=True)
