"""Builds the embedded data set: `python data/build.py [FOLDER]`, the folder `data/` by default.

Databases, then questions in four disjoint parts, then the tokenizer. The same bytes every time,
SQLite files apart: their content is the same, their bytes depend on the library's version.
"""

import json
import random
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # as a script, Python puts data/ itself first
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from data.domains import HELD_OUT, TRAINING
from data.domains.pool import pool_domains
from data.questions import Intent, make_intents
from data.schemas import SEED, Domain, fill_database, text_values, write_database
from train.tasks.schema import render_schema, schema_text
from train.tokenizer import save_tokenizer, train_tokenizer

FOLDER = Path(__file__).resolve().parent
TRAIN_WORDINGS = 3
HELD_OUT_SIZE = 240
VOCABULARY = 2048
UNSEEN_INTENTS = 8  # of every training database
POOL_DATABASES = 150

Item = dict[str, str]
SchemaExamples = dict[str, Any]  # see train.tasks.text2sql
Parts = dict[str, list[Item]]


def make_parts(intents: dict[Domain, list[Intent]]) -> Parts:
    """Splits all intents into the training part and the three held-out parts."""
    rng = random.Random(f"{SEED}/split")
    parts: Parts = {"train": [], "heldout_paraphrases": []}
    unseen: list[Item] = []
    for domain in TRAINING:
        drawn = rng.sample(intents[domain], len(intents[domain]))
        for intent in drawn[:UNSEEN_INTENTS]:
            unseen += _items(domain, intent, rng)[:TRAIN_WORDINGS]
        for intent in drawn[UNSEEN_INTENTS:]:
            items = _items(domain, intent, rng)
            parts["train"] += items[:TRAIN_WORDINGS]
            parts["heldout_paraphrases"].append(items[TRAIN_WORDINGS])
    parts["heldout_questions"] = unseen
    parts["heldout_database"] = [
        item
        for domain in HELD_OUT
        for intent in intents[domain]
        for item in _items(domain, intent, rng)[:TRAIN_WORDINGS]
    ]
    return {
        name: items if name == "train" else rng.sample(items, HELD_OUT_SIZE)
        for name, items in parts.items()
    }


def _items(domain: Domain, intent: Intent, rng: random.Random) -> list[Item]:
    """The intent's wordings as items, in a drawn order."""
    return [
        {
            "database": domain.name,
            "question": question,
            "query": intent.query,
            "intent": intent.name,
        }
        for question in rng.sample(intent.questions, len(intent.questions))
    ]


def make_warm_start() -> list[SchemaExamples]:
    """One wording of every intent of the pool databases, whose rows are not kept."""
    rng = random.Random(f"{SEED}/warm start")
    lines = []
    for domain in islice(pool_domains(), POOL_DATABASES):
        with closing(sqlite3.connect(":memory:")) as connection:
            fill_database(domain, connection)
            intents = make_intents(domain, connection)
            examples = [[rng.choice(intent.questions), intent.query] for intent in intents]
            lines.append({"schema": schema_text(connection), "examples": examples})
    return lines


def write_lines(records: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Writes one JSON object a line."""
    lines = [json.dumps(record) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def build(folder: Path) -> dict[str, int]:
    """Writes everything under the folder and returns the size of each part."""
    databases = folder / "text2sql" / "databases"
    databases.mkdir(parents=True, exist_ok=True)
    intents = {}
    for domain in (*TRAINING, *HELD_OUT):
        path = databases / f"{domain.name}.sqlite"
        write_database(domain, path)
        with closing(sqlite3.connect(path)) as connection:
            intents[domain] = make_intents(domain, connection)
    parts, warm_start = make_parts(intents), make_warm_start()
    for name, items in parts.items():
        write_lines(items, folder / "text2sql" / f"{name}.jsonl")
    write_lines(warm_start, folder / "text2sql" / "warm_start.jsonl")
    schemas = {d.name: render_schema(databases / f"{d.name}.sqlite") for d in TRAINING}
    texts = _tokenizer_texts(parts["train"], schemas, warm_start)
    save_tokenizer(train_tokenizer(texts, VOCABULARY), folder / "tokenizer")
    sizes = {name: len(items) for name, items in parts.items()}
    return sizes | {"warm_start": sum(len(line["examples"]) for line in warm_start)}


def _tokenizer_texts(
    train: list[Item], schemas: dict[str, str], warm_start: list[SchemaExamples]
) -> Iterator[str]:
    for item in train:
        yield from (schemas[item["database"]], item["question"], item["query"])
    for line in warm_start:
        for pair in line["examples"]:
            yield from (line["schema"], *pair)
    # The values of the training databases too, so that an unseen name is not spelt out.
    for domain in TRAINING:
        yield from text_values(domain)


if __name__ == "__main__":
    for part, size in build(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER).items():
        print(f"{part}: {size} items")
