"""Group-relative advantages: what a rollout earned beyond its siblings.

Legend: G groups (one prompt each), N rollouts of a group.
"""

import numpy as np
from numpy.typing import ArrayLike

from ngramrl_jax.types import Float32Array

STD_FLOOR = 1e-4


def group_advantages(reward_GN: ArrayLike, *, standardise: bool = True) -> Float32Array:
    """Reward minus the group's mean, divided by the group's standard deviation where asked.

    `A_gn = (R_gn − mean_g) / (std_g + 1e-4)` with ddof = 1 (GRPO, arXiv 2402.03300 section 4.1;
    ddof and the floor as practised by TRL and tunix); without the division it is the advantage
    of Dr. GRPO (arXiv 2503.20783 section 3). A group without spread, or of one rollout, teaches
    nothing: its advantages are exactly 0.

    Args:
        reward_GN: Rewards, finite.
        standardise: Divide by the standard deviation.

    Returns:
        float32 `[G, N]`.

    Raises:
        ValueError: The rewards are not a matrix, or some are not finite.
    """
    reward_GN = np.asarray(reward_GN, dtype=np.float64)
    if reward_GN.ndim != 2 or reward_GN.size == 0:
        raise ValueError(f"rewards: found shape {reward_GN.shape}, allowed: [groups, rollouts]")
    bad_GN = ~np.isfinite(reward_GN)
    if bad_GN.any():
        group, rollout = np.argwhere(bad_GN)[0]
        raise ValueError(
            f"rewards: found {reward_GN[group, rollout]} for rollout {rollout} of group {group} "
            f"({bad_GN.sum()} in all), allowed: finite numbers"
        )
    # Compared with max == min, not std == 0: a mean that rounds leaves equal rewards a tiny std.
    spread_G1 = np.ptp(reward_GN, axis=1, keepdims=True) > 0
    advantage_GN = reward_GN - reward_GN.mean(axis=1, keepdims=True)
    if standardise and reward_GN.shape[1] > 1:
        advantage_GN /= reward_GN.std(axis=1, ddof=1, keepdims=True) + STD_FLOOR
    return np.where(spread_G1, advantage_GN, 0.0).astype(np.float32)
