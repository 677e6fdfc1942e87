"""What replay finds, as plain data: the content of `--json`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ngramrl_jax.replay.coverage import LEAST_RUN, WINDOW, Coverage
from ngramrl_jax.replay.registry import Factory
from ngramrl_jax.replay.source import Source
from ngramrl_jax.replay.tally import Tally, total
from ngramrl_jax.trace.records import TracedStep

Report = dict[str, Any]


def replay(source: Source, drafters: Mapping[str, Factory], draft_tokens: int) -> Report:
    """Takes all drafters through the trace side by side; it is read once.

    Returns:
        `trace`, what was recorded, and `drafters`, for each what drafting cost and kept; a figure
        that the trace or the drafter does not tell is None.

    Raises:
        ValueError: The trace is damaged, or a drafter needs what it does not hold.
    """
    on_the_way = {name: source.replay(make, draft_tokens) for name, make in drafters.items()}
    tallies: dict[str, dict[int, Tally]] = {name: {} for name in drafters}
    recorded = _Recorded()
    for place, step in enumerate(source.steps()):
        source.read_coverage(recorded.coverage, step)
        recorded.read(step)
        for name, make in drafters.items():
            if place == 0:
                source.replay(make, draft_tokens).walk(step)  # compiles what there is to compile
            tallies[name][step.step] = on_the_way[name].walk(step)
    return {
        "trace": recorded.report(source),
        "draft_tokens": draft_tokens,
        "drafters": {
            name: _of_drafter(source, tallies[name], draft_tokens)
            | {"bytes_per_token": on_the_way[name].bytes_per_token}
            for name in drafters
        },
    }


def compare(reports: Sequence[Report]) -> dict[str, Any]:
    """Tokens per forward of the first drafter over each other one, on warm steps of all traces.

    Both said the same tokens, so the quotient is that of their rounds. Steps are the pairs: the
    interval is the quotient ± 1.96 jackknife standard errors (Efron and Stein, 1981), leaving
    out a step at a time; None for a single step. A group trace counts as a whole.
    """
    first, *others = [
        name for name in reports[0]["drafters"] if all(name in r["drafters"] for r in reports)
    ]
    return {"of": first, "over": {other: _quotient(reports, first, other) for other in others}}


def _quotient(reports: Sequence[Report], first: str, other: str) -> dict[str, Any]:
    ours, theirs = (
        np.array(
            [
                report["drafters"][name]["rounds_by_step"][step]
                for report in reports
                for step in report["trace"]["warm_steps"] or report["trace"]["step_numbers"]
            ],
            np.float64,
        )
        for name in (first, other)
    )
    mean = float(theirs.sum() / ours.sum())
    if len(ours) < 2:
        return {"ratio": mean, "interval": None}
    left_out = (theirs.sum() - theirs) / (ours.sum() - ours)
    half = 1.96 * math.sqrt((len(ours) - 1) / len(ours) * ((left_out - left_out.mean()) ** 2).sum())
    return {"ratio": mean, "interval": [mean - half, mean + half]}


class _Recorded:
    """What the trace itself says, whatever the drafter."""

    def __init__(self) -> None:
        self.coverage = Coverage()
        self._rollouts = 0
        self._reward = 0.0
        self._idle = 0
        self._surprise: dict[int, tuple[float, int]] = {}

    def read(self, step: TracedStep) -> None:
        self._rollouts += len(step.rollouts)
        self._reward += float(np.sum(step.reward_N, dtype=np.float64))
        self._idle += sum(max(r.finished - r.started - r.rounds, 0) for r in step.rollouts)
        surprise = -sum(float(r.logps_N.sum(dtype=np.float64)) for r in step.rollouts)
        self._surprise[step.step] = surprise, step.tokens

    def report(self, source: Source) -> Report:
        runs, steps = self.coverage.runs, list(self._surprise)
        warm = source.warm(steps)
        return {
            "path": str(source.path),
            "leave_one_out": source.leave_one_out,
            "step_numbers": steps,
            "cold_steps": source.cold(steps),
            "warm_steps": warm,
            "rollouts": self._rollouts,
            "tokens": sum(tokens for _, tokens in self._surprise.values()),
            "idle_rounds": self._idle,
            "reward_mean": self._reward / self._rollouts,
            "entropy": self._entropy(steps),
            "entropy_warm": self._entropy(warm),
            "coverage": {
                "least_run": LEAST_RUN,
                "window": WINDOW,
                "rollouts": self.coverage.rollouts,
                "covered": self.coverage.covered,
                "run_mean": float(np.mean(runs)) if runs else None,
                "run_quartiles": np.percentile(runs, [25, 50, 75]).tolist() if runs else None,
            },
        }

    def _entropy(self, steps: Sequence[int]) -> float | None:
        """Mean of -log p over the tokens, nats: what the entropy per token is on average."""
        surprise = sum(self._surprise[step][0] for step in steps)
        tokens = sum(self._surprise[step][1] for step in steps)
        return surprise / tokens if tokens and math.isfinite(surprise) else None


def _of_drafter(source: Source, by_step: Mapping[int, Tally], draft_tokens: int) -> Report:
    def tokens_per_forward(steps: Sequence[int]) -> float | None:
        tallies = [by_step[step] for step in steps]
        return total(tallies, draft_tokens).tokens_per_forward if tallies else None

    steps = list(by_step)
    whole = total(by_step.values(), draft_tokens)
    rounds = max(whole.row_rounds, 1)
    drafted, kept = whole.drafted_tokens, int(whole.kept_K.sum())
    return {
        "tokens_per_forward": {
            "all": whole.tokens_per_forward,
            "cold": tokens_per_forward(source.cold(steps)),
            "warm": tokens_per_forward(source.warm(steps)),
        },
        "rounds": whole.row_rounds,
        "drafted_per_round": drafted / rounds,
        "accepted_per_round": kept / rounds,
        "acceptance_rate": kept / drafted if drafted else None,
        "acceptance_by_position": [
            above / below if below else None
            for above, below in zip(whole.kept_K.tolist(), whole.drafted_K.tolist(), strict=True)
        ],
        "draft_lengths": whole.lengths.tolist(),
        "match_lengths": whole.matches.tolist() if whole.matches.any() else None,
        "us_per_proposal": 1e6 * whole.seconds / rounds,
        "rounds_by_step": {step: tally.row_rounds for step, tally in by_step.items()},
        "tokens_per_forward_by_step": {
            step: tally.tokens_per_forward for step, tally in by_step.items()
        },
    }
