"""What is sampled for the checks: two epochs of the same prompts, with drafts and without."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ngramrl_jax.evidence.subject import Effort, Subject
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.ngram_trees import NgramTreeDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.host.outcomes import Budget
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.types import Int32Array, Rollout, RolloutRequest

WINDOW = 16


def drafted_epochs(subject: Subject, effort: Effort) -> list[list[Rollout]]:
    """Rollouts of steps 0 and 1 with drafts from history.

    The second step drafts from the first and from its own finished siblings.

    Here and in `plain_epoch` the verifier is the coupled one, whatever the settings say: the other
    promises the same law, but not the same tokens.
    """
    settings = replace(subject.settings, verifier="coupled")
    kind = NgramTreeDrafter if settings.drafts_trees else NgramDrafter
    drafter = kind(
        settings.slots,
        settings.draft_tokens,
        History(window=WINDOW),
        budget=Budget(settings.prefetch_candidates),
        stop_ids=settings.stop_ids,
    )
    engine = RolloutEngine(subject.policy, drafter, settings)
    return [_generate(subject, effort, engine, step) for step in (0, 1)]


def plain_epoch(subject: Subject, effort: Effort) -> list[Rollout]:
    """The requests of step 1 by plain decoding."""
    settings = replace(subject.settings, draft_tokens=0, verifier="coupled")
    engine = RolloutEngine(subject.policy, NoDrafter(settings.slots), settings)
    return _generate(subject, effort, engine, step=1)


def requests_for(
    prompts: Sequence[Int32Array], group: int, max_new_tokens: int
) -> list[RolloutRequest]:
    """`group` siblings of each prompt, side by side; prompts are numbered from 0."""
    return [
        RolloutRequest(prompt_id, sibling, prompt_P, max_new_tokens)
        for prompt_id, prompt_P in enumerate(prompts)
        for sibling in range(group)
    ]


def _generate(subject: Subject, effort: Effort, engine: RolloutEngine, step: int) -> list[Rollout]:
    prompts = subject.prompts[: effort.prompts]
    requests = requests_for(prompts, effort.group, subject.settings.max_new_tokens)
    rollouts, _ = engine.generate(
        subject.params, requests, seed=subject.seed, step=step, policy_version=0
    )
    for rollout in rollouts:
        if not np.isfinite(rollout.logps_N).all():
            raise ValueError(f"{subject.name}: found logits that are not finite, allowed: finite")
    return rollouts
