"""`docs/metrics.md` names every metric that a step writes, and everything in the summary."""

import re

import numpy as np
import pytest

from ngramrl_jax.rollout.counters import RolloutCounters
from ngramrl_jax.types import Rollout
from train.metrics import summarise
from train.stage_clock import StageClock
from train.step_metrics import reward_metrics, rollout_metrics
from train.tasks.base import Score

# What `Trainer._row`, the learner and the loop add by name; test_run.py holds a run to most of it.
ADDED = {
    "step", "epoch", "policy_version", "loss", "entropy", "clip_frac", "grad_norm", "kl",
    "logp_gap_mean", "logp_gap_max", "outside_support", "refused", "refused_steps",
    "history_tokens", "history_bytes", "compile_count", "time_checkpoint_s",
}  # fmt: skip
SCORES = {
    "text2sql": Score(1.0, {"execution_match": 1, "runs": 1}, {"killed": 0, "gold_failed": 0}),
    "mathematics": Score(1.0, {"accuracy": 1, "answered": 1}, {"killed": 0}),
    "function_calling": Score(1.0, {"match": 1, "names": 1, "parses": 1}),
    "own": Score(1.0, {"right": 1}, {"killed": 0}),
}


@pytest.fixture(scope="module")
def documented(repository):
    page = (repository / "docs" / "metrics.md").read_text(encoding="utf-8")
    return set(re.findall(r"`([\w<>]+)`", page))


def row(score):
    zero = np.zeros(1, np.int32)
    said = Rollout(0, 0, zero, zero, zero.astype(np.float32), zero > 0, False, 0, 0, 1)
    clock = StageClock("", 0.0)
    for stage in ("data", "rollout", "reward", "train"):
        with clock.stage(stage):
            pass
    scores = reward_metrics([score] * 2, 2)
    return scores | rollout_metrics([said] * 2, RolloutCounters(1), 1.0) | clock.row()


@pytest.mark.parametrize("task", SCORES)
def test_every_metric_of_a_step_is_documented(documented, task):
    score = SCORES[task]
    parts = {f"reward_{name}_mean" for name in score.parts}
    assert documented >= (set(row(score)) | ADDED) - parts
    assert documented >= set(score.parts) | {"reward_<part>_mean", "heldout_<set>_accuracy"}


def test_everything_in_the_summary_is_documented(documented):
    rows = [row(SCORES["text2sql"]) | {"step": 0}]
    summary = summarise(rows, {"new": {"start": [0, 1], "end": [1, 1]}}, {})
    assert documented >= set(summary) | set(summary["heldout"]["new"]) | set(summary["time_s"])
