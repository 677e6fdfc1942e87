"""A small task of our own for runs in tests, and faults of it by environment variable.

ODD_NAN_STEPS="3 4"   calls for training rewards, from 0, that return a NaN
ODD_SLOW_STEP="2"     such a call that takes three seconds
ODD_EASY="0 5"        prompts whose responses all earn 1
"""

import os
import time
from dataclasses import replace

from train.tasks.base import Item, Score, Task

SECONDS = 3.0


class OddTask(Task):
    """Eight prompts; rewards hang on the response's characters, so they differ."""

    accuracy_part = "odd"

    def __init__(self) -> None:
        self.train_items = [Item(i, f"prompt {i}") for i in range(8)]
        self.heldout = {"others": [Item(8 + i, f"other {i}") for i in range(2)]}
        self._calls = 0

    def prompt(self, item):
        return item.payload

    def score(self, items, texts):
        scores = [_score(text) for text in texts]
        if items[0].index >= 8:
            return scores
        easy = _numbers("ODD_EASY")
        scores = [
            replace(score, reward=1.0) if item.index in easy else score
            for item, score in zip(items, scores, strict=True)
        ]
        call, self._calls = self._calls, self._calls + 1
        if call in _numbers("ODD_NAN_STEPS"):
            scores[1] = replace(scores[1], reward=float("nan"))
        if call in _numbers("ODD_SLOW_STEP"):
            time.sleep(SECONDS)
        return scores


def _score(text: str) -> Score:
    total = sum(map(ord, text))
    return Score(reward=total % 7 / 7.0, parts={"odd": float(total % 2)})


def _numbers(variable: str) -> list[int]:
    return [int(word) for word in os.environ.get(variable, "").split()]
