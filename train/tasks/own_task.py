"""A user's own task, as the trainer meets it: what fails in it is told on one line.

The trainer calls a task between rollouts and updates, hours into a run. An exception that leaves
the user's code becomes a `ValueError` that says which member was called, what it raised and on
which line of the user's file; `train.loop` saves what was learnt, and the command ends with
status 2.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from train.tasks.base import Item, Score, Task
from train.tasks.own_file import file_of, told

_MEMBERS = ("accuracy_part", "train_items", "heldout", "prompt", "response", "score", "close")


class OwnTask(Task):
    """The object that a user's class or factory made, called so that its mistakes are told.

    Attributes:
        own: The object itself.

    Raises:
        ValueError: It cannot be made, lacks a member, or has items that cannot be used.
    """

    def __init__(self, named: str, make: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Makes the object of `named` and reads its items."""
        self._named = named
        self._file = file_of(named).resolve()
        with self._told("", "a task that can be made"):
            self.own = make(*arguments)
        with self._told("'s members", "those that train.tasks.base.Task lists"):
            missing = [name for name in _MEMBERS if not hasattr(self.own, name)]
        if missing:
            raise ValueError(
                f"{named}: found no {', '.join(missing)}, "
                "allowed: all that train.tasks.base.Task lists"
            )
        with self._told("'s items", "lists of Item, and of those that are held out one by name"):
            self.accuracy_part: str = self.own.accuracy_part
            self.train_items: Sequence[Item] = list(self.own.train_items)
            self.warm_start_items: Sequence[Item] = list(getattr(self.own, "warm_start_items", ()))
            self.heldout: Mapping[str, Sequence[Item]] = {
                name: list(items) for name, items in self.own.heldout.items()
            }
        self._check_items()

    def prompt(self, item: Item) -> str:
        """See `Task.prompt`; whoever encodes it checks that it is a text."""
        with self._told(f".prompt, item {item.index}", "a text"):
            text: str = self.own.prompt(item)
            return text

    def response(self, item: Item) -> str | None:
        """See `Task.response`."""
        what, allowed = f".response, item {item.index}", "a text, or None where none is known"
        with self._told(what, allowed):
            text = self.own.response(item)
        if text is not None and not isinstance(text, str):
            raise ValueError(f"{self._named}{what}: found {text!r:.60}, allowed: {allowed}")
        return text

    def score(self, items: Sequence[Item], texts: Sequence[str]) -> list[Score]:
        """See `Task.score`; `checked_scores` checks what it gives."""
        with self._told(".score", "one Score for each text"):
            scores: list[Score] = self.own.score(items, texts)
            return scores

    def close(self) -> None:
        """See `Task.close`."""
        with self._told(".close", "no error"):
            self.own.close()

    @contextmanager
    def _told(self, what: str, allowed: str) -> Iterator[None]:
        """What the user's code raises inside the block, or that it would exit, as one line."""
        try:
            yield
        except (Exception, SystemExit) as error:
            found = told(error, self._file)
            raise ValueError(f"{self._named}{what}: found {found}, allowed: {allowed}") from error

    def _check_items(self) -> None:
        if not self.train_items:
            raise ValueError(f"{self._named}: found no training items, allowed: one or more")
        items = [*self.train_items, *(item for part in self.heldout.values() for item in part)]
        for item in [*items, *self.warm_start_items]:
            if not isinstance(item, Item) or not isinstance(item.index, int) or item.index < 0:
                raise ValueError(
                    f"{self._named}: found {item!r:.60}, allowed: Item(index >= 0, ...)"
                )
        index, times = Counter(item.index for item in items).most_common(1)[0]
        if times > 1:
            raise ValueError(f"{self._named}: found {times} items of index {index}, allowed: one")
