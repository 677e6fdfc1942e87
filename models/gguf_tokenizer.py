"""A tokenizer.json, its settings and the stop tokens, from the metadata of a GGUF file.

llama.cpp names the rule that splits text into words (`tokenizer.ggml.pre`) and keeps the byte-level
BPE's tokens and merges. What it marks as unused are rows of the embedding without a token.
"""

import json
from collections.abc import Mapping
from typing import Any

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # llama.cpp's token types; 1 is a normal token
# llama.cpp too ends a response at tokens of these names
ENDINGS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>")

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(digits: str) -> list[dict[str, Any]]:
    pattern = {"Regex": _WORDS.replace("DIGITS", digits)}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    return [split, _byte_level(use_regex=False)]


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    fields = {"add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}
    return {"type": "ByteLevel", **fields}


PRE_TOKENIZERS = {
    "qwen2": _split(""),
    "llama-bpe": _split("{1,3}"),
    "smollm": [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)],
}


def tokenizer_texts(meta: Mapping[str, Any]) -> dict[str, str]:
    """Contents of `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`.

    Args:
        meta: The metadata of the file, by name.

    Raises:
        ValueError: A kind of tokenizer that is not implemented, or a part of it is missing.
    """
    for name, allowed in (("model", ("gpt2",)), ("pre", tuple(PRE_TOKENIZERS))):
        if (found := meta.get(f"tokenizer.ggml.{name}")) not in allowed:
            raise ValueError(f"tokenizer.ggml.{name}: found {found}, allowed: {', '.join(allowed)}")
    names = [f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges")]
    if missing := [name for name in names if name not in meta]:
        raise ValueError(f"{missing[0]}: missing, allowed: a whole tokenizer")
    tokens, kinds, merges = (meta[name] for name in names)
    ends = _end_ids(meta, tokens)
    special = {name: _token(meta, tokens, f"{key}_token_id") for name, key in _NAMED.items()}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(meta.get("tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
        **{name: token for name, token in special.items() if token is not None},
    }
    if "tokenizer.chat_template" in meta:
        settings["chat_template"] = meta["tokenizer.chat_template"]
    contents = (_tokenizer(meta, tokens, kinds, merges), settings, {"eos_token_id": ends})
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    return {
        name: json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        for name, content in zip(names, contents, strict=True)
    }


_NAMED = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}


def _token(meta: Mapping[str, Any], tokens: list[str], key: str) -> str | None:
    number = meta.get(f"tokenizer.ggml.{key}")
    return None if number is None else tokens[number]


def _end_ids(meta: Mapping[str, Any], tokens: list[str]) -> list[int]:
    """The stop token that the file names, then the others that end a response."""
    named = [meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    known = [tokens.index(name) for name in ENDINGS if name in tokens]
    return list(dict.fromkeys(number for number in [*named, *known] if number is not None))


def _tokenizer(
    meta: Mapping[str, Any], tokens: list[str], kinds: list[int], merges: list[str]
) -> dict[str, Any]:
    pre = meta["tokenizer.ggml.pre"]
    numbered = list(enumerate(zip(tokens, kinds, strict=True)))
    added = [
        {
            "id": number,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for number, (token, kind) in numbered
        if kind in (CONTROL, USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "post_processor": None,
        "decoder": _byte_level(use_regex=False),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre == "llama-bpe",
            "vocab": {token: n for n, (token, kind) in numbered if kind != UNUSED},
            "merges": merges,
        },
    }
