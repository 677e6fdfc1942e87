"""Rollouts of a run's policy as the drafter lived through them: to be lived through again.

The engine's drafter writes down all that it is told, and of every round the draft and, from the
device, the likeliest tokens at each of its K + 1 positions, also those behind a rejected token: the
true law of every outcome, after the fact. Estimates can then be compared on the same rounds.

Legend: B rows, K draft budget, T = K + 1 positions of a round, P prompt tokens, R best tokens.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.protocol import Drafter
from ngramrl_jax.replay.source import Source
from ngramrl_jax.replay.walk import Schedule, walk_step
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.wire import unpack_result
from ngramrl_jax.trace.records import TracedStep
from ngramrl_jax.trace.store import Trace
from ngramrl_jax.types import BestTokens, Float32Array, Int32Array, UInt32Array
from train.checkpoints import Checkpoints
from train.config_file import load_config
from train.data_order import step_items
from train.prompts import group_requests
from train.tasks.registry import open_task
from train.trainer import Trainer
from train.workbench import engine_settings, open_workbench


@dataclass
class Round:
    """One round of all rows; `best_BTR` and its log-probabilities where a policy was there."""

    step: int
    draft_BK: Int32Array
    length_B: Int32Array
    room_B: Int32Array
    tokens_BT: Int32Array
    count_B: Int32Array
    best_BTR: Int32Array | None = None
    best_logp_BTR: Float32Array | None = None


@dataclass(frozen=True)
class Recording:
    """What happened, in order: calls of the drafter by name and arguments, and rounds.

    Attributes:
        rows: B.
        draft_tokens: K.
        stop_ids: Of the policy.
        before: What the history held at first, as calls of `observe`.
        events: `(name, arguments)` or a `Round`, which stands for its `commit`.
    """

    rows: int
    draft_tokens: int
    stop_ids: tuple[int, ...]
    before: list[tuple[Any, ...]]
    events: list[Any]

    def rounds(self, drafter: NgramDrafter) -> Iterator[Round]:
        """Leads a new drafter through it, up to each round in turn."""
        for arguments in self.before:
            drafter.observe(*arguments)
        for event in self.events:
            if isinstance(event, Round):
                yield event
                drafter.commit(event.tokens_BT, event.count_B)
            else:
                name, arguments = event
                getattr(drafter, name)(*arguments)


class Recorder:
    """A `Drafter` that writes down what the drafter within is told, and what it proposes."""

    def __init__(self, within: Drafter, events: list[Any]) -> None:
        """Events are appended to the list."""
        self._within = within
        self._events = events
        self._proposed: tuple[Int32Array, Int32Array, Int32Array] | None = None
        self.step = 0
        self.seen: tuple[Int32Array, Int32Array, Float32Array] | None = None

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """Told on."""
        self._tell("start_row", row, prompt_id, prompt_P, key_W)

    def commit(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """The round that the proposal led to is known."""
        assert self._proposed is not None
        draft_BK, length_B, limit_B = self._proposed
        room_B, ids_BTR, logps_BTR = np.where(limit_B > 0, limit_B + 1, 0), None, None
        if self.seen is not None:
            room_B, ids_BTR, logps_BTR = self.seen
        told = tokens_BT.astype(np.int32), count_B.astype(np.int32)
        self._events.append(Round(self.step, draft_BK, length_B, room_B, *told, ids_BTR, logps_BTR))
        self._within.commit(tokens_BT, count_B)

    def propose(self, limit_B: Int32Array) -> tuple[Int32Array, Int32Array]:
        """From within."""
        draft_BK, length_B = self._within.propose(limit_B)
        self._proposed = draft_BK, length_B, limit_B.copy()
        return draft_BK, length_B

    def finish_row(self, row: int) -> None:
        """Told on."""
        self._tell("finish_row", row)

    def end_batch(self) -> None:
        """Told on."""
        self._tell("end_batch")

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """Told on."""
        self._tell("observe", prompt_id, tokens_N, step, best)

    def _tell(self, name: str, *arguments: Any) -> None:
        self._events.append((name, arguments))
        getattr(self._within, name)(*arguments)


def _spied(speculative: Callable[..., Any], recorder: Recorder, best_tokens: int) -> Any:
    """The compiled round, which tells the recorder what the device saw."""

    def run(params: Any, *, state: Any, drafts_BX: Int32Array, live: int) -> Any:
        room_B = np.array(state.room_B)
        state, packed = speculative(params, state=state, drafts_BX=drafts_BX, live=live)
        result = unpack_result(jax.device_get(packed), best_tokens)
        recorder.seen = room_B, result.best_BTR, result.best_logp_BTR
        return state, packed

    return run


def record_policy(folder: Path, *, steps: int, prompts: int) -> Recording:
    """Samples `steps` more steps of a run from its newest checkpoint, whose history it begins with.

    Args:
        folder: The run folder, with its trace.
        steps: Each of the first `prompts` prompts that the step would have taken.
        prompts: Groups a step.

    Raises:
        ValueError: No run with a checkpoint and a trace.
    """
    config = load_config(folder / "config.yaml", [])
    with closing(open_task(config)) as task:
        bench = open_workbench(config, task)
        saved = Checkpoints(folder / "checkpoints").newest(Trainer(bench, config).state)
        if saved is None:
            raise ValueError(f"{folder}: found no checkpoint, allowed: a run that made one")
        rollout = config.rollout
        before = [
            (r.prompt_id, r.tokens_N, step.step, r.best)
            for step in Trace(folder).steps()
            if step.step < saved.next_step
            for r in step.rollouts
        ]
        drafter = NgramDrafter(rollout.slots, rollout.draft_tokens, History(window=rollout.window))
        for arguments in before:
            drafter.observe(*arguments)
        events: list[Any] = []
        recorder = Recorder(drafter, events)
        engine = RolloutEngine(bench.policy, recorder, engine_settings(bench.codec, rollout))
        best_tokens = min(rollout.best_tokens, bench.policy.vocab_size)
        engine.programs.speculative = _spied(engine.programs.speculative, recorder, best_tokens)
        for step in range(saved.next_step, saved.next_step + steps):
            recorder.step = step
            chosen = step_items(step, len(bench.train), config.train.prompts_per_step, config.seed)
            requests = group_requests(
                [bench.train[item] for item in chosen[:prompts]],
                config.train.group,
                rollout.max_new_tokens,
            )
            params = saved.state.params
            engine.generate(params, requests, seed=config.seed, step=step, policy_version=step)
    return Recording(rollout.slots, rollout.draft_tokens, bench.codec.stop_ids, before, events)


def record_groups(
    source: Source, *, draft_tokens: int, stop_ids: tuple[int, ...]
) -> list[Recording]:
    """Rollouts without their policy, each said again beside the history of the others of its group.

    One recording for each, since those that stand for its history are no history of one another.
    """
    schedule = Schedule(1, draft_tokens, source.header.max_new_tokens)
    recordings = []
    for step in source.steps():
        for rollout in step.rollouts:
            others = [other for other in step.rollouts if other is not rollout]
            before = [(other.prompt_id, other.tokens_N, 0, other.best) for other in others]
            events: list[Any] = []
            recorder = Recorder(NgramDrafter(1, draft_tokens, History()), events)
            recorder.step = step.step
            for arguments in before:
                recorder.observe(*arguments)
            events.clear()
            walk_step(recorder, TracedStep(1, [rollout], step.reward_N[:1]), schedule)
            recordings.append(Recording(1, draft_tokens, stop_ids, before, events))
    return recordings
