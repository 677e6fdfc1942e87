"""Forced replay: the engine says what a recorded run said, at the speed of the model it is given.

Every round computes logits, noise and samples as ever; only the ids that are committed come from
the record. With the settings below, slots and K of the run, the drafter finds and the verifier
keeps what they did then: the rounds of `python -m ngramrl_jax.replay`, with the time they take.

Legend: N response tokens, S cache capacity.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import Int32Array, Rollout, RolloutRequest


def forced_requests(rollouts: Iterable[Rollout], max_new_tokens: int) -> list[RolloutRequest]:
    """The requests that lead to these rollouts again, in the order in which they started."""
    return [
        RolloutRequest(
            rollout.prompt_id,
            rollout.sibling,
            rollout.prompt_P,
            len(rollout.tokens_N) if rollout.truncated else max_new_tokens,
            rollout.attempt,
            rollout.tokens_N,
            rollout.best,
        )
        for rollout in sorted(rollouts, key=lambda rollout: (rollout.started, rollout.slot))
    ]


def forced_settings(settings: EngineSettings) -> EngineSettings:
    """The settings of an engine that replays: requests start as they come."""
    return replace(settings, verifier="forced", wave=0)


def forced_line(request: RolloutRequest, capacity: int) -> Int32Array:
    """Recorded tokens by position, int32 `[S]`, -1 where there is none."""
    line_S = np.full(capacity, -1, np.int32)
    if request.forced_N is not None:
        start = len(request.prompt_P)
        line_S[start : start + len(request.forced_N)] = request.forced_N
    return line_S


def check_forced(request: RolloutRequest, vocab: int) -> None:
    """Refuses what cannot be replayed.

    Raises:
        ValueError: Nothing is recorded, or ids that the policy does not have.
    """
    forced_N = request.forced_N
    if forced_N is None or not len(forced_N):
        raise ValueError(
            f"prompt {request.prompt_id}: forced_N: found none, allowed: recorded ids, one or more"
        )
    if forced_N.min() < 0 or forced_N.max() >= vocab:
        found = f"{forced_N.min()} to {forced_N.max()}"
        raise ValueError(
            f"prompt {request.prompt_id}: forced_N: found ids {found}, allowed: 0 to {vocab - 1}"
        )
