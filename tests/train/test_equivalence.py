"""`make equivalence`: arms with the same keys stay equal, and an arm that does not is seen."""

from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from benchmarks.training import curves, equivalence
from benchmarks.training.curves import learning_curves, t_interval
from benchmarks.training.side_by_side import Agreement, largest_gap, make_arm, train_with_same_keys
from benchmarks.training.stages import time_table
from ngramrl_jax.types import Rollout
from train.config_file import load_config
from train.tasks.base import Score
from train.tasks.registry import open_task
from train.trainer import StepOutcome
from train.workbench import open_workbench

SMALL = (
    "data.train_items=4",
    "data.heldout_items=2",
    "train.prompts_per_step=4",
    "train.group=4",
    "train.micro_batch=16",
    "rollout.slots=4",
    "rollout.draft_tokens=4",
    "rollout.max_new_tokens=24",
)
STEPS = 3


@pytest.fixture(scope="module")
def trained():
    """Three arms after three epochs of one step: plain, speculative, and one that starts off."""
    config = load_config(None, SMALL)
    with closing(open_task(config)) as task:
        bench = open_workbench(config, task)
        arms = [
            make_arm(name, bench, config, draft_tokens=draft_tokens)
            for name, draft_tokens in (("plain", 0), ("speculative", 4), ("starts off", 4))
        ]
        off = arms[2].trainer
        scaled = jax.tree.map(lambda leaf: leaf * np.float32(1.01), off.state.params)
        off.state = replace(off.state, params=scaled)
        said = []
        agreements = train_with_same_keys(arms, bench, config, STEPS, said.append)
    assert len(said) == STEPS
    return arms, agreements


@pytest.mark.slow
def test_speculation_leaves_rollouts_rewards_and_parameters_as_they_are(trained):
    arms, (speculative, _) = trained
    assert not speculative.broken
    assert speculative.rollouts == STEPS * 16
    assert speculative.accepted > 0.2 * speculative.tokens > 0  # else nothing was tested
    assert speculative.logp_gap < 1e-4
    if not speculative.near_ties:
        assert speculative.first_difference is None
        assert speculative.param_gap == speculative.made_equal == 0
    same = [
        {k: row[k] for k in ("reward_mean", "loss", "grad_norm", "response_len_mean")}
        for arm in arms[:2]
        for row in arm.rows
    ]
    assert same[:STEPS] == same[STEPS:]
    assert {row["draft_tokens_used"] for row in arms[1].rows} == {4}


@pytest.mark.slow
def test_an_arm_that_starts_from_other_parameters_is_seen_and_set_equal(trained):
    arms, (_, off) = trained
    assert off.broken
    assert all(words.startswith("step 0: ") for words in off.broken)
    assert off.first_difference == 0
    assert off.param_gap > 0.0
    assert (off.made_equal, off.final_param_gap) == (1, 0.0)
    states = [arms[0].trainer.state, arms[2].trainer.state]  # moments of the optimizer included
    assert jax.tree.all(jax.tree.map(np.array_equal, *states))


@pytest.mark.slow
def test_all_arms_took_the_same_steps_and_make_a_time_table(trained):
    arms, _ = trained
    assert [[row["step"] for row in arm.rows] for arm in arms] == [[0, 1, 2]] * 3
    table = equivalence.phases(arms)
    assert [phase.steps for phase in table.values()] == [1, 1]
    check_grid(equivalence.stages_grid(table))


def outcome(tokens=(5, 6, 7), logps=(-0.5, -0.25, -1.0), reward=1.0):
    rollout = Rollout(
        prompt_id=3,
        sibling=1,
        prompt_P=np.array([2], np.int32),
        tokens_N=np.array(tokens, np.int32),
        logps_N=np.array(logps, np.float32),
        drafted_N=np.array([True] * len(tokens)),
        truncated=False,
        policy_version=0,
        step=0,
        rounds=1,
    )
    return StepOutcome({}, [rollout], [Score(reward, {}, {})], None)


