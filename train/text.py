"""Text to token ids and back, for one checkpoint's tokenizer.

Legend: P prompt tokens, N response tokens.
"""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ngramrl_jax.types import Int32Array


class TextCodec:
    """A tokenizer with its stop token. Nothing is ever added to or taken from the given text.

    Attributes:
        stop_ids: Ids that end a response.
        vocab_size: One more than the highest id.
    """

    def __init__(self, folder: Path) -> None:
        """Reads `tokenizer.json` and the stop token that `tokenizer_config.json` names.

        Raises:
            ValueError: A file is missing, or the stop token is not in the vocabulary.
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
        stop = _stop_token(folder / "tokenizer_config.json")
        stop_id = self._tokenizer.token_to_id(stop) if isinstance(stop, str) else None
        if stop_id is None:
            raise ValueError(f"tokenizer: found eos_token {stop!r}, allowed: a vocabulary token")
        self.stop_ids = (stop_id,)
        self.vocab_size = 1 + max(self._tokenizer.get_vocab().values())  # ids may have holes

    def encode(self, text: str) -> Int32Array:
        """Ids of the text alone: no start or end token is added."""
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

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


def _stop_token(path: Path) -> object:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"tokenizer: {path} is damaged ({error})") from error
    stop = settings.get("eos_token") if isinstance(settings, dict) else None
    return stop["content"] if isinstance(stop, dict) and "content" in stop else stop
