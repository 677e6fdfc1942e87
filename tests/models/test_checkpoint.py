"""A checkpoint folder: bit-equal round trip, onto any mesh; every damage refused in one line."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import checkpoint, fingerprints
from models.config import ModelConfig, preset
from models.policy import Qwen3Policy
from models.sharding import make_mesh, shardings


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory, small, small_params, tokenizer):
    path = tmp_path_factory.mktemp("checkpoint") / "step_3"
    checkpoint.save(path, small, small_params, tokenizer)
    return path


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "copy")


def assert_same(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, tree, other)


def test_round_trip_is_bit_equal(saved, small, small_params):
    config, params = checkpoint.load(saved)
    assert config == small
    assert_same(params, small_params)
    assert sorted(file.name for file in saved.iterdir()) == [
        "config.json",
        "files.json",
        "params",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [file.name for file in saved.parent.iterdir()] == ["step_3"]


@pytest.mark.parametrize("sizes", [(1, 8, 1), (2, 2, 2)])
def test_restores_onto_a_mesh(saved, small_params, sizes):
    mesh = make_mesh(*sizes)
    _, params = checkpoint.load(saved, mesh=mesh)
    assert_same(params, small_params)
    wanted = shardings(small_params, mesh)
    assert jax.tree.map(lambda leaf: leaf.sharding, params) == wanted


def test_a_sharded_model_restores_onto_one_device(tmp_path, small, small_params, tokenizer):
    sharded = jax.device_put(small_params, shardings(small_params, make_mesh(1, 4, 2)))
    checkpoint.save(tmp_path / "c", small, sharded, tokenizer / "tokenizer.json")
    _, params = checkpoint.load(tmp_path / "c")
    assert_same(params, small_params)
    assert all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(params))


def test_half_precision_is_small_and_comes_back_in_any_dtype(tmp_path, tokenizer):
    policy = Qwen3Policy(preset("tiny"))
    params = policy.init_params(jax.random.key(0))
    checkpoint.save(tmp_path / "c", policy.config, params, tokenizer, dtype=jnp.bfloat16)
    files = [file for file in (tmp_path / "c").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 12e6
    assert len(files) < 25
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    assert_same(checkpoint.load(tmp_path / "c", jnp.bfloat16)[1], rounded)
    _, wide = checkpoint.load(tmp_path / "c", jnp.float32)
    assert_same(wide, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rounded))


def refused(path, *parts):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - parts are matched below
        checkpoint.load(path)
    message = str(error.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


def files_of(path):
    return sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file())


def test_every_missing_or_damaged_file_is_refused(copy):
    optional = {"tokenizer_config.json"}
    for name in files_of(copy):
        if str(name) in optional:
            continue
        file, whole = copy / name, (copy / name).read_bytes()
        file.unlink()
        refused(copy, str(name))
        file.write_bytes(whole[: len(whole) // 2])
        refused(copy, str(name))
        file.write_bytes(whole)
    checkpoint.load(copy)


def test_one_flipped_byte_of_the_weights_is_refused(copy):
    largest = max((copy / "params").rglob("*"), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    refused(copy, "damaged", "checksum")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"vocab_size": 65}, "embedding_VD"),
        ({"num_hidden_layers": 4}, "layers/attention_norm/scale"),
        ({"tie_word_embeddings": True}, "head/kernel"),
    ],
)
def test_weights_of_another_architecture_are_refused(copy, change, name):
    record = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**record, **change}))
    refused(copy, f"parameter {name}", "found shape", "allowed")


def test_what_must_not_be_saved(saved, tmp_path, small, small_params, tokenizer):
    with pytest.raises(ValueError, match="exists"):
        checkpoint.save(saved, small, small_params, tokenizer)
    with pytest.raises(ValueError, match="not found"):
        checkpoint.save(tmp_path / "c", small, small_params, tmp_path / "tokenizer.json")
    extra = {**small_params, "extra": jnp.zeros(1)}
    with pytest.raises(ValueError, match="parameter extra"):
        checkpoint.save(tmp_path / "c", small, extra, tokenizer)
    refused(tmp_path / "c", "not found")
    assert not any(tmp_path.iterdir())


def test_an_interrupted_save_leaves_nothing_under_the_name(
    tmp_path, monkeypatch, small, small_params, tokenizer
):
    def full_disk(folder, record, beside):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fingerprints, "write", full_disk)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path / "c", small, small_params, tokenizer)
    monkeypatch.undo()
    refused(tmp_path / "c", "not found")
    checkpoint.save(tmp_path / "c", small, small_params, tokenizer)
    assert isinstance(checkpoint.load(tmp_path / "c")[0], ModelConfig)
