"""Dynamic sampling: which groups of a step are worth learning from (DAPO, arXiv 2503.14476, 3.2).

A group whose rewards are all equal has no advantages: it would only dilute the batch. Where asked,
a step draws other prompts in their place until it has enough groups, or has tried often enough.

Legend: G groups, N rollouts of a group.
"""

from collections.abc import Sequence

import numpy as np

from ngramrl_jax.types import BoolArray
from train.tasks.base import Score


def teaching_groups(scores: Sequence[Score], group: int) -> BoolArray:
    """`[G]`, True where the rewards of a group differ."""
    reward_GN = np.asarray([score.reward for score in scores]).reshape(-1, group)
    with np.errstate(invalid="ignore"):  # of a step that is refused for it
        return np.ptp(reward_GN, axis=1) > 0.0


def groups_to_learn_from(teaches_G: BoolArray, wanted: int) -> BoolArray:
    """`[G]`, True for the first `wanted` groups that teach; for the first of all if none does.

    Then the step still is one: the optimizer's moments go on, and its shapes are known.
    """
    if not teaches_G.any():
        teaches_G = ~teaches_G
    return teaches_G & (np.cumsum(teaches_G) <= wanted)
