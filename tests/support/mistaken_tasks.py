"""Tasks whose prompts are no text, and one that raises."""

from train.tasks.base import Item, Score, Task


class Mine(Task):
    accuracy_part = "right"
    text = "SELECT"

    def __init__(self):
        self.train_items = [Item(0, None), Item(1, None)]

    def prompt(self, item):
        return self.text

    def score(self, items, texts):
        return [Score(1.0, {"right": 1.0}) for _ in items]


class Silent(Mine):
    text = ""


class Number(Mine):
    text = 3


class Half(Mine):
    text = "half a pair: \ud800"


class Raising(Mine):
    def prompt(self, item):
        return 1 // item.index
