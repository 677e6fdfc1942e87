"""The two kinds of trace that replay reads, behind one face.

A *run trace* is a run's own, walked in the order of training. A *group trace* is JSON lines of a
model without training: every rollout is replayed by a new drafter that knows the others of its
group (leave one out), one row at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ngramrl_jax.host.protocol import Drafter
from ngramrl_jax.replay.coverage import Coverage
from ngramrl_jax.replay.registry import Factory
from ngramrl_jax.replay.tally import Tally, total
from ngramrl_jax.replay.walk import Schedule, walk_step
from ngramrl_jax.trace.jsonl import read_jsonl
from ngramrl_jax.trace.records import TracedStep, TraceHeader
from ngramrl_jax.trace.store import Trace

WARM_PERCENT = 30


class Replayed(Protocol):
    """One drafter on its way through a trace.

    Attributes:
        bytes_per_token: Of the drafter's history, where it tells: as the last step left it.
    """

    bytes_per_token: float | None

    def walk(self, step: TracedStep) -> Tally:
        """Takes the drafter through the next step."""
        ...


@dataclass(frozen=True)
class Source:
    """A trace to be replayed.

    Attributes:
        path: Where it lies.
        header: What the engine was, or is taken to have been, set to.
        leave_one_out: Whether it is a group trace.
        read: All its steps where they are in memory; None where they are read from disk.
    """

    path: Path
    header: TraceHeader
    leave_one_out: bool = False
    read: list[TracedStep] | None = None

    def steps(self) -> Iterator[TracedStep]:
        """The steps, in order; of a run that goes on, those that are there when they are reached.

        Raises:
            ValueError: A block is damaged.
        """
        return Trace(self.path).steps() if self.read is None else iter(self.read)

    def replay(self, make: Factory, draft_tokens: int) -> Replayed:
        """A drafter at the start of the trace."""
        kind = _LeaveOneOut if self.leave_one_out else _InOrder
        return kind(make, self.header, draft_tokens)

    def read_coverage(self, coverage: Coverage, step: TracedStep) -> None:
        """What earlier rollouts cover of a step's."""
        if not self.leave_one_out:
            coverage.read(step)
            return
        for rollout in step.rollouts:
            others = [other.tokens_N for other in step.rollouts if other is not rollout]
            coverage.add(rollout.tokens_N, others)

    def cold(self, steps: Sequence[int]) -> list[int]:
        """Those of the first epoch; none where the trace does not know it or has lost it."""
        return [step for step in steps if step < self.header.steps_per_epoch]

    def warm(self, steps: Sequence[int]) -> list[int]:
        """The last 30 %, rounded up; none of a group trace."""
        if self.leave_one_out:
            return []
        return list(steps[len(steps) - -(-len(steps) * WARM_PERCENT // 100) :])


def open_source(path: Path) -> Source:
    """A run folder, the trace in it, or a file of JSON lines.

    Raises:
        ValueError: There is no such thing at `path`, nothing is in it, or it is damaged.
    """
    if not path.is_file():
        trace = Trace(path)
        if not trace.step_numbers():
            raise ValueError(f"{path}: found no whole step yet, allowed: one or more")
        return Source(path, trace.header)
    steps = read_jsonl(path)
    longest = max(len(rollout.tokens_N) for step in steps for rollout in step.rollouts)
    header = TraceHeader(slots=1, draft_tokens=0, max_new_tokens=longest)
    return Source(path, header, leave_one_out=True, read=steps)


class _InOrder:
    def __init__(self, make: Factory, header: TraceHeader, draft_tokens: int) -> None:
        self._schedule = _schedule(header, draft_tokens)
        self._drafter = make(header.slots, draft_tokens)
        self.bytes_per_token: float | None = None

    def walk(self, step: TracedStep) -> Tally:
        tally = walk_step(self._drafter, step, self._schedule)
        self.bytes_per_token = _bytes_per_token(self._drafter)
        self._drafter.end_batch()
        return tally


class _LeaveOneOut:
    def __init__(self, make: Factory, header: TraceHeader, draft_tokens: int) -> None:
        self._make = make
        self._schedule = _schedule(header, draft_tokens)
        self.bytes_per_token: float | None = None

    def walk(self, step: TracedStep) -> Tally:
        return total(
            (self._walk_one(step, rollout.sibling) for rollout in step.rollouts),
            self._schedule.draft_tokens,
        )

    def _walk_one(self, step: TracedStep, left_out: int) -> Tally:
        drafter = self._make(1, self._schedule.draft_tokens)
        for rollout in step.rollouts:
            if rollout.sibling != left_out:
                drafter.observe(rollout.prompt_id, rollout.tokens_N, 0, rollout.best)
        alone = [rollout for rollout in step.rollouts if rollout.sibling == left_out]
        tally = walk_step(drafter, TracedStep(1, alone, step.reward_N[:1]), self._schedule)
        self.bytes_per_token = _bytes_per_token(drafter)
        return tally


def _schedule(header: TraceHeader, draft_tokens: int) -> Schedule:
    return Schedule(
        header.slots, draft_tokens, header.max_new_tokens, header.seed, header.shares_noise
    )


def _bytes_per_token(drafter: Drafter) -> float | None:
    return getattr(getattr(drafter, "history", None), "bytes_per_token", None)
