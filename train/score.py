"""How good the policy of a run is, so that the best checkpoint can be kept."""

import math

from train.metrics import HELD_OUT, Row


class Score:
    """Follows the rows of a run.

    Args:
        heldout: Whether held-out accuracy is the measure, as mean over the sets of the last
            evaluation; otherwise it is a step's mean reward.

    Attributes:
        value: After the last row seen; None where nothing is known yet, or it is not finite.
    """

    def __init__(self, heldout: bool) -> None:
        self._heldout = heldout
        self.value: float | None = None

    def see(self, row: Row) -> None:
        """Takes up the row of the next step."""
        if self._heldout:
            found = [value for name, value in row.items() if HELD_OUT.fullmatch(name)]
            if found:
                self.value = sum(found) / len(found)
        else:
            reward = row.get("reward_mean")  # null in a row that was read and is not finite
            self.value = reward if reward is not None and math.isfinite(reward) else None
