"""Steps whose numbers are not finite are refused: nothing of them is learnt or kept.

A single one may be bad luck of the hardware; several in a row mean that the policy, the reward or
the learning rate is broken, and the run stops before it wastes more time.
"""

import sys
from collections.abc import Sequence

import numpy as np

from ngramrl_jax.types import Rollout
from train.ending import RunStopped
from train.metrics import Row
from train.tasks.base import Score


def not_finite(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> str | None:
    """Which of the numbers that an update reads are NaN or infinite, in words; None where none.

    A row of logits with a NaN gives a token with a NaN log-probability, see
    `ngramrl_jax.verify.adjust`.
    """
    bad_logps = [r.prompt_id for r in rollouts if not np.isfinite(r.logps_N).all()]
    bad_rewards = [
        rollout.prompt_id
        for rollout, score in zip(rollouts, scores, strict=True)
        if not np.isfinite(score.reward)
    ]
    for name, prompts in (("log-probabilities", bad_logps), ("rewards", bad_rewards)):
        if prompts:
            return (
                f"{name} of {len(prompts)} of {len(rollouts)} rollouts are not finite, "
                f"the first of prompt {prompts[0]}"
            )
    return None


class Refusals:
    """Counts refused steps.

    Args:
        most: Refused steps in a row that stop the run.
        so_far: Refused steps before this process took the run up.

    Raises:
        ValueError: `most` is below 1.
    """

    def __init__(self, most: int, so_far: int = 0) -> None:
        if most < 1:
            raise ValueError(f"train.max_refused: found {most}, allowed: 1 or more")
        self._most = most
        self._total = so_far
        self._in_a_row = 0
        self._why = ""

    def count(self, step: int, refused: str | None) -> Row:
        """Takes note of a step, aloud where it was refused; the metric `refused_steps`."""
        if refused is None:
            self._in_a_row = 0
        else:
            self._in_a_row += 1
            self._total += 1
            self._why = f"step {step}: {refused}"
            print(f"refused: {self._why}", file=sys.stderr, flush=True)
        return {"refused_steps": self._total}

    @property
    def too_many(self) -> bool:
        """Whether the run has to stop."""
        return self._in_a_row >= self._most

    def check(self) -> None:
        """Raises RunStopped where the run has to stop; by then the last good state is saved."""
        if self.too_many:
            raise RunStopped(
                f"stopped after {self._in_a_row} refused steps in a row (train.max_refused); "
                f"the last good state is saved; {self._why}"
            )
