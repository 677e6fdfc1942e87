"""What a run reads beside its configuration: changes are told when it goes on."""

import pytest

from train.config import DataConfig, RunConfig
from train.data_order import steps_per_epoch
from train.inputs import note_inputs
from train.progress import status_line
from train.run_folder import RunFolder


@pytest.mark.parametrize("as_folder", [False, True])
def test_files_that_changed_are_named_once(tmp_path, as_folder):
    reward = tmp_path / "mine.py"
    reward.write_text("def reward(record, response): return 1.0")
    data = tmp_path / "data"
    data.mkdir()
    prompts = data / "train.jsonl"
    prompts.write_text('{"prompt": "a"}\n')
    (data / "notes.txt").write_text("not read")
    config = RunConfig(
        out=str(tmp_path / "run"),
        task=f"{reward}:reward",
        data=DataConfig(path=str(data if as_folder else prompts)),
    )
    folder = RunFolder(config)
    folder.create()
    assert note_inputs(folder, config) == []
    assert note_inputs(folder, config) == []
    reward.write_text("def reward(record, response): return -1.0")
    (data / "notes.txt").write_text("still not read")
    assert note_inputs(folder, config) == [str(reward)]
    prompts.write_text('{"prompt": "b"}\n')
    assert note_inputs(folder, config) == [str(prompts)]
    assert note_inputs(folder, config) == []


def test_what_is_no_file_is_nothing_to_note(tmp_path):
    data = DataConfig(path="reasoning-gym:gsm_symbolic")
    config = RunConfig(out=str(tmp_path), task="mathematics", data=data)
    assert note_inputs(RunFolder(config), config) == []


def test_prompts_that_are_too_long_are_told_where_too_few_are_left():
    with pytest.raises(ValueError, match=r"3 training prompts, and 1 longer than rollout\.max"):
        steps_per_epoch(3, 4, too_long=1)
    with pytest.raises(ValueError, match=r"you have 1 training prompt$"):
        steps_per_epoch(1, 4)


def test_killed_rewards_stand_in_the_line_of_a_step():
    assert "killed 25%" in status_line({"killed_frac": 0.25})
    assert "killed" not in status_line({"killed_frac": 0.0})
