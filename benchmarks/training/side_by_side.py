"""Trainers side by side in one process: the same steps, interleaved, compared after every step.

Arms that share their keys must stay equal: the same tokens, hence the same rewards, hence the same
update. Their log-probabilities may differ in the last bits, which no update reads: the old
log-probabilities of a step are those of its own training forward. Rounding decides a token where
two perturbed scores lie nearly level (the rule of "same tokens"); one such token makes the two
updates differ, so the arms are then set equal again, and every step is a comparison in itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ngramrl_jax.evidence.plain_forward import PlainForward
from ngramrl_jax.evidence.same_tokens import is_near_tie, parting
from ngramrl_jax.protocols import Params
from ngramrl_jax.types import Rollout
from train.config import RunConfig
from train.metrics import Row
from train.trainer import StepOutcome, Trainer
from train.workbench import Workbench, rollout_sampling

LOGP_GAP = 1e-4  # what the last bits may amount to in float32, as in the test of the policy


@dataclass
class Arm:
    """One way of sampling the rollouts of a run, and the metrics of its steps so far."""

    name: str
    trainer: Trainer
    rows: list[Row] = field(default_factory=list)


def make_arm(name: str, bench: Workbench, config: RunConfig, *, draft_tokens: int) -> Arm:
    """A fresh run with all its rollout programs compiled."""
    rollout = replace(config.rollout, draft_tokens=draft_tokens)
    trainer = Trainer(bench, replace(config, deterministic=True, rollout=rollout))
    trainer.warm_up()
    return Arm(name, trainer)


def advance(arms: Sequence[Arm], step: int) -> list[StepOutcome]:
    """Runs `step` in every arm. Each in turn goes first, so that being first favours none."""
    outcomes: dict[int, StepOutcome] = {}
    for turn in range(len(arms)):
        place = (step + turn) % len(arms)
        outcomes[place] = arms[place].trainer.step(step)
        arms[place].rows.append(outcomes[place].row)
    return [outcomes[place] for place in range(len(arms))]


@dataclass
class Agreement:
    """How an arm compared with the plain one, over all steps so far.

    Attributes:
        steps: Steps compared.
        rollouts: Pairs of rollouts compared.
        tokens: Response tokens compared: those of the plain arm, to where a pair parts.
        accepted: Accepted draft tokens among the other arm's; 0 would mean that nothing was tested.
        near_ties: Pairs that parted where rounding decides.
        logp_gap: Largest difference of a token's log-probability, in nats.
        param_gap: Largest difference of a parameter after a step, before the arms were set equal.
        made_equal: Steps after which the other arm was given the plain arm's state.
        final_param_gap: `param_gap` of the last step alone.
        first_difference: First step after which tokens, rewards or parameters differed.
        broken: What the rule does not allow, one line each; empty where the arms agree.
    """

    steps: int = 0
    rollouts: int = 0
    tokens: int = 0
    accepted: int = 0
    near_ties: int = 0
    logp_gap: float = 0.0
    param_gap: float = 0.0
    made_equal: int = 0
    final_param_gap: float = 0.0
    first_difference: int | None = None
    broken: list[str] = field(default_factory=list)

    def add(
        self,
        step: int,
        plain: StepOutcome,
        other: StepOutcome,
        param_gap: float,
        is_tie: Callable[[Rollout, int], bool],
    ) -> None:
        """Compares one step.

        Args:
            step: Its number.
            plain: Of the plain arm.
            other: Of the arm that is judged; both started the step from equal parameters.
            param_gap: Largest difference of a parameter after the step.
            is_tie: Whether rounding decides a token of a plain rollout.
        """
        parted = self._compare_rollouts(step, plain, other, is_tie)
        same_rewards = self._compare_rewards(step, plain, other)
        if param_gap != 0.0 and not parted and same_rewards:
            self.broken.append(f"step {step}: parameters part by {param_gap:.1e}, rollouts do not")
        if self.first_difference is None and (parted or not same_rewards or param_gap != 0.0):
            self.first_difference = step
        self.steps += 1
        self.param_gap = float(np.maximum(self.param_gap, param_gap))
        self.final_param_gap = param_gap

    def _compare_rollouts(
        self,
        step: int,
        plain: StepOutcome,
        other: StepOutcome,
        is_tie: Callable[[Rollout, int], bool],
    ) -> bool:
        """Whether any pair parted."""
        parted = False
        for one, two in zip(plain.rollouts, other.rollouts, strict=True):
            at = parting(one, two)
            until = len(one.tokens_N) if at is None else at
            gap_N = np.abs(one.logps_N[:until] - two.logps_N[:until])
            gap = float(gap_N.max(initial=0.0))
            self.rollouts += 1
            self.tokens += until
            self.accepted += int(two.drafted_N[:until].sum())
            self.logp_gap = float(np.maximum(self.logp_gap, gap))
            where = f"step {step}: prompt {one.prompt_id}, sibling {one.sibling}"
            if not gap <= LOGP_GAP:
                self.broken.append(f"{where}: log-probabilities part by {gap:.1e}")
            if at is not None and is_tie(one, at):
                self.near_ties += 1
            elif at is not None:
                self.broken.append(f"{where}: tokens part at {at}, where rounding decides nothing")
            parted |= at is not None
        return parted

    def _compare_rewards(self, step: int, plain: StepOutcome, other: StepOutcome) -> bool:
        """Whether all pairs with equal tokens have equal rewards."""
        unequal = sum(
            one_score.reward != two_score.reward and parting(one, two) is None
            for one, two, one_score, two_score in zip(
                plain.rollouts, other.rollouts, plain.scores, other.scores, strict=True
            )
        )
        if unequal:
            self.broken.append(f"step {step}: {unequal} rewards part, their rollouts do not")
        return not unequal


def train_with_same_keys(
    arms: Sequence[Arm],
    bench: Workbench,
    config: RunConfig,
    steps: int,
    tell: Callable[[str], object] = lambda words: None,
) -> list[Agreement]:
    """Trains all arms and compares every other one with the first.

    Args:
        arms: The plain one first.
        bench: What they train.
        config: Of all arms, but for the draft budget.
        steps: How many.
        tell: Called after every step with what has been done.

    Returns:
        One agreement for each arm after the first.

    Raises:
        ValueError: The policy does not compute in float32.
    """
    if bench.policy.dtype != jnp.float32:
        raise ValueError(
            f"model.dtype: found {config.model.dtype}, allowed: float32, in which rounding decides "
            "few tokens"
        )
    longest = config.rollout.max_prompt_tokens + config.rollout.max_new_tokens
    forward = PlainForward(bench.policy, longest)
    sampling = rollout_sampling(config.rollout)
    plain, *others = arms
    agreements = [Agreement() for _ in others]
    for step in range(steps):
        params = jax.tree.map(jnp.copy, plain.trainer.rollout_params())  # the step donates its own
        is_tie = partial(is_near_tie, forward, params, sampling, config.seed)
        of_plain, *outcomes = advance(arms, step)
        for arm, outcome, agreement in zip(others, outcomes, agreements, strict=True):
            gap = largest_gap(plain.trainer.state.params, arm.trainer.state.params)
            agreement.add(step, of_plain, outcome, gap, is_tie)
            if gap != 0.0:
                arm.trainer.state = jax.tree.map(jnp.copy, plain.trainer.state)
                agreement.made_equal += 1
        gaps = ", ".join(f"{agreement.final_param_gap:.1e}" for agreement in agreements)
        tell(f"same keys: step {step + 1} of {steps}, parameters differ by {gaps}")
    return agreements


def largest_gap(one: Params, other: Params) -> float:
    """Largest absolute difference of two pytrees' leaves, NaN where one holds a NaN."""
    gaps = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), one, other)
    return float(jnp.max(jnp.stack(jax.tree.leaves(gaps))))
