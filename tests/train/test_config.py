"""Configuration: what is refused, and that what is stored is what is read."""

import pytest

from train.config import RunConfig
from train.config_file import load_config, to_yaml
from train.run_folder import RunFolder


def written(folder, text):
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def test_file_then_overrides_then_defaults(tmp_path):
    path = written(tmp_path, "seed: 3\ntrain: {epochs: 2}\n")
    config = load_config(path, ["train.group=4", "objective.clip_high=0.3", "out=runs/x"])
    assert (config.seed, config.train.epochs, config.train.group) == (3, 2, 4)
    assert config.objective.clip_high == 0.3
    assert config.rollout == RunConfig().rollout


def test_the_stored_configuration_reads_as_itself(tmp_path):
    config = load_config(None, ["rollout.top_p=0.9", "optimizer.learning_rate=3e-5"])
    assert load_config(written(tmp_path, to_yaml(config))) == config


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (
            "",
            ["rollout.draft_token=4"],
            "unknown key rollout.draft_token; nearest: rollout.draft_t",
        ),
        ("sed: 1", [], "unknown key sed; nearest: seed"),
        ("train: {epoch: 1}", [], "unknown key train.epoch; nearest: train.epochs"),
        ("", ["train.epochs=many"], "train.epochs"),
        (
            "",
            ["rollout.draft_length=long"],
            "rollout.draft_length: found long, allowed: auto, fixed",
        ),
        ("", ["epochs"], "found 'epochs', allowed: key=value"),
        ("a: [", [], "YAML"),
        ("- 1", [], "allowed: key: value"),
    ],
)
def test_a_mistake_is_named_in_one_line(tmp_path, text, overrides, message):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        load_config(written(tmp_path, text), overrides)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("gsm.yaml", "gsm_tiny"),
        ("configs/spider", "spider_tiny"),
        ("quikstart.yaml", "quickstart"),
        ("sft-tiny.yml", "sft_tiny"),
    ],
)
def test_a_missing_file_is_named_and_so_is_the_nearest_of_ours(tmp_path, name, near):
    with pytest.raises(ValueError, match=rf"found no file .*; nearest: configs/{near}\.yaml$"):
        load_config(tmp_path / name)


def test_every_committed_configuration_loads_and_opens_with_its_command(repository):
    paths = sorted((repository / "configs").glob("*.yaml"))
    assert paths
    for path in paths:
        load_config(path)
        head = path.read_text().split("\n\n")[0]
        assert head.startswith("#")
        assert f"configs/{path.name}" in head


def test_a_run_made_before_an_entry_existed_is_taken_up(tmp_path):
    stored = tmp_path / "config.yaml"
    stored.write_text(f"out: {tmp_path}\nseed: 3\n")
    RunFolder(load_config(stored))
    with pytest.raises(ValueError, match="seed: 3 -> 4"):
        RunFolder(load_config(stored, ["seed=4"]))


@pytest.mark.parametrize("spelt", ["off", "'off'", "host", "device"])
def test_prefetching_may_be_off_although_yaml_has_a_mind_of_its_own(tmp_path, spelt):
    path = tmp_path / "run.yaml"
    path.write_text(f"rollout:\n  prefetch: {spelt}\n")
    read = load_config(path)
    assert read.rollout.prefetch == spelt.strip("'")
    assert load_config(None, [f"rollout.prefetch={spelt}"]) == read
    path.write_text(to_yaml(read))
    assert load_config(path) == read
