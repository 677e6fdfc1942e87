"""What a trace holds, in memory.

Legend: N rollouts of a step.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ngramrl_jax.types import Float32Array, Rollout

FORMAT = 1


@dataclass(frozen=True)
class TraceHeader:
    """What holds for every step of a trace: the engine's schedule and the drafter's history.

    Attributes:
        slots: Rows of the device batch.
        draft_tokens: K of the run; 0 is plain decoding.
        max_new_tokens: Response tokens at most.
        seed: Of the run; with a rollout's identity and step it makes the row key.
        steps_per_epoch: Steps in which every prompt comes up once; 0 where that is not known.
        window: Rollouts kept per prompt by the run's history.
        history_bytes: Bound on that history.
        shares_noise: Whether the drafter was told the rows' keys.
    """

    slots: int
    draft_tokens: int
    max_new_tokens: int
    seed: int = 0
    steps_per_epoch: int = 0
    window: int = 16
    history_bytes: int = 2**28
    shares_noise: bool = False

    def to_json(self) -> str:
        """As `from_json` reads it."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "TraceHeader":
        """The header in the text.

        Raises:
            ValueError: It is no header of this format.
        """
        found: Any = json.loads(text)
        if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
            raise ValueError(f"found no trace header, allowed: format {FORMAT}")
        types = {field.name: field.type for field in fields(cls)}
        if types != {name: type(value) for name, value in found.items()}:
            raise ValueError(f"found {found}, allowed: a value for each of {', '.join(types)}")
        return cls(**found)


@dataclass(frozen=True)
class TracedStep:
    """The rollouts of one training step.

    Attributes:
        step: Its number.
        rollouts: In any order; all with `best`, R tokens wide, or none.
        reward_N: float32, one a rollout in the same order.
    """

    step: int
    rollouts: Sequence[Rollout]
    reward_N: Float32Array

    @property
    def tokens(self) -> int:
        """Response tokens of the step."""
        return sum(len(rollout.tokens_N) for rollout in self.rollouts)
