"""A run starts from an imported checkpoint of another family by `model.checkpoint` alone."""

from dataclasses import replace

import jax

from models import checkpoint
from models.config import ModelConfig
from models.exporting import export_checkpoint
from models.importing import import_checkpoint
from models.policy import Qwen3Policy
from tests.support.runs import TINY, RunCommand, make_micro_policy


def test_a_run_starts_from_an_imported_checkpoint(tmp_path):
    micro = ModelConfig.from_json(make_micro_policy(tmp_path / "micro") / "config.json")
    config = replace(micro, model_type="qwen2")
    params = Qwen3Policy(config).init_params(jax.random.key(0))
    checkpoint.save(tmp_path / "saved", config, params, TINY)
    export_checkpoint(tmp_path / "saved", tmp_path / "theirs")
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    process = RunCommand(tmp_path / "ours", tmp_path / "run", steps=1).start()
    process.communicate()
    assert process.returncode == 0
    assert (tmp_path / "run" / "summary.json").is_file()
