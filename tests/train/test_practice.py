"""What practitioners add to plain GRPO: dynamic sampling, mini-batches, corrections, trackers."""

import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests.support.runs import SETTINGS, held, make_micro_policy, rows
from train.config_file import load_config
from train.group_choice import groups_to_learn_from, teaching_groups
from train.loop import run
from train.tasks.base import Score
from train.tracking import open_tracker

PRACTICE = (
    "objective.name=gspo",
    "objective.clip_low=0.1",
    "objective.clip_high=0.1",
    "objective.sampling_rounds=3",
    "objective.correction=truncate",
    "train.updates_per_step=2",
    "train.minibatches=2",
    "evaluation.temperature=0.5",
    "evaluation.top_k=3",
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_micro_policy(tmp_path_factory.mktemp("micro") / "policy")


def trained(repository, policy, out, steps, *overrides):
    settings = [*SETTINGS, f"model.checkpoint={policy}", f"out={out}", f"train.steps={steps}"]
    run(load_config(repository / "configs/quickstart.yaml", [*settings, *overrides]), quiet=True)
    return rows(out)


@pytest.fixture(scope="module")
def whole(repository, policy, tmp_path_factory):
    out = tmp_path_factory.mktemp("practice") / "whole"
    return out, trained(repository, policy, out, 4, *PRACTICE)


@pytest.fixture(autouse=True, scope="module")
def _easy_prompts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ODD_EASY", "0 1 2")
        yield


def scores(*rewards):
    return [Score(reward) for reward in rewards]


def test_groups_teach_where_rewards_differ():
    assert teaching_groups(scores(1, 1, 0, 1, 0, 0), 2).tolist() == [False, True, False]
    assert teaching_groups(scores(float("nan"), 1), 2).tolist() == [False]
    assert teaching_groups(scores(float("inf"), float("inf")), 2).tolist() == [False]


@pytest.mark.parametrize(
    ("teaches", "wanted", "learnt"),
    [
        ([True, False, True, True], 2, [True, False, True, False]),
        ([True, False, False], 2, [True, False, False]),
        ([False, False, False], 2, [True, True, False]),
    ],
)
def test_the_first_groups_that_teach_are_learnt_from(teaches, wanted, learnt):
    assert groups_to_learn_from(np.array(teaches), wanted).tolist() == learnt


def test_a_step_with_everything_on_learns_and_says_what_it_took(whole):
    _, rows = whole
    assert len(rows) == 4
    for row in rows:
        assert row["refused"] == 0
        assert row["groups_learnt"] <= 2 <= row["groups_sampled"] <= 6
        assert row["tis_mean"] == pytest.approx(1.0, abs=1e-3)
        assert row["loss"] is not None
    # Three of the eight prompts teach nothing, and an epoch visits them all.
    assert sum(row["groups_sampled"] for row in rows) >= 4 * 2 + 3
    assert all(row["heldout_others_accuracy"] >= 0 for row in rows[-1:])


def test_two_steps_and_two_more_equal_four(repository, policy, whole, tmp_path):
    out, at_once = whole
    trained(repository, policy, tmp_path / "halves", 2, *PRACTICE)
    halves = trained(repository, policy, tmp_path / "halves", 4, *PRACTICE)

    def plain(row):
        return {name: value for name, value in row.items() if "heldout" not in name}

    assert [plain(row) for row in halves] == [plain(row) for row in at_once]
    for a, b in zip(
        jax.tree.leaves(held(out, 4)), jax.tree.leaves(held(tmp_path / "halves", 4)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_mini_batches_make_as_many_updates(repository, policy, tmp_path):
    """Of two groups: 3 passes of 2 updates; more parts than groups make no empty update."""
    for parts, updates in ((2, 6), (5, 6)):
        out = tmp_path / str(parts)
        trained(
            repository, policy, out, 1, f"train.minibatches={parts}", "train.updates_per_step=3"
        )
        assert int(held(out, 1)["state"]["step"]) == updates


class FakeWandb(SimpleNamespace):
    """As much of the package as is used."""

    def __init__(self):
        super().__init__(calls=[], logged=[], ended=[])

    def init(self, **settings):
        self.calls.append(settings)
        return SimpleNamespace(
            id=settings["id"] or f"id{len(self.calls)}",
            log=lambda row, step: self.logged.append((step, row)),
            finish=lambda exit_code: self.ended.append(exit_code),
        )


def test_a_run_is_tracked_under_one_id(repository, policy, tmp_path, monkeypatch):
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for steps in (1, 2):
        trained(repository, policy, tmp_path / "run", steps, "wandb.project=ours")
    assert [call["id"] for call in wandb.calls] == [None, "id1"]
    assert wandb.calls[0]["project"] == "ours"
    assert wandb.calls[0]["config"]["rollout"]["slots"] == 4
    assert [step for step, _ in wandb.logged] == [0, 1]
    assert {"reward_mean", "acceptance_by_position/02"} <= set(wandb.logged[0][1])
    assert all(isinstance(value, int | float) for _, row in wandb.logged for value in row.values())
    assert wandb.ended == [0, 0]


def test_a_tracker_that_cannot_be_opened_is_named(monkeypatch):
    config = load_config(None, ["wandb.project=ours"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r"wandb\.project: found no package wandb, allowed"):
        open_tracker(config.wandb, SimpleNamespace(read_json=lambda name: None), {})
    config = load_config(None, ["wandb.project=ours", "wandb.mode=loud"])
    with pytest.raises(ValueError, match=r"wandb\.mode: found loud, allowed: online, offline"):
        open_tracker(config.wandb, SimpleNamespace(), {})