def judged(other, param_gap=0.0, *, tie=False):
    agreement = Agreement()
    agreement.add(0, outcome(), other, param_gap, lambda rollout, at: tie)
    return agreement


def test_equal_steps_agree():
    agreement = judged(outcome())
    assert not agreement.broken
    assert agreement.first_difference is None
    assert (agreement.tokens, agreement.accepted) == (3, 3)


def test_last_bits_of_log_probabilities_are_measured_and_allowed():
    agreement = judged(outcome(logps=(-0.5, -0.25, -1.00001)))
    assert not agreement.broken
    assert agreement.logp_gap == pytest.approx(1e-5, rel=0.01)


def test_a_near_tie_is_counted_and_excuses_what_follows_from_it():
    agreement = judged(outcome((5, 9, 1, 1), (-0.5, -2, -2, -2), 0.0), 1e-4, tie=True)
    assert not agreement.broken
    assert (agreement.near_ties, agreement.first_difference, agreement.tokens) == (1, 0, 1)


@pytest.mark.parametrize(
    ("other", "param_gap", "words"),
    [
        (outcome(tokens=(5, 9, 7)), 0.0, "prompt 3, sibling 1: tokens part at 1"),
        (outcome((5, 6), (-0.5, -0.25)), 0.0, "tokens part at 2"),
        (outcome(reward=0.1), 1e-4, "1 rewards part"),
        (outcome(), 1e-8, "parameters part by 1.0e-08"),
        (outcome(), float("nan"), "parameters part by nan"),
        (outcome(logps=(-0.5, -0.25, -1.001)), 0.0, "log-probabilities part"),
        (outcome(logps=(-0.5, float("nan"), -1.0)), 0.0, "log-probabilities part by nan"),
    ],
)
def test_every_other_difference_breaks_the_agreement(other, param_gap, words):
    agreement = judged(other, param_gap)
    assert len(agreement.broken) == 1
    assert words in agreement.broken[0]
    check_grid(equivalence.agreement_grid([Agreement(), agreement]))


def test_the_largest_gap_of_two_trees():
    one, other = {"a": np.zeros((2, 2)), "b": np.ones(3)}, {"a": np.eye(2), "b": np.full(3, 3.0)}
    one, other = jax.tree.map(np.float32, (one, other))
    assert largest_gap(one, one) == 0.0
    assert largest_gap(one, other) == 2.0
    assert np.isnan(largest_gap(one, {**one, "b": np.full(3, np.nan, np.float32)}))


def test_the_interval_is_students():
    """t(0.975, 2) = 4.302653 (any table)."""
    interval = t_interval([1.0, 2.0, 3.0])
    assert interval == pytest.approx((2.0, 2.0 - 4.302653 / 3**0.5, 2.0 + 4.302653 / 3**0.5))
    assert interval.covers_zero
    assert not t_interval([1.0, 1.1, 1.2]).covers_zero
    with pytest.raises(ValueError, match="found 1"):
        t_interval([0.5])


