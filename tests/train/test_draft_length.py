"""A run chooses how long to draft unless it is deterministic; its report shows what was used."""

from dataclasses import replace

import numpy as np
import pytest

from ngramrl_jax.rollout.counters import RolloutCounters
from train.config import DataConfig, RolloutConfig, RunConfig
from train.report import plots
from train.step_metrics import length_metrics
from train.workbench import load_policy, training_engine


@pytest.mark.parametrize(
    ("deterministic", "configured", "used"),
    [(True, "auto", "fixed"), (False, "auto", "auto"), (False, "fixed", "fixed")],
)
def test_a_deterministic_run_leaves_no_length_to_the_clock(deterministic, configured, used):
    policy, _, codec = load_policy(RunConfig().model, DataConfig())
    config = replace(RolloutConfig(slots=1, max_new_tokens=8), draft_length=configured)
    engine, _ = training_engine(policy, codec, config, deterministic=deterministic)
    assert engine.settings.draft_length == used


def test_metrics_say_how_long_was_drafted_and_why():
    counters = RolloutCounters(2)
    counters.forwards = 4
    counters.length_forwards[:] = [3, 0, 1]
    counters.length_seconds[:] = [0.03, 0.0, 0.02]
    counters.promised[:] = [8.0, 0.0, 12.0]
    counters.promised_rounds[:] = [8, 0, 8]
    assert counters.mean_draft_tokens == 0.5
    assert length_metrics(counters) == {
        "draft_length_share": [0.75, 0.0, 0.25],
        "draft_length_ms": [pytest.approx(10.0), None, pytest.approx(20.0)],
        "draft_length_promised": [1.0, None, 1.5],
    }


def test_the_plot_is_there_where_lengths_differ():
    def rows(shares):
        return [{"step": n, "draft_length_share": share} for n, share in enumerate(shares)]

    drawn = plots.draft_lengths(rows([[0.75, 0.0, 0.25], [0.0, 0.0, 1.0]]))
    assert drawn is not None
    assert "K = 2" in drawn
    assert "no draft" in drawn
    assert plots.draft_lengths(rows(np.eye(3)[[2, 2]].tolist())) is None
    assert plots.draft_lengths([{"step": 0}]) is None
