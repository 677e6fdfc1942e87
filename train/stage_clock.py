"""Wall seconds of a step, by stage."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from train.metrics import Row
from train.watchdog import watched


class StageClock:
    """Stages nest: the inner one's time is taken off the outer one's.

    Attributes:
        seconds: By stage, in the order in which they were first entered.
    """

    def __init__(self, what: str, stuck_after_s: float) -> None:
        """A stage of `what` that takes longer than `stuck_after_s` is reported; 0 is never."""
        self.seconds: dict[str, float] = {}
        self._what, self._stuck_after_s = what, stuck_after_s
        self._inner: list[float] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times the block; a stage that is entered again adds up."""
        start = perf_counter()
        self._inner.append(0.0)
        with watched(f"{self._what}: {name}", self._stuck_after_s):
            yield
        whole = perf_counter() - start
        own = whole - self._inner.pop()
        self.seconds[name] = self.seconds.get(name, 0.0) + own
        if self._inner:
            self._inner[-1] += whole

    def row(self) -> Row:
        """`time_<stage>_s` of every stage and of the whole step."""
        total = sum(self.seconds.values())
        stages = {f"time_{name}_s": seconds for name, seconds in self.seconds.items()}
        share = self.seconds["rollout"] / total
        whole = {"time_step_s": total, "rollout_share": share}
        return {"time_logprob_s": 0.0} | stages | whole
