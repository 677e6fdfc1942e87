"""Function calling: documented functions and a question in, a list of calls out (BFCL, one turn).

A prompt shows signatures rather than JSON schemas, which would fill a small model's context:

    Functions:
    spotify.play(artist: str, duration: int, quality?: 'low'|'high')
    Question: Play Taylor Swift for 20 minutes.
    Calls:

`?` marks what may be left out; descriptions are not shown. The response is
`[spotify.play(artist='Taylor Swift', duration=20)]`, in brackets even where there is one call: that
is the form BFCL's own prompt asks for, so its published decoder reads the responses as they are.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train.rewards.calls import ExpectedCall, Function, Parameter, Verdict, judge
from train.tasks.base import Item, Score, Task
from train.tasks.bfcl import CallExample, read_bfcl
from train.tasks.records import choose

_SHORT = {"string": "str", "integer": "int", "boolean": "bool", "array": "list"}


class FunctionCalling(Task):
    """The function-calling task over BFCL's folder or wheel.

    Half of the examples are for training and half are held out, by a hash of the id, so that an
    example stays in its half whatever else the files hold.

    Args:
        path: See `train.tasks.bfcl`.
        train_limit: Training items at most; 0 keeps all.
        heldout_limit: Held-out items at most; 0 keeps all.
        seed: Chooses the items under a limit, whatever their order in the files.
        name_credit: Reward of a response that calls the right functions with wrong arguments.

    Attributes:
        accuracy_part: The calls are the expected ones.
        train_items: In the order of the files.
        warm_start_items: What `train_limit` left out of the training half.
        heldout: The other half, as `test`.

    Raises:
        ValueError: The data or a number cannot be used.
    """

    accuracy_part = "match"

    def __init__(
        self,
        path: str | Path,
        *,
        train_limit: int = 0,
        heldout_limit: int = 0,
        seed: int = 0,
        name_credit: float = 0.1,
    ) -> None:
        if min(train_limit, heldout_limit) < 0:
            found = f"{train_limit}, {heldout_limit}"
            raise ValueError(f"train_limit, heldout_limit: found {found}, allowed: 0 (all) or more")
        if not 0.0 <= name_credit < 1.0:
            raise ValueError(f"name_credit: found {name_credit}, allowed: 0 or more, below 1")
        items = [Item(i, example) for i, example in enumerate(read_bfcl(Path(path)))]
        half = [item for item in items if not is_held_out(_id(item))]
        if not half:
            raise ValueError(f"{path}: found no training items, allowed: one or more")
        self.train_items: Sequence[Item] = choose(half, train_limit, seed, _id)
        chosen = {item.index for item in self.train_items}
        self.warm_start_items: Sequence[Item] = [i for i in half if i.index not in chosen]
        held_out = [item for item in items if is_held_out(_id(item))]
        self.heldout: Mapping[str, Sequence[Item]] = {
            "test": choose(held_out, heldout_limit, seed, _id)
        }
        self._name_credit = name_credit

    def prompt(self, item: Item) -> str:
        """The signatures and the question, up to where the calls begin."""
        example: CallExample = item.payload
        signatures = "\n".join(map(_signature, example.functions))
        return f"Functions:\n{signatures}\nQuestion: {example.question.strip()}\nCalls:\n"

    def response(self, item: Item) -> str:
        """The shortest right calls: the first accepted values, nothing that may be left out."""
        example: CallExample = item.payload
        return f"[{', '.join(map(_gold, example.expected))}]"

    def score(self, items: Sequence[Item], texts: Sequence[str]) -> list[Score]:
        """Compares the calls, see `train.rewards.calls`; parts: `match`, `names`, `parses`."""
        return [
            self._score(judge(text, item.payload.expected))
            for item, text in zip(items, texts, strict=True)
        ]

    def _score(self, verdict: Verdict) -> Score:
        credit = self._name_credit if verdict.names else 0.0
        return Score(
            reward=1.0 if verdict.match else credit,
            parts={
                "match": float(verdict.match),
                "names": float(verdict.names),
                "parses": float(verdict.parses),
            },
        )


def is_held_out(example_id: str) -> bool:
    """Which half an example belongs to: the lowest bit of a hash of its id."""
    return bool(hashlib.blake2b(example_id.encode()).digest()[0] & 1)


def _id(item: Item) -> str:
    example: CallExample = item.payload
    return example.id


def _signature(function: Function) -> str:
    shown = (
        f"{name}{'' if one.required else '?'}: {_type(one)}"
        for name, one in function.parameters.items()
    )
    return f"{function.name}({', '.join(shown)})"


def _type(parameter: Parameter) -> str:
    if parameter.choices:
        return "|".join(map(repr, parameter.choices))
    outer, inner = (_SHORT.get(kind or "", kind) for kind in (parameter.type, parameter.items))
    return f"{outer}[{inner}]" if inner else f"{outer}"


def _gold(call: ExpectedCall) -> str:
    parameters = call.function.parameters
    arguments = {
        name: next(value for value in accepted if value != "")
        for name, accepted in call.accepted.items()
        if "" not in accepted or parameters[name].required
    }
    shown = (f"{name}={_literal(value)!r}" for name, value in arguments.items())
    return f"{call.function.name}({', '.join(shown)})"


def _literal(value: Any) -> Any:
    """An accepted value as it is written: the keys of a dict hold accepted values in turn."""
    if isinstance(value, list):
        return [_literal(one) for one in value]
    if isinstance(value, dict):
        return {key: _literal(values[0]) for key, values in value.items() if "" not in values}
    return value
