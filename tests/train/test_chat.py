"""Chat templates: the ids of `transformers` with Qwen3's real tokenizer; stop tokens; padding."""

import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.config import preset
from models.policy import Qwen3Policy
from train.chat import ChatTemplate, open_codec
from train.config import DataConfig
from train.tasks.sql_chat import create_statements, query_of
from train.text import TextCodec

QWEN3 = Path(__file__).resolve().parents[3] / "shared" / "data" / "qwen3_tokenizer"
CASES = Path(__file__).parent / "fixtures" / "chat_ids.json"


@pytest.mark.skipif(not QWEN3.is_dir(), reason="needs ../shared/data/qwen3_tokenizer")
def test_ids_are_those_of_transformers():
    codec, template = TextCodec(QWEN3), ChatTemplate(QWEN3)
    cases = json.loads(CASES.read_text(encoding="utf-8"))
    assert len(cases) >= 50
    for case in cases:
        text = template.render(
            case["messages"],
            tools=case["tools"],
            thinking=case["thinking"],
            generation=case["generation"],
        )
        ids = codec.encode(text)
        assert [len(ids), zlib.crc32(ids.astype("<i4").tobytes())] == case["ids"], text


@pytest.fixture
def folder(tmp_path, repository):
    """The embedded tokenizer with a template of its own."""
    source = repository / "data" / "tokenizer"
    settings = json.loads((source / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "{% if not messages %}{{ raise_exception('nothing said') }}{% endif %}"
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ eos_token }}{{ enable_thinking }}{% endif %}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    return tmp_path


def test_prompts_go_through_the_template_where_configured(folder):
    plain = open_codec(folder, DataConfig())
    assert plain.decode(plain.encode_prompt("one")) == "one"
    chat = open_codec(folder, DataConfig(chat=True, thinking=True, system="be brief"))
    text = chat.decode(chat.encode_prompt("one"))
    assert text == "[system]be brief[user]one<|end|>True"
    assert chat.decode(chat.encode("one")) == "one"  # responses do not


def test_a_refused_conversation_and_a_missing_template_are_named(folder, repository):
    with pytest.raises(ValueError, match="nothing said"):
        ChatTemplate(folder).render([])
    with pytest.raises(ValueError, match="found no chat_template"):
        open_codec(repository / "data" / "tokenizer", DataConfig(chat=True))


def test_stop_tokens_are_those_of_the_generation_configuration(folder):
    file = folder / "generation_config.json"
    for named, ids in (([3, 0], (3, 0)), (2, (2,)), (None, (0,))):
        file.write_text(json.dumps({"eos_token_id": named}))
        assert TextCodec(folder).stop_ids == ids
    for wrong in ([], [10**6], "end"):
        file.write_text(json.dumps({"eos_token_id": wrong}))
        with pytest.raises(ValueError, match="eos_token_id"):
            TextCodec(folder)


def test_padding_of_the_vocabulary_has_no_probability():
    config = preset("tiny")
    policy, params = Qwen3Policy(config), Qwen3Policy(config).init_params(jax.random.key(0))
    some = Qwen3Policy(config, tokens=2000)
    hidden = policy.hidden(params, jnp.asarray([[1, 2, 3]], jnp.int32))
    whole, masked = policy.logits(params, hidden), some.logits(params, hidden)
    np.testing.assert_array_equal(masked[..., :2000], whole[..., :2000])
    assert bool(jnp.all(jnp.isneginf(masked[..., 2000:])))
    cache = some.init_cache(1, 8)
    cached, _ = some.forward(
        params, jnp.asarray([[1, 2, 3]], jnp.int32), jnp.zeros(1, jnp.int32), cache, live=8
    )
    assert bool(jnp.all(jnp.isneginf(cached[..., 2000:])))

    def loss(params):
        logits = some.logits(params, some.hidden(params, jnp.asarray([[1, 2, 3]], jnp.int32)))
        return jax.nn.log_softmax(logits)[0, 0, 5]

    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(jax.grad(loss)(params)))


@pytest.mark.parametrize(
    ("answer", "query"),
    [
        ("SELECT 1", "SELECT 1"),
        ("Here:\n```sql\nSELECT 1\n```\nIt counts.", "SELECT 1\n"),
        ("```\nSELECT 2```", "SELECT 2"),
        ("```sql\nSELECT 3 FROM", "SELECT 3 FROM"),
    ],
)
def test_the_query_is_taken_out_of_an_answer(answer, query):
    assert query_of(answer) == query


def test_statements_are_one_a_line_and_plain_names_stand_without_back_ticks(tmp_path):
    with closing(sqlite3.connect(tmp_path / "d.sqlite")) as database:
        database.execute("CREATE TABLE `city` (\n  `name` TEXT,\n  `area (km)` REAL\n)")
        database.execute("CREATE TABLE pet (name TEXT)")
    assert create_statements(tmp_path / "d.sqlite") == (
        "CREATE TABLE city ( name TEXT, `area (km)` REAL );\nCREATE TABLE pet (name TEXT);"
    )
