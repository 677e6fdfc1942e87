"""Text to token ids and back, for one checkpoint's tokenizer.

Legend: P prompt tokens, N response tokens.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ngramrl_jax.types import Int32Array


class TextCodec:
    """A tokenizer with its stop tokens. Nothing is ever added to or taken from the given text.

    Attributes:
        stop_ids: Ids that end a response; the first one ends those that are learnt from.
        vocab_size: One more than the highest id.
    """

    def __init__(self, folder: Path, as_prompt: Callable[[str], str] | None = None) -> None:
        """Reads `tokenizer.json` and the stop tokens.

        Those are the tokens that `generation_config.json` names, in its order, or else the one that
        `tokenizer_config.json` does.

        Args:
            folder: The tokenizer's, that of a checkpoint for example.
            as_prompt: Makes the whole prompt of an item's text, such as a chat template does; None
                takes the text as it is.

        Raises:
            ValueError: A file is missing or damaged, or a stop token is not in the vocabulary.
        """
        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not (folder / name).is_file():
                raise ValueError(
                    f"tokenizer: found no {folder / name}, allowed: a tokenizer folder"
                )
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing more special
            raise ValueError(
                f"tokenizer: {folder / 'tokenizer.json'} is damaged ({error})"
            ) from error
        self._as_prompt = as_prompt
        self.stop_ids = self._stop_ids(folder)
        self.vocab_size = 1 + max(self._tokenizer.get_vocab().values())  # ids may have holes

    def encode(self, text: str) -> Int32Array:
        """Ids of the text alone: no start or end token is added."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    def encode_prompt(self, text: str) -> Int32Array:
        """Ids of a prompt."""
        return self.encode(text if self._as_prompt is None else self._as_prompt(text))

    def encode_response(self, text: str) -> Int32Array:
        """Ids of a complete response, the stop token last."""
        return np.append(self.encode(text), np.int32(self.stop_ids[0]))

    def decode(self, tokens_N: Int32Array) -> str:
        """Text of a response; a stop token at its end is left out."""
        ids = tokens_N.tolist()
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def pieces(self, tokens_N: Int32Array) -> list[str]:
        """Text of each token by itself, for display."""
        return [self._tokenizer.decode([i], skip_special_tokens=False) for i in tokens_N.tolist()]

    def _stop_ids(self, folder: Path) -> tuple[int, ...]:
        generation = folder / "generation_config.json"
        named = read_settings(generation).get("eos_token_id") if generation.is_file() else None
        if named is not None:
            ids = tuple(named) if isinstance(named, list) else (named,)
            if not ids or not all(type(i) is int and self._tokenizer.id_to_token(i) for i in ids):
                raise ValueError(f"{generation}: found eos_token_id {named}, allowed: token ids")
            return ids
        stop = token_text(read_settings(folder / "tokenizer_config.json").get("eos_token"))
        stop_id = self._tokenizer.token_to_id(stop) if isinstance(stop, str) else None
        if stop_id is None:
            raise ValueError(f"tokenizer: found eos_token {stop!r}, allowed: a vocabulary token")
        return (stop_id,)


def read_settings(path: Path) -> dict[str, Any]:
    """The JSON object in a file of the tokenizer; raises ValueError for anything else."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"tokenizer: {path} is damaged ({error})") from error
    if not isinstance(settings, dict):
        raise ValueError(f"tokenizer: {path} is damaged, allowed: a JSON object")
    return settings


def token_text(token: object) -> object:
    """The text of a token that may be written with its properties, `{"content": ...}`."""
    return token["content"] if isinstance(token, dict) and "content" in token else token
