"""Where problems of mathematics come from: generators of `reasoning-gym`, or a GSM8K folder.

Either source gives a training half and a held-out half. No question of the held-out half stands in
the training half: generators draw the halves from seeds far apart, and what is equal all the same,
in a folder too, is left out of the training half.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from train.rewards.numbers import plain_number
from train.tasks.records import read_records

GENERATORS = "reasoning-gym:"
TRAIN_QUESTIONS, HELDOUT_QUESTIONS = 1536, 256
# An entry depends on the sum of seed and position: the two stretches of sums do not meet.
TRAIN_SEED, HELDOUT_SEED = 0, 1_000_000

_SUFFIX = " Give the result as your final answer. Do not include units."
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's notes of what a calculator would say


@dataclass(frozen=True)
class Problem:
    """Payload of an item.

    Attributes:
        question: The text of the problem.
        solution: Worked out line by line; the last line is `#### ` and the number.
        gold: The number.
    """

    question: str
    solution: str
    gold: Fraction


def read_problems(source: str) -> tuple[dict[int, Problem], dict[int, Problem]]:
    """The training half and the held-out half of a source, by prompt id.

    Args:
        source: `reasoning-gym:` and the name of a generator, or a folder with `train.jsonl` and
            `test.jsonl` in GSM8K's format.

    Raises:
        ValueError: An unknown source, an unusable line, or reasoning-gym is not installed.
    """
    if source.startswith(GENERATORS):
        name = source.removeprefix(GENERATORS)
        train = list(_generate(name, TRAIN_SEED, TRAIN_QUESTIONS))
        heldout = list(_generate(name, HELDOUT_SEED, HELDOUT_QUESTIONS))
    else:
        if not Path(source, "train.jsonl").is_file():
            allowed = f"a folder with train.jsonl and test.jsonl, or {GENERATORS}gsm_symbolic"
            raise ValueError(f"mathematics data: found {source}, allowed: {allowed}")
        train = list(_read_gsm8k(Path(source, "train.jsonl")))
        heldout = list(_read_gsm8k(Path(source, "test.jsonl")))
    kept_out = {problem.question for problem in heldout}
    return (
        {i: problem for i, problem in enumerate(train) if problem.question not in kept_out},
        dict(enumerate(heldout, start=len(train))),
    )


def _read_gsm8k(file: Path) -> Iterator[Problem]:
    for place, record in read_records(file):
        match record:
            case {"question": str(question), "answer": str(answer)} if question.strip():
                steps, _, number = answer.rpartition("####")
                yield _problem(place, question, _CALCULATOR.sub("", steps), number.strip())
            case _:
                allowed = "an object with the texts question and answer"
                raise ValueError(f"{place}: found another record, allowed: {allowed}")


def _generate(name: str, seed: int, count: int) -> Iterator[Problem]:
    """The first `count` entries of a generator; one that asks the same again is left out."""
    asked: set[str] = set()
    for entry in _dataset(name, seed, count):
        question = entry["question"].removesuffix(_SUFFIX)
        if question not in asked:
            asked.add(question)
            yield _problem(f"{GENERATORS}{name}", question, _steps(entry), str(entry["answer"]))


def _dataset(name: str, seed: int, count: int) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ValueError(
            "reasoning-gym: found it missing, allowed: installed, by the extra math"
        ) from error
    if name not in DATASETS:
        allowed = "a generator of reasoning-gym, such as gsm_symbolic or chain_sum"
        raise ValueError(f"{GENERATORS}{name}: found no such generator, allowed: {allowed}")
    return reasoning_gym.create_dataset(name, seed=seed, size=count)


def _steps(entry: dict[str, Any]) -> str:
    """How the answer is found, as far as the generator tells."""
    metadata = entry["metadata"]
    if "answer_cot" in metadata:  # gsm_symbolic
        return metadata["answer_cot"].rpartition("####")[0]
    if metadata.get("source_dataset") == "chain_sum":
        return _partial_sums(metadata["expression"])
    return ""


def _partial_sums(expression: str) -> str:
    r"""`4 - 1 - 7` as `4 - 1 = 3\n3 - 7 = -4`."""
    first, *rest = expression.split(" ")
    total, lines = int(first), []
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        result = total + int(term) if sign == "+" else total - int(term)
        lines.append(f"{total} {sign} {term} = {result}")
        total = result
    return "\n".join(lines)


def _problem(place: str, question: str, steps: str, number: str) -> Problem:
    gold = plain_number(number)
    if gold is None:
        raise ValueError(f"{place}: found the answer {number!r:.60}, allowed: a number")
    return Problem(question, f"{steps.strip()}\n#### {number}".lstrip(), gold)
