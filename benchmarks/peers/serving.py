"""How the peers of one comparison are driven: a process each, which runs one job at a time.

A job is a line of JSON on standard input, its answer a line on standard output; whatever libraries
print goes to standard error. Only the standard library is used, since every peer lives in an
environment of its own.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter


@dataclass(frozen=True)
class Job:
    """Rollouts to be sampled from the whole vocabulary.

    Attributes:
        arm: Which way of decoding.
        prompts: Token ids of each prompt.
        group: Rollouts of each prompt.
        new_tokens: Tokens of a rollout at most.
        stop_ids: What ends a rollout; the stop token counts as a token.
        temperature: Of the samples; 0 takes the most likely tokens.
        number: Of the job; other numbers sample other rollouts.
    """

    arm: str
    prompts: Sequence[Sequence[int]]
    group: int
    new_tokens: int
    stop_ids: Sequence[int]
    temperature: float
    number: int

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))


Responses = list[list[int]]
Arm = Callable[[Job], Responses]


def until_stop(response: Sequence[int], stop_ids: Sequence[int]) -> list[int]:
    """A response up to its first stop token, which is kept; padding may follow it."""
    ends = (place + 1 for place, token in enumerate(response) if token in stop_ids)
    return list(response[: next(ends, len(response))])


def serve(arms: Mapping[str, Arm]) -> None:
    """Answers jobs until standard input ends: seconds, tokens, and the first response."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"arms": list(arms)}), file=answers)
    for line in sys.stdin:
        job = Job(**json.loads(line))
        began = perf_counter()
        responses = arms[job.arm](job)
        seconds = perf_counter() - began
        answer = {"seconds": seconds, "tokens": sum(map(len, responses)), "first": responses[0]}
        print(json.dumps(answer), file=answers)
