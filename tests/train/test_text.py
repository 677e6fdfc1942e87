"""The codec adds nothing and takes nothing away but the stop token."""

import json
import shutil

import pytest

from train.text import TextCodec


@pytest.fixture
def folder(repository, tmp_path):
    return shutil.copytree(repository / "data" / "tokenizer", tmp_path / "tokenizer")


def test_prompt_ids_are_those_of_the_text_alone(folder):
    codec = TextCodec(folder)
    text = "<|schema|>a(b)<|question|>Which b?<|sql|>"
    ids = codec.encode(text)
    assert codec.decode(ids) == text
    assert not set(codec.stop_ids) & set(ids.tolist())  # CASES B47: no stop token in a prompt
    assert codec.encode_response("SELECT b FROM a")[-1] == codec.stop_ids[0]


def test_decoding_drops_the_last_stop_token_and_no_other(folder):
    codec = TextCodec(folder)
    ids = codec.encode_response("SELECT 1")
    assert codec.decode(ids) == "SELECT 1"
    assert codec.decode(ids[:-1]) == "SELECT 1"
    assert codec.decode(codec.encode_response("SELECT 1<|end|>")) == "SELECT 1<|end|>"
    assert "".join(codec.pieces(ids)) == "SELECT 1<|end|>"


@pytest.mark.parametrize("eos", ["<|nowhere|>", None])
def test_an_unknown_stop_token_is_named(folder, eos):
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    with pytest.raises(ValueError, match="eos_token"):
        TextCodec(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(ValueError, match=name):
        TextCodec(folder)
