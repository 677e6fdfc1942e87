"""A byte-level BPE tokenizer of our own, trained on a task's training part alone.

Words split so that what a query copies from its question is the same token in both: a capitalised
word never carries the space before it (values are capitalised, so "from France" and "= 'France'"
share `France`), while lower-case words, upper-case keywords and numbers do. A name with
underscores is one word. Any text comes back exactly.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

END, PAD, SCHEMA, QUESTION, SQL = "<|end|>", "<|pad|>", "<|schema|>", "<|question|>", "<|sql|>"
SPECIAL_TOKENS = (END, PAD, SCHEMA, QUESTION, SQL)  # ids 0 to 4

_WORDS = "|".join(
    (
        r" ?[A-Z]{2,}(?![a-z])",  # keywords
        r"[A-Z][a-z]*",  # capitalised words
        r" ?[a-z_]+",  # words and names
        r" ?[0-9]+",
        r" ?[^\sA-Za-z_0-9]+",  # punctuation, and letters beyond ASCII
        r"\s+",
    )
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains on the texts; the result depends on them alone."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes `tokenizer.json` and the `tokenizer_config.json` that other libraries read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
