"""The metrics of one step, from what its stages returned. Names: DESIGN section 11.

Legend: G groups, N rollouts of a group.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ngramrl_jax.rollout.counters import RolloutCounters
from ngramrl_jax.types import Rollout
from train.metrics import Row
from train.tasks.base import Score


def reward_metrics(scores: Sequence[Score], group: int) -> Row:
    """Reward over all rollouts, its parts and faults by name, and groups that teach nothing."""
    reward_GN = np.asarray([score.reward for score in scores]).reshape(-1, group)
    parts = {
        f"reward_{name}_mean": float(np.mean([score.parts[name] for score in scores]))
        for name in scores[0].parts
    }
    faults = {
        f"{name}_frac": float(np.mean([score.faults[name] for score in scores]))
        for name in scores[0].faults
    }
    return {
        "reward_mean": float(reward_GN.mean()),
        "reward_std": float(reward_GN.std()),
        "frac_zero_std": float((np.ptp(reward_GN, axis=1) == 0.0).mean()),
        **parts,
        **faults,
    }


def total(parts: Sequence[RolloutCounters]) -> RolloutCounters:
    """The sums of several processes' counters; what is no sum is the first one's."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    whole = replace(first)
    for name in vars(first).keys() - {"draft_tokens", "prefetch", "timeline"}:
        setattr(whole, name, sum(getattr(part, name) for part in parts))
    return whole


def rollout_metrics(rollouts: Sequence[Rollout], counters: RolloutCounters, seconds: float) -> Row:
    """What sampling cost and what drafting kept; `seconds` is the stage's wall time."""
    rounds = max(counters.row_rounds, 1)
    drafted_K, kept_K = counters.drafted_K, counters.kept_K
    by_position = [
        kept / drafted if drafted else None
        for kept, drafted in zip(kept_K.tolist(), drafted_K.tolist(), strict=True)
    ]
    return {
        "response_len_mean": float(np.mean([len(rollout.tokens_N) for rollout in rollouts])),
        "truncated_frac": float(np.mean([rollout.truncated for rollout in rollouts])),
        "tokens_per_forward": counters.tokens_per_forward,
        "committed_tokens": counters.committed_tokens,
        "row_rounds": counters.row_rounds,
        "accepted_tokens": counters.kept_tokens,
        "drafted_tokens": counters.drafted_tokens,
        "accepted_per_round": counters.kept_tokens / rounds,
        "drafted_per_round": counters.drafted_tokens / rounds,
        "acceptance_rate": counters.kept_tokens / max(counters.drafted_tokens, 1),
        "acceptance_by_position": by_position,
        "draft_tokens_used": counters.mean_draft_tokens,
        **length_metrics(counters),
        "coverage": counters.coverage,
        "prefetch_misses": counters.misses,
        "skipped_rounds": counters.skipped_rounds,
        "exposed_host_ms_per_round": 1e3 * counters.exposed_seconds / max(counters.dispatches, 1),
        "rounds": counters.dispatches,
        "forwards": counters.forwards,
        "prefills": counters.prefills,
        "rollout_tokens_per_s": counters.committed_tokens / seconds,
    }


def length_metrics(counters: RolloutCounters) -> Row:
    """How long drafts were and why, each a list by draft length 0, 1, ... K."""
    forwards = counters.length_forwards.tolist()

    def ratios(above: np.ndarray, below: np.ndarray) -> list[float | None]:
        pairs = zip(above.tolist(), below.tolist(), strict=True)
        return [a / b if b else None for a, b in pairs]

    return {
        "draft_length_share": [n / max(sum(forwards), 1) for n in forwards],
        "draft_length_ms": ratios(1e3 * counters.length_seconds, counters.length_forwards),
        "draft_length_promised": ratios(counters.promised, counters.promised_rounds),
    }


def update_metrics(metrics: Mapping[str, Any]) -> Row:
    """The learner's metrics as plain floats."""
    return {name: float(value) for name, value in metrics.items()}
