"""Prompts as JSON lines and a user's own Python reward.

A line is an object with the text `prompt` and whatever the reward needs; `response`, where it is
there, is a right continuation, for warm starts and the report. `data.path` is one such file, or a
folder with `train.jsonl` and the held-out sets `heldout_<set>.jsonl` or `test.jsonl`.

    def reward(record: dict, response: str) -> float

It runs in worker processes under a limit of wall-clock time. A call that hangs, runs out of memory
or takes its process down scores 0 and counts as `killed`: the response may be why. A call that
raises anything else, or returns no number, is a mistake in the reward, and an error that names it.
A reward that is NaN or infinite is passed on: the step that it belongs to is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.rewards.pool import LOST, Lost, WorkerPool
from train.tasks.base import Item, Score
from train.tasks.own_file import file_of, load_name, told
from train.tasks.records import choose, read_records

Reward = Callable[[dict[str, Any], str], float]
# A reward that was lost this often before it worked once is broken, whatever the responses say.
LOSSES_OF_A_BROKEN_REWARD = 16


@dataclass(frozen=True)
class Outcome:
    """What one call of the reward came to.

    Attributes:
        reward: What it returned.
        mistake: What it raised, or returned where that is no number, on one line; else empty.
    """

    reward: float = 0.0
    mistake: str = ""


class RewardCaller:
    """Worker side: calls the reward; whatever it does is an outcome, not an exception.

    Args:
        named: `path/to/file.py:name` of the reward.
    """

    def __init__(self, named: str) -> None:
        self._file = file_of(named).resolve()
        self._broken: Outcome | None = None
        try:
            self._reward: Reward = load_name(named)
        except ValueError as error:  # the file has changed since the run began
            self._broken = Outcome(mistake=str(error))

    def __call__(self, job: tuple[dict[str, Any], str]) -> Outcome | Lost:
        """The outcome for a record and a response; none where memory ran out."""
        if self._broken:
            return self._broken
        try:
            returned = self._reward(*job)
            if not hasattr(returned, "__float__"):
                return Outcome(mistake=f"{returned!r:.60}")
            return Outcome(reward=float(returned))
        except MemoryError:
            return LOST
        except Exception as error:
            return Outcome(mistake=told(error, self._file))


class ScoredPrompts:
    """The task of a prompt file and a reward.

    Args:
        path: A file of JSON lines, or a folder of them.
        reward: `path/to/file.py:name`.
        train_limit: Training items at most; 0 keeps all.
        heldout_limit: Items of each held-out set at most; 0 keeps all.
        seed: Chooses the items under a limit, whatever their order in the files.
        workers: Processes that call the reward; they start with the first score.
        seconds: Wall-clock limit of one call.

    Attributes:
        accuracy_part: The reward is 1 or more.
        train_items: In the order of the file.
        heldout: Sets by name: what stands between `heldout_` and `.jsonl`, or `test`.

    Raises:
        ValueError: A file, a line or a number cannot be used.
    """

    accuracy_part = "right"
    warm_start_items: Sequence[Item] = ()

    def __init__(
        self,
        path: str | Path,
        reward: str,
        *,
        train_limit: int = 0,
        heldout_limit: int = 0,
        seed: int = 0,
        workers: int = 2,
        seconds: float = 5.0,
    ) -> None:
        parts: dict[str, list[Item]] = {}
        self._places: list[str] = []  # of the records, by index
        for name, file in _files(Path(path)).items():
            parts[name] = []
            for place, record in _prompt_records(file):
                parts[name].append(Item(len(self._places), record))
                self._places.append(place)
        self.train_items: Sequence[Item] = choose(parts.pop(""), train_limit, seed, _text)
        self.heldout: Mapping[str, Sequence[Item]] = {
            name: choose(items, heldout_limit, seed, _text) for name, items in parts.items()
        }
        self._named = reward
        self._worked, self._losses = False, 0
        self._pool = WorkerPool(
            "train.tasks.scored_prompts:RewardCaller",
            {"named": reward},
            workers=workers,
            seconds=seconds,
        )

    def prompt(self, item: Item) -> str:
        """The record's `prompt`, as it stands."""
        prompt: str = item.payload["prompt"]
        return prompt

    def response(self, item: Item) -> str | None:
        """The record's `response`, if it has one."""
        return item.payload.get("response")

    def score(self, items: Sequence[Item], texts: Sequence[str]) -> list[Score]:
        """Calls the reward, once for equal responses to one item.

        Raises:
            ValueError: It raised, returned something other than a number, or has been lost in every
                call yet.
        """
        asked = {
            (item.index, text): (item.payload, text)
            for item, text in zip(items, texts, strict=True)
        }
        outcomes = dict(zip(asked, self._pool.map(list(asked.values())), strict=True))
        for (index, text), outcome in outcomes.items():
            self._judge(index, text, outcome)
        return [_score(outcomes[item.index, text]) for item, text in zip(items, texts, strict=True)]

    def _judge(self, index: int, text: str, outcome: Outcome | Lost) -> None:
        """Raises where the reward, not the response, is at fault."""
        if isinstance(outcome, Outcome):
            if outcome.mistake:
                raise ValueError(
                    f"{self._named}: found {outcome.mistake} for {self._places[index]} and the "
                    f"response {text!r:.60}, allowed: a number"
                )
            self._worked = True
        self._losses += not self._worked
        if self._losses >= LOSSES_OF_A_BROKEN_REWARD:
            raise ValueError(
                f"{self._named}: found each of the first {self._losses} calls past its limit of "
                "time or memory, or dead, allowed: a reward that works"
            )

    def close(self) -> None:
        """Ends the worker processes."""
        self._pool.close()


def _score(outcome: Outcome | Lost) -> Score:
    killed = isinstance(outcome, Lost)
    reward = 0.0 if isinstance(outcome, Lost) else outcome.reward
    return Score(reward, {"right": float(reward >= 1.0)}, {"killed": float(killed)})


def _files(path: Path) -> dict[str, Path]:
    """The training part, under the empty name, and the held-out sets."""
    if not path.is_dir():
        return {"": path}
    heldout = [*sorted(path.glob("heldout_*.jsonl")), *path.glob("test.jsonl")]
    return {"": path / "train.jsonl"} | {
        file.stem.removeprefix("heldout_"): file for file in heldout
    }


def _prompt_records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every record, and where it stands."""
    for place, record in read_records(file):
        if not isinstance(record, dict):
            found = type(record).__name__
            raise ValueError(f"{place}: found a JSON {found}, allowed: an object with a `prompt`")
        prompt, response = record.get("prompt"), record.get("response", "")
        if not isinstance(prompt, str) or not prompt:
            found = "no prompt" if prompt is None else f"prompt = {prompt!r}"
            raise ValueError(f"{place}: found {found}, allowed: a text that is not empty")
        if not isinstance(response, str):
            raise ValueError(f"{place}: found response = {response!r}, allowed: a text")
        yield place, record


def _text(item: Item) -> str:
    return item.payload["prompt"]
