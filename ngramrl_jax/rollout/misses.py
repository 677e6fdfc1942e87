"""When rows without a draft are dearer than a device that waits for a look-up.

A row that runs without a draft forgoes the draft tokens that it would have kept, a_r on average.
With them the running rows would commit the sum of all 1 + a_r in a round, so misses cost the share
sum(a_r of misses) / sum(1 + a_r) of a round's time. A round that is called off and dispatched again
costs one exposed look-up, whatever the number of misses. So one miss among many rows never stops
them, and a row that decodes alone always gets its draft, where look-ups are cheap.

Likewise for the round behind one that may end rows: a row that has ended idles through it, although
a request waits for its slot. Where that is likely to cost more, the host waits for the outcome.

Legend: B rows.
"""

import numpy as np

from ngramrl_jax.rollout.table import WHOLE_WEIGHT
from ngramrl_jax.types import BoolArray, Float32Array, Int32Array

_SHARE_BEFORE_MEASURED = 0.15
_PACE = 0.25  # weight of the newest round in running means


class MissRule:
    """Running means of what drafts bring and what look-ups cost."""

    def __init__(self, rows: int, look_up_share: float | None) -> None:
        """Rules for `rows` rows.

        Args:
            rows: B.
            look_up_share: What an exposed look-up costs, in rounds. None measures it; then the
                clock has a say in which rows get drafts.
        """
        self._kept_B = np.ones(rows)
        self._fixed = look_up_share
        self._look_up_s = self._round_s = 0.0

    @property
    def look_up_share(self) -> float:
        """What an exposed look-up costs, in rounds."""
        if self._fixed is not None:
            return self._fixed
        if not (self._look_up_s and self._round_s):
            return _SHARE_BEFORE_MEASURED
        return self._look_up_s / self._round_s

    def drafted(self, drafted_B: Int32Array, kept_B: Int32Array) -> None:
        """A round is over: of drafts of that length so much was kept."""
        had_B = drafted_B > 0
        self._kept_B[had_B] += _PACE * (kept_B[had_B] - self._kept_B[had_B])

    def looked_up(self, seconds: float) -> None:
        """A dispatch had to wait that long for drafts."""
        self._look_up_s += _PACE * (seconds - self._look_up_s)

    def ran(self, seconds: float) -> None:
        """A round took that long."""
        self._round_s += _PACE * (seconds - self._round_s)

    def sends_ahead(
        self,
        running_B: BoolArray,
        miss_B: Float32Array,
        ending_B: Float32Array,
        *,
        waiting: bool,
    ) -> bool:
        """Whether to send a round before the outcome of the one in flight is known.

        Args:
            running_B: Rows in flight.
            miss_B: How likely they are to go on without a draft. However many do, the device may
                still call the round off, so together they cost a look-up at most.
            ending_B: How likely they are to end.
            waiting: Whether requests wait for a slot.
        """
        worth_B = np.where(running_B, 1.0 + self._kept_B, 0.0)
        whole = max(float(worth_B.sum()), 1e-9)
        lost = min(float(miss_B @ (worth_B - running_B)) / whole, self.look_up_share)
        idle = float(ending_B @ worth_B) / whole if waiting else 0.0
        return lost + idle <= self.look_up_share

    def weights(self, running_B: BoolArray) -> Int32Array:
        """int32 weights of the rows' misses, see `table.WHOLE_WEIGHT`."""
        whole = np.sum(1.0 + self._kept_B[running_B]) * self.look_up_share
        shares_B = self._kept_B / max(whole, 1e-9)
        return np.rint(WHOLE_WEIGHT * np.minimum(shares_B, 2.0)).astype(np.int32)
