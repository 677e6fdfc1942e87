"""Which prompts a step trains on: a pure function of (seed, step), so that resuming is exact."""

import numpy as np


def steps_per_epoch(items: int, per_step: int, too_long: int = 0) -> int:
    """Whole steps of an epoch; `left_over` items wait for the next epoch's order.

    Args:
        items: Training prompts.
        per_step: Those of a step.
        too_long: Further ones that were left out; a message tells.

    Raises:
        ValueError: Fewer items than a step takes.
    """
    if items < per_step:
        longer = f", and {too_long} longer than rollout.max_prompt_tokens"
        left_out = longer if too_long else ""
        raise ValueError(
            f"train.prompts_per_step: found {per_step}, allowed: at most {items}; "
            f"you have {items} training prompt{'s' * (items != 1)}{left_out}"
        )
    return items // per_step


def left_over(items: int, per_step: int) -> int:
    """Items that an epoch leaves out, other ones in each; they do not fill a step."""
    return items % per_step


def step_items(step: int, items: int, per_step: int, seed: int) -> np.ndarray:
    """Indices of the items of one step, int64 `[per_step]`, all different.

    Each epoch is a new permutation, drawn from (seed, epoch).
    """
    epoch, within = divmod(step, steps_per_epoch(items, per_step))
    order = np.random.default_rng([seed, epoch]).permutation(items)
    return order[within * per_step : (within + 1) * per_step]


def more_items(step: int, attempt: int, items: int, taken: np.ndarray, seed: int) -> np.ndarray:
    """All items that a step has not taken yet, in the order in which attempt 1, 2, ... takes more.

    A pure function too, drawn from (seed, step, attempt); `taken` holds indices.
    """
    order = np.random.default_rng([seed, step, attempt, items]).permutation(items)
    return order[~np.isin(order, taken)]
