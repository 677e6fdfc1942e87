"""How much of a rollout the earlier ones of its prompt hold already, and in runs of which length.

The rule. Earlier ones are those that the history held when the rollout began: the last `WINDOW` of
its prompt, of steps before and of siblings that had finished. The rollout is read from the left: at
each position the longest run that stands in any of them is taken; one of `LEAST_RUN` tokens or more
counts as covered and reading goes on behind it, otherwise it goes on at the next position.
Rollouts without an earlier one do not count.

Legend: N response tokens, X tokens of all sources.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.trace.records import TracedStep
from ngramrl_jax.types import Int32Array, Rollout

LEAST_RUN = 4
WINDOW = 16
_BOUNDARY = -1  # between two sources; no token


@dataclass
class Coverage:
    """What was found in the steps read so far, which come in the order of training.

    Attributes:
        rollouts: Those that had an earlier one.
        tokens: Their tokens.
        runs: Lengths of the shared runs.
    """

    rollouts: int = 0
    tokens: int = 0
    runs: list[int] = field(default_factory=list)
    _windows: defaultdict[int, deque[Int32Array]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=WINDOW))
    )

    def read(self, step: TracedStep) -> None:
        """Reads every rollout of a step against those before it."""
        groups: defaultdict[int, list[Rollout]] = defaultdict(list)
        for rollout in sorted(step.rollouts, key=lambda r: (r.finished, r.slot)):
            groups[rollout.prompt_id].append(rollout)
        for prompt_id, group in groups.items():
            window = self._windows[prompt_id]
            for rollout in group:
                siblings = [r.tokens_N for r in group if r.finished <= rollout.started]
                self.add(rollout.tokens_N, [*window, *siblings][-WINDOW:])
            window.extend(rollout.tokens_N for rollout in group)

    def add(self, tokens_N: Int32Array, sources: Sequence[Int32Array]) -> None:
        """Reads one rollout against the earlier ones."""
        if sources:
            parts = [part for source in sources for part in (source, [_BOUNDARY])]
            self.rollouts += 1
            self.tokens += len(tokens_N)
            self.runs += shared_runs(tokens_N, np.concatenate(parts, dtype=np.int32))

    @property
    def covered(self) -> float | None:
        """Share of the tokens that lie in shared runs."""
        return sum(self.runs) / self.tokens if self.tokens else None


def shared_runs(tokens_N: Int32Array, source_X: Int32Array) -> list[int]:
    """Lengths of the runs of the text that stand in the source, by the rule above."""
    return _shared_runs(tokens_N, source_X, LEAST_RUN).tolist()


@kernel
def _shared_runs(tokens_N: np.ndarray, source_X: np.ndarray, least: int) -> np.ndarray:
    runs = np.zeros(len(tokens_N) // least + 1, np.int64)
    found = at = 0
    while at < len(tokens_N):
        longest = 0
        for begin in range(len(source_X)):
            length = 0
            most = min(len(tokens_N) - at, len(source_X) - begin)
            while length < most and tokens_N[at + length] == source_X[begin + length]:
                length += 1
            longest = max(longest, length)
        if longest >= least:
            runs[found] = longest
            found += 1
        at += longest if longest >= least else 1
    return runs[:found]
