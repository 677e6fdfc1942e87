"""Slots from memory: as many as the plan fits, and no more than a step can use."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest

from models.config import PRESETS
from tests.support.runs import SETTINGS, make_micro_policy
from train import slots
from train.config_file import load_config
from train.loop import run
from train.planning import make_plan
from train.slots import RESERVE, with_slots

SMALL = replace(
    PRESETS["tiny"], vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=2
)
SHORT = ("rollout.max_prompt_tokens=16", "rollout.max_new_tokens=16", "train.micro_batch=8")
ASKED = (*SHORT, "rollout.slots=0", "mesh.fsdp=2", "mesh.tensor=2", "train.prompts_per_step=64")
ROLLOUTS = 64 * 8  # of a step


@pytest.fixture(autouse=True, scope="module")
def one_plan():
    """Plans are compiled once: what differs here is the memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slots, "make_plan", cache(make_plan))
        yield


def test_what_is_chosen_fits_and_uses_most_of_the_memory():
    config = load_config(None, ASKED)
    memory = slots.make_plan(with_slots(config, SMALL, 10**12), SMALL).peak // 2
    chosen = with_slots(config, SMALL, memory)
    assert chosen.rollout.slots % 2 == 0
    assert 0 < chosen.rollout.slots < ROLLOUTS
    assert 0.7 * (1 - RESERVE) * memory < make_plan(chosen, SMALL).peak <= memory
    assert replace(chosen, rollout=replace(chosen.rollout, slots=0)) == config


def test_no_more_than_a_step_has_rollouts():
    assert with_slots(load_config(None, ASKED), SMALL, 10**12).rollout.slots == ROLLOUTS


def test_a_number_that_is_given_stays():
    config = load_config(None, [*SHORT, "rollout.slots=5"])
    assert with_slots(config, SMALL, 1) is config


def test_what_cannot_be_chosen_is_refused():
    config = load_config(None, ASKED)
    with pytest.raises(ValueError, match=r"no row fits .* allowed: more devices"):
        with_slots(config, SMALL, 1000)
    with pytest.raises(ValueError, match=r"does not know the memory of this cpu device"):
        with_slots(config, SMALL)


def test_a_run_takes_them_and_keeps_the_question(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(slots, "device_bytes", lambda: 10**9)
    policy = make_micro_policy(tmp_path / "micro")
    settings = [setting for setting in SETTINGS if not setting.startswith("rollout.slots")]
    more = (f"model.checkpoint={policy}", f"out={tmp_path}/run", "rollout.slots=0")
    config = load_config(None, [*settings, *more, "train.steps=1", "data.reward_workers=1"])
    run(config)
    assert "rollout.slots: 4, from the memory of a device" in capsys.readouterr().out
    assert "slots: 0" in (tmp_path / "run" / "config.yaml").read_text()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())


def test_the_plan_says_what_a_run_would_take(repository):
    command = [sys.executable, "train/plan.py", "configs/quickstart.yaml", "memory=1", *SHORT]
    asked = [*command, "rollout.slots=0", "train.prompts_per_step=2"]
    done = subprocess.run(asked, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cache of 16 slots" in done.stdout