@pytest.mark.stat
def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Of 2,000 intervals over three draws, 95 % cover; a bound of 0.02 is 4.1 standard errors,
    a false alarm in 4e-5 of seeds. The normal quantile would cover 81 %."""
    draws = np.random.default_rng(0).normal(size=(2000, 3))
    covered = np.mean([t_interval(draw_S).covers_zero for draw_S in draws])
    assert abs(covered - 0.95) < 0.02


def row(rollout, train, tokens, rounds):
    whole = rollout + train
    return {
        "time_rollout_s": rollout,
        "time_train_s": train,
        "time_logprob_s": 0.0,
        "time_data_s": 0.0,
        "time_reward_s": 0.0,
        "time_step_s": whole,
        "rollout_share": rollout / whole,
        "committed_tokens": tokens,
        "row_rounds": rounds,
    }


def test_the_time_table_of_known_rows():
    """R = 0.75 and α = 3 bound the step's speed-up by 1 / (0.25 + 0.25) = 2."""
    plain = [row(3.0, 1.0, 30, 30)] * 3
    again = [row(3.3, 1.1, 30, 30), row(3.0, 1.0, 30, 30), row(1.5, 0.5, 30, 30)]
    speculative = [row(1.0, 1.0, 30, 10), row(1.5, 1.0, 60, 20), row(2.0, 2.0, 30, 10)]
    phase = time_table(plain, again, speculative)
    assert (phase.rollout_share, phase.tokens_per_forward) == (0.75, 3.0)
    assert phase.bound == pytest.approx(2.0)
    assert phase.step_speedup.median == pytest.approx(1.6)
    assert (phase.step_speedup.least, phase.step_speedup.most) == (1.0, 2.0)
    assert phase.rollout_speedup.median == pytest.approx(2.0)
    assert (phase.spread.median, phase.spread.most) == (1.0, 2.0)
    assert phase.seconds[0] == {
        "rollout": 3.0, "train": 1.0, "logprob": 0.0, "data": 0.0, "reward": 0.0, "step": 4.0
    }  # fmt: skip
    check_grid(equivalence.stages_grid({"cold": phase, "warm": phase}))


def test_every_run_of_the_curves_has_a_seed_of_its_own(monkeypatch):
    made = []

    def fake_arm(name, bench, config, *, draft_tokens):
        made.append((name, config.seed, draft_tokens))
        arm = SimpleNamespace(rows=[], trainer=SimpleNamespace(steps_per_epoch=2))
        arm.trainer.rollout_params = lambda: config.seed
        arm.trainer.step = lambda step: SimpleNamespace(
            row={"reward_mean": config.seed + step, "reward_right_mean": step / 10}
        )
        return arm

    def judge(seed):
        return {"set": [Score(1.0, {"right": float(seed > 0)}, {})]}

    monkeypatch.setattr(curves, "make_arm", fake_arm)
    monkeypatch.setattr(curves, "Judge", lambda bench, config: judge)
    bench: Any = SimpleNamespace(task=SimpleNamespace(accuracy_part="right"))
    found = learning_curves(bench, load_config(None), runs=2, epochs=3)
    assert made == [
        ("plain", 0, 0),
        ("speculative", 1, 16),
        ("plain", 2, 0),
        ("speculative", 3, 16),
    ]
    assert list(found) == ["reward", "right", "held-out set"]
    np.testing.assert_allclose(found["reward"][1, 0], [1.5, 3.5, 5.5])  # seed 1, two steps an epoch
    np.testing.assert_allclose(found["reward"][0, 1], [2.5, 4.5, 6.5])
    np.testing.assert_array_equal(found["held-out set"][:, :, 0], [[0, 1], [1, 1]])
    grid = equivalence.curves_grid(found)
    check_grid(grid)
    assert grid.lines[1][-1] == "3 of 3"  # the arms' "right" is equal
    assert grid.lines[0][-1] == "0 of 3"  # the reward is the seed's, always 1 apart


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("seeds=1", "seeds"),
        ("seeds=few", "few"),
        ("seed_epochs=0", "seed_epochs"),
        ("rollout.draft_tokens=0", "rollout.draft_tokens: found 0"),
        ("train.epoch=2", "nearest: train.epochs"),
    ],
)
def test_what_the_command_line_cannot_mean_is_named(argument, words):
    with pytest.raises(ValueError, match=words):
        equivalence.parse([argument])


def test_overrides_change_the_configuration_of_all_arms():
    config, options = equivalence.parse(["train.epochs=2", "seeds=0"])
    assert (config.train.epochs, options["seeds"]) == (2, 0)
    assert config.out == "runs/equivalence"


def check_grid(grid):
    """Every line fits its heads, in both renderings."""
    assert {len(line) for line in grid.lines} == {len(grid.heads)}
    assert len(grid.rich().rows) == len(grid.lines)
    lines = grid.markdown().splitlines()[2:]
    assert {line.count("|") for line in lines} == {len(grid.heads) + 1}
