r"""The reward of mathematics: the final number of a response equals the gold number.

The final answer stands behind the last `####`, as GSM8K writes it, else in the last `\boxed{}`,
else it is the last number of the text.

Plain numbers such as `1,234`, `-$0.50`, `3/4` or `12 apples` are compared exactly, where they are.
Only what is no plain number goes to math-verify, which decides by value (`2^5` is 32). It runs in
worker processes under hard limits, and its own time limits are off: they are signals, which work
in no thread but the main one. It reads answers as LaTeX, because its reader of plain expressions
calls `eval` on them.
"""

import logging
import re
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from typing import Any

from train.rewards.pool import LOST, Lost, WorkerPool
from train.tasks.base import Score

LONGEST_ANSWER = 100  # characters
WORKER_BYTES = 2 * 2**30
OFF = 0  # math-verify's own time limit

_NUMBER = r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_UNIT = r"%|°|[A-Za-z][A-Za-z .%°/-]*"
_PLAIN = re.compile(rf"([-+]?)\s*[$€£]?\s*({_NUMBER})(?:\s*/\s*([0-9]+))?\s*(?:{_UNIT})?\.?")
_LAST_NUMBER = re.compile(rf"(?<![0-9A-Za-z])-?[$€£]?(?:{_NUMBER})(?:/[0-9]+)?")


@dataclass(frozen=True)
class NumberJob:
    """One response to be scored.

    Attributes:
        gold: The gold number.
        text: The response.
    """

    gold: Fraction
    text: str


def final_answer(text: str) -> str | None:
    """What the response gives as its answer; None where it gives none.

    It is one line of at most `LONGEST_ANSWER` characters that holds a digit.
    """
    if "####" in text:
        answer = text.rpartition("####")[2].strip().partition("\n")[0]
    elif r"\boxed{" in text:
        answer = _braced(text.rpartition(r"\boxed{")[2])
    else:
        answer = next((found.group() for found in reversed([*_LAST_NUMBER.finditer(text)])), "")
    usable = len(answer) <= LONGEST_ANSWER and any(sign in "0123456789" for sign in answer)
    return answer.strip() if usable else None


def plain_number(text: str) -> Fraction | None:
    """The value of a number with or without sign, currency, thousands commas, fraction and unit.

    None where the text is anything else; a percent sign is a unit.
    """
    bare = text.replace("\N{MINUS SIGN}", "-").replace(r"\$", "$").replace(r"\%", "%")
    match = _PLAIN.fullmatch(bare.strip(" \t$*`"))
    if match is None:
        return None
    sign, number, divisor = match.groups(default="")
    if divisor and not int(divisor):
        return None
    return Fraction(sign + number.replace(",", "")) / int(divisor or 1)


class NumberJudge:
    """Worker side: asks math-verify; whatever the answer does is a verdict, not an exception."""

    def __init__(self) -> None:
        from math_verify import LatexExtractionConfig, parse, verify

        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of limits turned off
        resource.setrlimit(resource.RLIMIT_AS, (WORKER_BYTES, WORKER_BYTES))
        self._config = [LatexExtractionConfig()]
        self._parse, self._verify = parse, verify

    def __call__(self, pair: tuple[Fraction, str]) -> bool:
        """Whether the answer equals the gold number."""
        try:
            gold, answer = map(self._read, map(str, pair))
            return bool(gold and answer) and self._verify(gold, answer, timeout_seconds=OFF)
        except Exception:  # also MemoryError and RecursionError
            return False

    def _read(self, text: str) -> list[Any]:
        return self._parse(
            f"${text}$", self._config, fallback_mode="no_fallback", parsing_timeout=OFF
        )


class NumberReward:
    """Scores responses; the worker processes start with the first answer that needs them.

    Args:
        workers: Worker processes.
        cpu_seconds: Processor time of one answer before the hard kill.
        seconds: The same in wall-clock time; far longer, so that a busy machine changes no score.

    Raises:
        ValueError: math-verify is not installed.
    """

    def __init__(
        self, *, workers: int = 2, cpu_seconds: float = 1.0, seconds: float = 30.0
    ) -> None:
        if find_spec("math_verify") is None:
            raise ValueError("math-verify: found it missing, allowed: installed, by the extra math")
        self._pool = WorkerPool(
            "train.rewards.numbers:NumberJudge",
            {},
            workers=workers,
            seconds=seconds,
            cpu_seconds=cpu_seconds,
        )

    def __call__(self, jobs: Sequence[NumberJob]) -> list[Score]:
        """One score a job, in order; equal answers to one gold number are judged once.

        All are 0 or 1. Parts: `accuracy` and `answered`, where there is a final answer. Faults:
        `killed`, where the answer passed a limit of math-verify's process.
        """
        pairs = [(job.gold, final_answer(job.text)) for job in jobs]
        verdicts: dict[tuple[Fraction, str | None], bool | Lost] = {}
        hard: list[tuple[Fraction, str]] = []
        for gold, answer in dict.fromkeys(pairs):
            if answer is None:
                verdicts[gold, answer] = False
            elif (number := plain_number(answer)) is not None:
                verdicts[gold, answer] = number == gold
            elif re.search(r"[0-9]\s+[0-9]", answer):  # two numbers; LaTeX would add them
                verdicts[gold, answer] = False
            else:
                hard.append((gold, answer))
        if hard:
            verdicts.update(zip(hard, self._pool.map(hard), strict=True))
        return [_score(verdicts[pair], answered=pair[1] is not None) for pair in pairs]

    def close(self) -> None:
        """Ends the worker processes."""
        self._pool.close()


def _score(verdict: bool | Lost, *, answered: bool) -> Score:
    accuracy = float(verdict is True)
    return Score(
        reward=accuracy,
        parts={"accuracy": accuracy, "answered": float(answered)},
        faults={"killed": float(verdict is LOST)},
    )


def _braced(text: str) -> str:
    """What stands before the brace that closes one opened before the text."""
    depth = 1
    for position, sign in enumerate(text):
        depth += (sign == "{") - (sign == "}")
        if not depth:
            return text[:position]
    return text
