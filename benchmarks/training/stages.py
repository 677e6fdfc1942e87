"""Where a step's time goes with and without speculation, and what Amdahl's law allows.

Arms took the same steps interleaved. A ratio is taken within a step, where both arms met the same
machine, and then the median over steps; so are the seconds, so that a step in which something was
compiled does not count, and stages need not add up to the whole exactly.

Of the stages in NeMo-RL's table (arXiv 2604.26779, table 1), "Prepare" has no counterpart, since
rollouts and training share their parameters; log-probabilities have a pass of their own only where
there are several updates a batch or a KL; our rewards take time and have a line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from train.metrics import Row, stages


@dataclass(frozen=True)
class Ratio:
    """Times of one arm by another's in the same step: the median, and the range over steps."""

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class Phase:
    """The time table of some steps.

    Attributes:
        steps: How many.
        seconds: Median seconds by arm, in the order given, then by stage; `step` is the whole step.
        rollout_share: R, rollouts' share of a plain step, median.
        tokens_per_forward: α, of the speculative arm.
        bound: 1 / (R / α + 1 − R), the speed-up of a step if a verifying forward cost no more than
            a plain one (arXiv 2604.26779, section 3).
        rollout_speedup: Plain by speculative, rollouts alone.
        step_speedup: Plain by speculative, whole steps.
        spread: Plain by plain again, whole steps: what no difference looks like here.
    """

    steps: int
    seconds: list[dict[str, float]]
    rollout_share: float
    tokens_per_forward: float
    bound: float
    rollout_speedup: Ratio
    step_speedup: Ratio
    spread: Ratio


def time_table(plain: Sequence[Row], again: Sequence[Row], speculative: Sequence[Row]) -> Phase:
    """The table of the rows' steps, which are the same in all three arms."""
    share = median(row["rollout_share"] for row in plain)
    committed = sum(row["committed_tokens"] for row in speculative)
    tokens_per_forward = committed / sum(row["row_rounds"] for row in speculative)
    return Phase(
        steps=len(plain),
        seconds=[_seconds(rows) for rows in (plain, again, speculative)],
        rollout_share=share,
        tokens_per_forward=tokens_per_forward,
        bound=1.0 / (share / tokens_per_forward + 1.0 - share),
        rollout_speedup=_ratio(plain, speculative, "time_rollout_s"),
        step_speedup=_ratio(plain, speculative, "time_step_s"),
        spread=_ratio(plain, again, "time_step_s"),
    )


def _seconds(rows: Sequence[Row]) -> dict[str, float]:
    return {
        stage: median(row[f"time_{stage}_s"] for row in rows) for stage in [*stages(rows), "step"]
    }


def _ratio(over: Sequence[Row], under: Sequence[Row], name: str) -> Ratio:
    ratios = [one[name] / two[name] for one, two in zip(over, under, strict=True)]
    return Ratio(median(ratios), min(ratios), max(ratios))
