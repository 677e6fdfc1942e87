"""Learning curves with and without speculation, under different keys: do they overlap?

Runs of the two arms are paired by number. Every run has a seed of its own, so its data order and
all its noise differ from every other's; the arms share only the law that rollouts are drawn from.

Legend: A the two arms, plain and speculative; S runs of an arm; E epochs.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from benchmarks.training.side_by_side import Arm, advance, make_arm
from train.config import RunConfig
from train.evaluation import Judge, outcomes
from train.metrics import average
from train.workbench import Workbench

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean and the bounds of its interval."""

    mean: float
    low: float
    high: float

    @property
    def covers_zero(self) -> bool:
        """Whether no difference is one of the values that the interval allows."""
        return self.low <= 0.0 <= self.high


def t_interval(differences_S: ArrayLike) -> Interval:
    """Mean ± t · s / √S with S − 1 degrees of freedom (Student 1908), at the level `LEVEL`.

    One interval in twenty leaves 0 out where the two arms have the same mean.

    Raises:
        ValueError: Fewer than two differences.
    """
    difference_S = np.asarray(differences_S, np.float64)
    runs = len(difference_S)
    if runs < 2:
        raise ValueError(f"seeds: found {runs}, allowed: 2 or more")
    mean = float(difference_S.mean())
    error = float(difference_S.std(ddof=1)) / runs**0.5
    half = float(stats.t.ppf(0.5 + LEVEL / 2, runs - 1)) * error
    return Interval(mean, mean - half, mean + half)


def learning_curves(
    bench: Workbench,
    config: RunConfig,
    tell: Callable[[str], object] = lambda words: None,
    *,
    runs: int,
    epochs: int,
) -> dict[str, NDArray[np.float64]]:
    """Trains `runs` pairs, each pair interleaved.

    Args:
        bench: What is trained.
        config: Of all runs but for seed and draft budget; its own seed is the first.
        tell: Called after every epoch with what has been done.
        runs: S.
        epochs: E.

    Returns:
        Per measure `[A, S, E]`: the epoch's mean `reward` and its accuracy part over training
        rollouts, and the accuracy of each held-out set at the epoch's end.
    """
    judge = Judge(bench, config)
    budgets = {"plain": 0, "speculative": config.rollout.draft_tokens}
    curves: dict[str, NDArray[np.float64]] = {}
    for run in range(runs):
        arms = []
        for a, (name, draft_tokens) in enumerate(budgets.items()):
            seeded = replace(config, seed=config.seed + 2 * run + a)
            arms.append(make_arm(name, bench, seeded, draft_tokens=draft_tokens))
        steps = arms[0].trainer.steps_per_epoch
        for epoch in range(epochs):
            for step in range(epoch * steps, (epoch + 1) * steps):
                advance(arms, step)
            for a, arm in enumerate(arms):
                for name, value in _measure(bench, judge, arm, steps).items():
                    curves.setdefault(name, np.zeros((2, runs, epochs)))[a, run, epoch] = value
            tell(f"curves: run {run + 1} of {runs}, epoch {epoch + 1} of {epochs}")
    return curves


def _measure(bench: Workbench, judge: Judge, arm: Arm, steps: int) -> Mapping[str, float]:
    """The measures of the epoch that has just ended, `steps` long."""
    mean = average(arm.rows[-steps:])
    part = bench.task.accuracy_part
    heldout = outcomes(judge(arm.trainer.rollout_params()), part)
    return {
        "reward": mean["reward_mean"],
        part: mean[f"reward_{part}_mean"],
        **{f"held-out {name}": float(np.mean(of_set)) for name, of_set in heldout.items()},
    }
