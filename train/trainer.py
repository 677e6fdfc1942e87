"""One training step: data, rollout, reward, log-probabilities where needed, update.

A step has two halves. `sample` may be abandoned at any point: it changes nothing that is kept.
`learn` changes policy and history, both or neither.

Legend: G groups of a step, N rollouts of a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.policy import Params
from ngramrl_jax.rollout.counters import RolloutCounters
from ngramrl_jax.rollout.timeline import RoundTimes
from ngramrl_jax.types import BoolArray, Rollout
from train.advantages import group_advantages
from train.batching import Batch, rollout_batch
from train.checkpoints import Saved
from train.config import RunConfig
from train.data_order import more_items, step_items, steps_per_epoch
from train.group_choice import groups_to_learn_from, teaching_groups
from train.learner import Metrics, TrainState
from train.mesh import WeightMover
from train.metrics import Row
from train.objectives import soft_overlong_penalty
from train.processes import exchange, share
from train.prompts import Prompt, group_requests
from train.refusals import not_finite
from train.stage_clock import StageClock
from train.step_metrics import reward_metrics, rollout_metrics, total, update_metrics
from train.tasks.base import Score, checked_scores
from train.workbench import Workbench, make_learner, make_objective, training_engine


@dataclass(frozen=True)
class Sampled:
    """The first half of a step.

    Attributes:
        step: Its number.
        rollouts: Siblings side by side.
        scores: One a rollout, in the same order.
        counters: What sampling cost.
        learnt_G: bool, the groups that the update reads: all, or those of `train.group_choice`.
    """

    step: int
    rollouts: list[Rollout]
    scores: list[Score]
    counters: RolloutCounters
    learnt_G: BoolArray


@dataclass(frozen=True)
class StepOutcome:
    """What a step leaves behind beside the trainer's new state.

    Attributes:
        row: Its metrics.
        rollouts: Siblings side by side.
        scores: One a rollout, in the same order.
        refused: Why nothing was learnt; None where something was.
        timeline: The last dispatches of sampling; of several processes, the first's.
    """

    row: Row
    rollouts: list[Rollout]
    scores: list[Score]
    refused: str | None
    timeline: Sequence[RoundTimes] = ()


class _Part(NamedTuple):
    """What one process got in a round of sampling; `counters` are its sums over the step so far."""

    rollouts: list[Rollout]
    scores: list[Score]
    counters: RolloutCounters


class Trainer:
    """Policy, optimizer and rollout history of a run, and the step that advances them.

    Attributes:
        state: Parameters and optimizer; replaced by every step.
        history: What rollouts are drafted from; it grows while they are sampled.
        kept_history: Its snapshot as the last whole step left it: what belongs to `state`.
        engine: Samples the rollouts.
    """

    def __init__(self, bench: Workbench, config: RunConfig) -> None:
        """Builds engine and learner; `warm_up` compiles them."""
        self._bench = replace(bench, params={})  # the trainer has a copy, which it changes
        self._config = config
        self._objective = make_objective(config.objective, config.rollout.max_new_tokens)
        self._reference = bench.params if self._objective.kl > 0.0 else {}
        self._learner = make_learner(bench.policy, config, bench.mesh)
        self._move = WeightMover(bench.policy.dtype, bench.mesh, bench.rollout_mesh)
        self.engine, self.history = training_engine(
            bench.policy,
            bench.codec,
            config.rollout,
            bench.rollout_mesh,
            deterministic=config.deterministic,
        )
        self.state: TrainState = self._learner.init(bench.params)
        self.kept_history = self.history.snapshot()
        self._clock = StageClock("", 0.0)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every training prompt comes up once."""
        prompts = len(self._bench.train)
        too_long = len(self._bench.task.train_items) - prompts
        return steps_per_epoch(prompts, self._config.train.prompts_per_step, too_long)

    def warm_up(self) -> None:
        """Compiles the rollout programs, so that no compilation lands inside a rollout."""
        self.engine.warm_up(self.rollout_params())
        self.engine.release()

    def rollout_params(self) -> Params:
        """The parameters in the type and layout of rollouts, once for all rounds of a step."""
        return self._move(self.state.params)

    def resume(self, saved: Saved) -> None:
        """Takes up what a checkpoint holds."""
        self.state = saved.state
        self.history.restore(saved.history)
        self.kept_history = saved.history

    def step(self, step: int) -> StepOutcome:
        """Runs training step `step`; what it does depends on the step, not on the clock."""
        return self.learn(self.sample(step))

    def sample(self, step: int) -> Sampled:
        """The first half: rollouts and their rewards."""
        self._clock = clock = StageClock(f"step {step}", self._config.train.stuck_after_s)
        wanted = self._config.train.prompts_per_step
        dynamic = self._config.objective.sampling_rounds > 1
        counters = RolloutCounters(self._config.rollout.draft_tokens)
        rollouts: list[Rollout] = []
        scores: list[Score] = []
        teaches_G = np.zeros(0, bool)
        parts: list[_Part] = []
        with clock.stage("data"):
            chosen = self._first_items(step)
        with clock.stage("prepare"):
            params = jax.block_until_ready(self.rollout_params())
        for attempt in range(1, self._config.objective.sampling_rounds + 1):
            prompts = [self._bench.train[i] for i in chosen[len(teaches_G) :]]
            work = partial(self._own_part, step, share(prompts), params, counters)
            with clock.stage("rollout"):
                parts = exchange(work, interruptible=True)
            rollouts += [rollout for part in parts for rollout in part.rollouts]
            scores += [score for part in parts for score in part.scores]
            if len(parts) > 1:
                self._take_up(step, rollouts)
            teaches_G = teaching_groups(scores, self._config.train.group)
            missing = wanted - int(teaches_G.sum())
            if missing <= 0 or len(chosen) == len(self._bench.train):
                break
            with clock.stage("data"):
                chosen = np.append(chosen, self._more_items(step, attempt, chosen)[:missing])
        learnt_G = groups_to_learn_from(teaches_G, wanted) if dynamic else np.ones_like(teaches_G)
        spent = total([part.counters for part in parts])
        return Sampled(step, rollouts, scores, spent, learnt_G)

    def _own_part(
        self, step: int, prompts: Sequence[Prompt], params: Params, counters: RolloutCounters
    ) -> _Part:
        """This process's rollouts and scores; what they cost is added to the counters."""
        rollouts = self._rollouts(step, prompts, params, counters)
        with self._clock.stage("reward"):
            return _Part(rollouts, self._scores(prompts, rollouts) if prompts else [], counters)

    def _take_up(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """The history takes up the rollouts of all processes in one order everywhere."""
        self.history.restore(self.kept_history)
        for rollout in rollouts:
            self.history.observe(rollout.prompt_id, rollout.tokens_N, step, rollout.best)

    def learn(self, sampled: Sampled) -> StepOutcome:
        """The second half: the update, or a refusal where a number is not finite."""
        self.engine.release()  # what the update needs can be as large as the caches
        refused = not_finite(sampled.rollouts, sampled.scores)
        updated: Metrics = {}
        if refused is None:
            with self._clock.stage("train"):
                updated = self._update(sampled)
            if updated["refused"]:
                refused = "the loss or its gradient is not finite"
        if refused is None:
            self.kept_history = self.history.snapshot()
        else:
            self.history.restore(self.kept_history)
        row = self._row(sampled, updated)
        timeline = sampled.counters.timeline
        return StepOutcome(row, sampled.rollouts, sampled.scores, refused, timeline)

    def _row(self, sampled: Sampled, updated: Metrics) -> Row:
        clock = self._clock
        with np.errstate(invalid="ignore"):  # of a refused step
            rewards = reward_metrics(sampled.scores, self._config.train.group)
        return {
            "step": sampled.step,
            "epoch": sampled.step // self.steps_per_epoch,
            "policy_version": sampled.step,
            **rewards,
            "groups_sampled": len(sampled.learnt_G),
            "groups_learnt": int(sampled.learnt_G.sum()),
            **rollout_metrics(sampled.rollouts, sampled.counters, clock.seconds["rollout"]),
            **update_metrics(updated),
            **clock.row(),
            "history_tokens": self.history.history_tokens,
            "history_bytes": self.history.history_bytes,
            "compile_count": sum(self.engine.programs.compiled.values()),
        }

    def _first_items(self, step: int) -> np.ndarray:
        per_step = self._config.train.prompts_per_step
        return step_items(step, len(self._bench.train), per_step, self._config.seed)

    def _more_items(self, step: int, attempt: int, taken: np.ndarray) -> np.ndarray:
        return more_items(step, attempt, len(self._bench.train), taken, self._config.seed)

    def _rollouts(
        self, step: int, prompts: Sequence[Prompt], params: Params, counters: RolloutCounters
    ) -> list[Rollout]:
        """Siblings side by side; what they cost is added to the counters."""
        group, most = self._config.train.group, self._config.rollout.max_new_tokens
        rollouts, _ = self.engine.generate(
            params,
            group_requests(prompts, group, most),
            seed=self._config.seed,
            step=step,
            policy_version=step,
            expected_tokens={
                prompt.item.index: self.history.mean_length(prompt.item.index) for prompt in prompts
            },
            so_far=counters,
        )
        return rollouts

    def _scores(self, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> list[Score]:
        items = [prompt.item for prompt in prompts for _ in range(self._config.train.group)]
        texts = [self._bench.codec.decode(rollout.tokens_N) for rollout in rollouts]
        return checked_scores(self._bench.task, items, texts)

    def _advantages(self, scores: Sequence[Score], rollouts: Sequence[Rollout]) -> np.ndarray:
        reward_N = np.asarray([score.reward for score in scores], np.float32)
        buffer = self._config.objective.overlong_buffer
        if buffer:
            length_N = np.asarray([len(rollout.tokens_N) for rollout in rollouts], np.int32)
            most = self._config.rollout.max_new_tokens
            reward_N = reward_N + soft_overlong_penalty(length_N, max_length=most, buffer=buffer)
        reward_GN = reward_N.reshape(-1, self._config.train.group)
        return group_advantages(reward_GN, standardise=self._objective.standardise).reshape(-1)

    def _batches(self, sampled: Sampled) -> list[Batch]:
        """The step's mini-batches, groups dealt in turn, with what their updates compare with."""
        group, parts = self._config.train.group, self._config.train.minibatches
        advantage_N = self._advantages(sampled.scores, sampled.rollouts)
        learnt = np.flatnonzero(np.repeat(sampled.learnt_G, group)).reshape(-1, group)
        rows = -(-self._config.train.prompts_per_step // parts) * group
        return [
            self._compared(
                rollout_batch(
                    [sampled.rollouts[i] for i in part.tolist()],
                    advantage_N[part],
                    micro_rows=self._config.train.micro_batch,
                    weights=self._objective.weights,
                    rows=rows,
                )
            )
            for part in (learnt[first::parts].reshape(-1) for first in range(parts))
            if len(part)
        ]

    def _compared(self, batch: Batch) -> Batch:
        """The batch with the old and the reference policy's log-probabilities, where needed."""
        needs_old = self._config.train.updates_per_step * self._config.train.minibatches > 1
        needs_reference = self._objective.kl > 0.0
        if not (needs_old or needs_reference):
            return batch
        with self._clock.stage("logprob"):
            if needs_old:
                old = self._learner.log_probs(self.state.params, batch)
                batch = replace(batch, old_logp_BR=old)
            if needs_reference:
                reference = self._learner.log_probs(self._reference, batch)
                batch = replace(batch, reference_logp_BR=reference)
        return batch

    def _update(self, sampled: Sampled) -> Metrics:
        """All updates of the step; returns the last one's metrics, on the host.

        `refused` is the number of updates that were.
        """
        batches = self._batches(sampled)
        metrics, refused = {}, jnp.zeros(())
        for batch in batches * self._config.train.updates_per_step:
            self.state, metrics = self._learner.update(self.state, batch)
            refused = refused + metrics["refused"]
        return jax.device_get(metrics | {"refused": refused})
