"""A step as flat columns, and back: what lies in the arrays of a block.

Per rollout there is one line of whole numbers (`ROLLOUT_FIELDS`) and a reward; its prompt and its
tokens lie in columns shared by the whole step, one after another. Siblings share one prompt.

Legend: N rollouts of a step, P prompt tokens, T response tokens of the step, F numbers of a
rollout, R best tokens.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.trace.records import TracedStep
from ngramrl_jax.types import BestTokens, Int32Array, Rollout

Columns = dict[str, NDArray[Any]]

# Numbers of a rollout that are kept as they are.
_PLAIN = (
    "prompt_id",
    "sibling",
    "attempt",
    "policy_version",
    "rounds",
    "slot",
    "started",
    "finished",
)
# Where its prompt begins among the step's, how long that is, and how long the response.
ROLLOUT_FIELDS = (*_PLAIN, "truncated", "prompt_at", "prompt_length", "length")

# Column -> how many entries a step adds to it is counted by this extent.
EXTENT_OF = {
    "rollouts": "rollouts",
    "rewards": "rollouts",
    "prompts": "prompt_tokens",
    "tokens": "tokens",
    "logps": "tokens",
    "drafted": "tokens",
    "best_ids": "tokens",
    "best_logps": "tokens",
}
EXTENTS: tuple[str, ...] = ("rollouts", "prompt_tokens", "tokens")


def best_width(step: TracedStep) -> int:
    """R of the step's rollouts; 0 where they have no best tokens.

    Raises:
        ValueError: They differ.
    """
    widths = {0 if r.best is None else r.best.ids_NR.shape[1] for r in step.rollouts}
    if len(widths) > 1:
        raise ValueError(f"best tokens of step {step.step}: found {widths}, allowed: one width")
    return widths.pop() if widths else 0


def to_columns(step: TracedStep) -> Columns:
    """The step's columns by name; those of the best tokens only where it has them."""
    prompts, at_of = _shared_prompts(step)
    lines = [
        (
            *(getattr(rollout, name) for name in _PLAIN),
            rollout.truncated,
            at_of[rollout.prompt_P.tobytes()],
            len(rollout.prompt_P),
            len(rollout.tokens_N),
        )
        for rollout in step.rollouts
    ]
    columns: Columns = {
        "rollouts": np.array(lines, np.int32).reshape(-1, len(ROLLOUT_FIELDS)),
        "rewards": np.asarray(step.reward_N, np.float32),
        "prompts": prompts,
        "tokens": _joined([r.tokens_N for r in step.rollouts], np.int32),
        "logps": _joined([r.logps_N for r in step.rollouts], np.float32),
        "drafted": _joined([r.drafted_N for r in step.rollouts], np.bool_),
    }
    if best_width(step):
        best = [r.best for r in step.rollouts if r.best is not None]
        columns["best_ids"] = _joined([b.ids_NR for b in best], np.int32)
        columns["best_logps"] = _joined([b.logps_NR for b in best], np.float32)
    return columns


def from_columns(step: int, columns: Mapping[str, NDArray[Any]]) -> TracedStep:
    """The inverse of `to_columns`; the arrays of the rollouts are views of the columns."""
    return TracedStep(step, list(_rollouts(step, columns)), columns["rewards"])


def _shared_prompts(step: TracedStep) -> tuple[Int32Array, dict[bytes, int]]:
    """Every different prompt once, one after another, and where each begins."""
    at_of: dict[bytes, int] = {}
    kept, end = [], 0
    for rollout in step.rollouts:
        content = rollout.prompt_P.tobytes()
        if content not in at_of:
            at_of[content] = end
            end += len(rollout.prompt_P)
            kept.append(rollout.prompt_P)
    return _joined(kept, np.int32), at_of


def _joined(parts: list[Any], dtype: type) -> NDArray[Any]:
    return np.concatenate(parts, dtype=dtype) if parts else np.zeros(0, dtype)


def _rollouts(step: int, columns: Mapping[str, NDArray[Any]]) -> Iterator[Rollout]:
    begin = 0
    for line_F in columns["rollouts"].tolist():
        number = dict(zip(ROLLOUT_FIELDS, line_F, strict=True))
        end = begin + number["length"]
        best = None
        if "best_ids" in columns:
            best = BestTokens(columns["best_ids"][begin:end], columns["best_logps"][begin:end])
        at = number["prompt_at"]
        yield Rollout(
            **{name: number[name] for name in _PLAIN},
            step=step,
            truncated=bool(number["truncated"]),
            prompt_P=columns["prompts"][at : at + number["prompt_length"]],
            tokens_N=columns["tokens"][begin:end],
            logps_N=columns["logps"][begin:end],
            drafted_N=columns["drafted"][begin:end],
            best=best,
        )
        begin = end
