"""What a task is to the trainer: prompts, a score for responses, and held-out sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


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
    """A workload."""

    @property
    def accuracy_part(self) -> str:
        """The part of a score that is 1 where the response is right, else less."""
        ...

    @property
    def train_items(self) -> Sequence[Item]:
        """The items to train on."""
        ...

    @property
    def heldout(self) -> Mapping[str, Sequence[Item]]:
        """The held-out sets by name; none of their items is trained on."""
        ...

    def prompt(self, item: Item) -> str:
        """The text that the policy continues."""
        ...

    def response(self, item: Item) -> str:
        """A right continuation, for supervised warm starts; the codec adds the stop token."""
        ...

    def score(self, items: Sequence[Item], texts: Sequence[str]) -> list[Score]:
        """One score for each response `texts[i]` to `items[i]`, in order."""
        ...

    def close(self) -> None:
        """Frees what the task holds, worker processes above all; may be called twice."""
        ...
