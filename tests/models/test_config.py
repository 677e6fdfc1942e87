"""The architecture record: what it refuses, what it reads, the released sizes."""

import json
from dataclasses import asdict, fields, replace

import jax
import pytest

from models.config import PRESETS, ModelConfig, preset
from models.policy import Qwen3Policy
from models.rope_scaling import RopeScaling

OLD_FILE = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "rope_scaling": None,
    "max_position_embeddings": 40960,
    **asdict(PRESETS["qwen3_0_6b"]),
}


NUMBERS = [field.name for field in fields(ModelConfig) if field.name != "rope_scaling"][1:]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def written(tmp_path, record):
    path = tmp_path / "config.json"
    path.write_text(record if isinstance(record, str) else json.dumps(record), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", PRESETS)
def test_round_trip(tmp_path, name):
    preset(name).to_json(tmp_path / "config.json")
    assert ModelConfig.from_json(tmp_path / "config.json") == preset(name)


def test_reads_theta_where_newer_files_keep_it(tmp_path):
    record = {k: v for k, v in OLD_FILE.items() if k != "rope_theta"}
    record["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e6}
    assert ModelConfig.from_json(written(tmp_path, record)).rope_theta == 5e6


@pytest.mark.parametrize("name", NUMBERS)
def test_a_missing_field_is_refused(tmp_path, name):
    record = {k: v for k, v in OLD_FILE.items() if k != name}
    with pytest.raises(ValueError, match=f"missing {name}"):
        ModelConfig.from_json(written(tmp_path, record))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma"}, "model_type: found 'gemma', allowed: 'qwen3', 'qwen2', 'llama'"),
        ({"model_type": None}, "model_type: found None"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types: found 'sliding"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "missing low_freq_factor"),
        ({"rope_scaling": {**LLAMA3, "factor": 0}}, "rope_scaling.factor: found 0"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "more than low_freq_factor 1.0"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "'yarn'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}}, "rope_theta: found"),
        ({"rope_scaling": 4.0}, "rope_scaling: found 4.0"),
        ({"num_key_value_heads": 3}, "a divisor of num_attention_heads 16"),
        ({"head_dim": 127}, "an even number"),
        ({"hidden_size": "1024"}, "hidden_size: found '1024', allowed: a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: found 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: found 1, allowed: true or false"),
    ],
)
def test_what_is_refused_is_named(tmp_path, change, message):
    with pytest.raises(ValueError, match=message) as error:
        ModelConfig.from_json(written(tmp_path, {**OLD_FILE, **change}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model_type", ["qwen2", "llama"])
def test_these_families_define_an_absent_head_width(tmp_path, model_type):
    record = {k: v for k, v in OLD_FILE.items() if k != "head_dim"} | {"model_type": model_type}
    config = ModelConfig.from_json(written(tmp_path, record))
    assert config.head_dim == 64  # 1024 / 16
    assert ModelConfig.from_json(written(tmp_path, {**record, "head_dim": 80})).head_dim == 80
    with pytest.raises(ValueError, match="a multiple of 16 heads"):
        ModelConfig.from_json(written(tmp_path, {**record, "hidden_size": 1000}))


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_reads_and_writes_stretched_phases(tmp_path, name):
    record = {**OLD_FILE, "model_type": "llama", name: LLAMA3}
    config = ModelConfig.from_json(written(tmp_path, record))
    assert config.rope_scaling == RopeScaling(8.0, 1.0, 4.0, 8192)
    config.to_json(tmp_path / "again.json")
    assert ModelConfig.from_json(tmp_path / "again.json") == config


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_damaged_file_is_refused(tmp_path, text):
    with pytest.raises(ValueError, match=r"config\.json"):
        ModelConfig.from_json(written(tmp_path, text))


def test_an_absent_file_and_preset_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not found"):
        ModelConfig.from_json(tmp_path / "config.json")
    with pytest.raises(ValueError, match="allowed: qwen3_0_6b"):
        preset("qwen3_70b")


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3_0_6b", 0.596),
        ("qwen3_1_7b", 1.721),
        ("qwen3_4b", 4.022),
        ("qwen3_8b", 8.191),
        ("qwen3_14b", 14.768),
        ("qwen3_32b", 32.762),
        ("qwen2_5_0_5b", 0.494),
        ("smollm2_135m", 0.1345),
        ("tiny", 0.00367),
    ],
)
def test_parameter_counts_are_the_published_ones(name, billions):
    # layers are alike, so two of them tell the count of all without tracing the largest
    def count(layers):
        policy = Qwen3Policy(replace(preset(name), num_hidden_layers=layers))
        params = jax.eval_shape(policy.init_params, jax.random.key(0))
        return sum(leaf.size for leaf in jax.tree.leaves(params))

    one, two = count(1), count(2)
    total = one + (preset(name).num_hidden_layers - 1) * (two - one)
    assert total / 1e9 == pytest.approx(billions, rel=2e-3)
