"""Your own task, in two ways.

python train/train.py examples/own_task.yaml
python train/train.py examples/own_task.yaml task=examples/own_task.py:CountRows
"""

from collections.abc import Sequence

from train.config import DataConfig
from train.tasks.base import Item, Score, Task


def reward(record: dict, response: str) -> float:
    """From a line of `own_prompts.jsonl` and a response: 1 for the right query, less if near."""
    if response == f"SELECT COUNT(*) FROM {record['table']}":
        return 1.0
    return 0.25 * (record["table"] in response) + 0.25 * ("COUNT" in response)


class CountRows(Task):
    """A task without a file: its prompts are made here."""

    accuracy_part = "right"

    def __init__(self, data: DataConfig) -> None:
        items = [
            Item(i, name) for i, name in enumerate(("book", "venue", "album", "actor", "drug"))
        ]
        self.train_items = items[:4][: data.train_items or None]
        self.heldout = {"new": items[4:]}

    def prompt(self, item: Item) -> str:
        """What the policy continues."""
        return f"<|schema|>{item.payload}(id,name)<|question|>How many {item.payload}s?<|sql|>"

    def score(self, items: Sequence[Item], texts: Sequence[str]) -> list[Score]:
        """One score for each response."""
        right = [float(f"FROM {i.payload}" in text) for i, text in zip(items, texts, strict=True)]
        return [Score(reward=one, parts={"right": one}) for one in right]
