"""Import and export: the logits of `transformers`, bit-equal round trips, every mistake named."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import checkpoint
from models.exporting import export_checkpoint
from models.importing import import_checkpoint
from models.policy import Qwen3Policy
from models.safetensors import Safetensors, write_folder
from models.sharding import make_mesh


@pytest.fixture
def folder(tmp_path, reference):
    """The reference as a Hugging Face folder of several files."""
    path = tmp_path / "theirs"
    path.mkdir()
    write(path, reference.tensors)
    reference.policy.config.to_json(path / "config.json")
    (path / "tokenizer.json").write_text("{}", encoding="utf-8")
    (path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    (path / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    return path


# what does not depend on the family is tested with one
one_family = pytest.mark.parametrize("reference", ["llama3_untied"], indirect=True)


def write(path, tensors, dtype=np.float32, shard_bytes=20_000):
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    write_folder(path, shapes, dtype, tensors.__getitem__, shard_bytes=shard_bytes)


def test_logits_are_those_of_transformers_through_import_and_export(folder, tmp_path, reference):
    import_checkpoint(folder, tmp_path / "ours")
    export_checkpoint(tmp_path / "ours", tmp_path / "back", shard_bytes=10_000)
    import_checkpoint(tmp_path / "back", tmp_path / "again")
    config, params = checkpoint.load(tmp_path / "again")
    assert config == reference.policy.config
    policy = Qwen3Policy(config)
    logits = policy.logits(params, policy.hidden(params, jnp.asarray(reference.tokens_BT)))
    np.testing.assert_allclose(logits, reference.logits_BTV, atol=1e-4)
    theirs, back = Safetensors(folder), Safetensors(tmp_path / "back")
    assert theirs.keys() == back.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(tensor, back[name])
    settings = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == "{{ messages }}"


@one_family
@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_half_precision_stays_what_it_is(folder, tmp_path, reference, dtype):
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    write(folder, reference.tensors, dtype, shard_bytes=1 << 30)
    import_checkpoint(folder, tmp_path / "ours")
    _, params = checkpoint.load(tmp_path / "ours")
    wanted = reference.tensors["model.embed_tokens.weight"].astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(params["embedding_VD"], wanted)
    stored = checkpoint.load(tmp_path / "ours", dtype)[1]
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(stored))


def test_an_import_restores_onto_a_mesh(tmp_path, small, small_params):
    source = tmp_path / "source"
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    checkpoint.save(source, small, small_params, tmp_path)
    export_checkpoint(source, tmp_path / "theirs")
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours")
    _, params = checkpoint.load(tmp_path / "ours", mesh=make_mesh(1, 4, 2))
    jax.tree.map(np.testing.assert_array_equal, params, small_params)


@one_family
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "model.norm.weight: missing"),
        (lambda t: t.update(extra=np.ones(3)), "extra: unknown tensor"),
        (lambda t: t.update({"model.norm.weight": np.ones(3)}), "model.norm.weight: found shape"),
    ],
)
def test_every_tensor_is_used_or_the_import_fails(folder, tmp_path, reference, change, message):
    tensors = dict(reference.tensors)
    change(tensors)
    write(folder, tensors)
    with pytest.raises(ValueError, match=message):
        import_checkpoint(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@one_family
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
def test_a_missing_or_damaged_file_is_named(folder, tmp_path, name):
    (folder / name).write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=name) as error:
        import_checkpoint(folder, tmp_path / "ours")
    (folder / name).unlink()
    with pytest.raises(ValueError, match=r"not found") as error:
        import_checkpoint(folder, tmp_path / "ours")
    assert "\n" not in str(error.value)


@one_family
def test_a_truncated_file_is_named(folder, tmp_path):
    file = max(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match=f"{file.name}: damaged or truncated"):
        import_checkpoint(folder, tmp_path / "ours")
