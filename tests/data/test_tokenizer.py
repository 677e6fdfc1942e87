"""The committed tokenizer: exact round trips, the special ids, short prompts, shared values."""

import json
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from data.build import FOLDER, VOCABULARY
from train.tasks.schema import render_schema
from train.tokenizer import SPECIAL_TOKENS

TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer" / "tokenizer.json"))


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False).ids


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text):
    assert TOKENIZER.decode(encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "text", ["", " ", "SELECTed  ABc _x__1 'naïve' \t\n日本 🙂 0007.5", "a<|sql|>b <|end|>"]
)
def test_awkward_text_comes_back(text):
    assert TOKENIZER.decode(encode(text), skip_special_tokens=False) == text


def test_special_tokens_have_the_first_ids_and_config_names_two():
    assert [TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4]
    assert TOKENIZER.get_vocab_size() == VOCABULARY
    config = json.loads((FOLDER / "tokenizer" / "tokenizer_config.json").read_text())
    assert (config["eos_token"], config["pad_token"]) == SPECIAL_TOKENS[:2]


def test_keywords_and_names_are_single_tokens():
    for word in (
        "SELECT",
        " FROM",
        " WHERE",
        " GROUP",
        " JOIN",
        "author_id",
        "title",
    ):
        assert len(encode(word)) == 1, word


def test_a_value_is_the_same_tokens_in_question_and_query():
    question = TOKENIZER.encode("authors from France older than 40 called Ben").tokens
    query = TOKENIZER.encode("country = 'France' AND age > 40 AND name = 'Ben'").tokens
    assert {"France", "Ġ40", "Ben"} <= set(question) & set(query)


def examples(part):
    """Schema, question and query of every item of a part."""
    folder = FOLDER / "text2sql"
    lines = [json.loads(line) for line in (folder / f"{part}.jsonl").read_text().splitlines()]
    if part == "warm_start":
        return [(line["schema"], *pair) for line in lines for pair in line["examples"]]
    schemas = {path.stem: render_schema(path) for path in (folder / "databases").glob("*.sqlite")}
    return [(schemas[line["database"]], line["question"], line["query"]) for line in lines]


@pytest.mark.parametrize("part", ["train", "heldout_database", "warm_start"])
def test_prompts_and_queries_are_short(part):
    items = examples(part)
    prompts = [len(encode(f"<|schema|>{s}<|question|>{q}<|sql|>")) for s, q, _ in items]
    assert max(prompts) <= 130
    assert mean(prompts) <= 100
    assert mean(len(encode(query)) for *_, query in items) <= 30
