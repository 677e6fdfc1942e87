"""The words of this package: what is examined, how hard, and what one question found.

Legend: P prompt tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ngramrl_jax.protocols import Params, Policy
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import Int32Array

DTYPES = ("float32", "bfloat16", "float16")
Outcome = Literal["holds", "fails", "no power"]


@dataclass(frozen=True)
class Subject:
    """A policy, and the settings that it is to be sampled with.

    Attributes:
        name: For the report.
        policy: Nothing but the `Policy` protocol is used.
        params: Its parameters.
        prompts: int32 ids `[P]` each.
        settings: Of the engine that the user runs: slots, K, lengths, sampling, stop ids, verifier.
        dtype: What the policy computes in, one of `DTYPES`; it tells how far rounding may reach.
        seed: Of all noise.

    Raises:
        ValueError: There is nothing to examine: no prompts, no drafting, or greedy sampling.
    """

    name: str
    policy: Policy
    params: Params
    prompts: Sequence[Int32Array]
    settings: EngineSettings
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: found {self.dtype}, allowed: {', '.join(DTYPES)}")
        if len(self.prompts) < 2:
            raise ValueError(f"prompts: found {len(self.prompts)}, allowed: 2 or more")
        if self.settings.draft_tokens == 0:
            raise ValueError("draft_tokens: found 0, allowed: 1 or more, else nothing is drafted")
        if self.settings.sampling.greedy:
            raise ValueError("temperature: found arg-max, allowed: above 0, else there is no law")


@dataclass(frozen=True)
class Effort:
    """How much is sampled; more finds smaller faults.

    Attributes:
        prompts: Prompts of the two epochs at most.
        group: Rollouts of a prompt; even, since siblings are paired.
        prefixes: Contexts at which the next-token law is tested.
        draws: Samples at each of them, for each kind of draft.
        alpha: Chance that a statistical check fails although all is right, for each check.

    Raises:
        ValueError: A number lies outside its range.
    """

    prompts: int = 32
    group: int = 8
    prefixes: int = 4
    draws: int = 1000
    alpha: float = 1e-3

    def __post_init__(self) -> None:
        for name, least in {"prompts": 2, "group": 2, "prefixes": 1, "draws": 10}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}: found {getattr(self, name)}, allowed: {least} or more")
        if self.group % 2:
            raise ValueError(f"group: found {self.group}, allowed: an even number")
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha: found {self.alpha}, allowed: between 0 and 1")


@dataclass(frozen=True)
class Finding:
    """The answer to one question.

    Attributes:
        name: The question.
        outcome: "holds"; "fails"; or "no power": nothing spoke against it, but nothing could have.
        found: What was seen, in a sentence.
        rule: What it was judged by, in a sentence.
        numbers: The figures behind it, JSON values.
    """

    name: str
    outcome: Outcome
    found: str
    rule: str
    numbers: Mapping[str, float] = field(default_factory=dict)
