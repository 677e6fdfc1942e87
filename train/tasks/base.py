"""What a task is to the trainer: prompts, a score for responses, and held-out sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Item:
    """One prompt of a task.

    Attributes:
        index: The prompt id, from 0; unique over the training part and all held-out sets, and the
            same whatever limits are set. History and sampling noise hang on it.
        payload: What the task needs to write the prompt and to score responses.
    """

    index: int
    payload: Any


@dataclass(frozen=True)
class Score:
    """The verdict on one response.

    Attributes:
        reward: What training maximises.
        parts: Its components by name, for the metrics.
        faults: What went wrong beside the response itself, 1 or 0 by name, for the metrics.
    """

    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)
    faults: Mapping[str, float] = field(default_factory=dict)


class Task(Protocol):
    """A workload.

    A class that derives from this one inherits no held-out sets, no known responses and a `close`
    that has nothing to do.

    Attributes:
        accuracy_part: The part of a score that is 1 where the response is right, else less.
        train_items: The items to train on.
        warm_start_items: Further items for supervised training alone; they have no score.
        heldout: The held-out sets by name; none of their items is trained on.
    """

    accuracy_part: str
    train_items: Sequence[Item]
    warm_start_items: Sequence[Item] = ()
    heldout: Mapping[str, Sequence[Item]] = MappingProxyType({})

    def prompt(self, item: Item) -> str:
        """The text that the policy continues."""
        ...

    def response(self, item: Item) -> str | None:
        """A right continuation, for supervised warm starts; None where none is known.

        The codec adds the stop token.
        """
        return None

    def score(self, items: Sequence[Item], texts: Sequence[str]) -> list[Score]:
        """One score for each response `texts[i]` to `items[i]`, in order."""
        ...

    def close(self) -> None:
        """Frees what the task holds, worker processes above all; may be called twice."""


def checked_scores(task: Task, items: Sequence[Item], texts: Sequence[str]) -> list[Score]:
    """Asks the task, and checks its answer: the task may be a user's own.

    Raises:
        ValueError: Not one `Score` of numbers a text, or parts and faults that differ from score to
            score.
    """
    given = task.score(items, texts)
    allowed = "one Score of numbers for each text"
    if not isinstance(given, Sequence):
        raise ValueError(f"scores of the task: found {given!r:.60}, allowed: a list, {allowed}")
    wrong = [score for score in given if not _is_score(score)]
    if wrong or len(given) != len(texts):
        found = f"{wrong[0]!r:.60} among them" if wrong else f"{len(given)} for {len(texts)} texts"
        raise ValueError(f"scores of the task: found {found}, allowed: {allowed}")
    for score in given:
        if task.accuracy_part not in score.parts:
            found = ", ".join(score.parts) or "none"
            raise ValueError(f"parts of a score: found {found}, allowed: {task.accuracy_part} too")
        if (
            score.parts.keys() != given[0].parts.keys()
            or score.faults.keys() != given[0].faults.keys()
        ):
            raise ValueError(
                "parts and faults: found other names in other scores, allowed: the same"
            )
    return list(given)


def _is_score(given: object) -> bool:
    """Whether it is a score of numbers, NaN among them: that is refused later, and counted."""
    if not isinstance(given, Score):
        return False
    if not isinstance(given.parts, Mapping) or not isinstance(given.faults, Mapping):
        return False
    values = (given.reward, *given.parts.values(), *given.faults.values())
    return all(hasattr(value, "__float__") and np.ndim(value) == 0 for value in values)
