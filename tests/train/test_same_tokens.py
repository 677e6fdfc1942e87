"""A step's rollouts with drafting equal plain decoding's, token for token, on the real policy.

Over the pairwise set of settings below, more than 20,000 tokens are compared in fp32. The same
rollouts give the log-probabilities that are compared with the training forward's.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.evidence.plain_forward import PlainForward
from ngramrl_jax.evidence.same_tokens import is_near_tie, parting
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.types import Rollout, Sampling
from train.batching import rollout_batch
from train.config import RolloutConfig, RunConfig
from train.logprobs import token_log_probs
from train.objectives import token_mean
from train.prompts import group_requests
from train.tasks.registry import open_task
from train.workbench import Workbench, engine_settings, open_workbench

SEED, GROUP, PROMPTS = 5, 4, 40
PLAIN, TOP_P, TOP_K = Sampling(), Sampling(1.2, top_p=0.95), Sampling(0.8, top_k=20)
COLD = Sampling(0.7)
MIXED = Sampling(1.1, top_k=50, top_p=0.9)

# (sampling, K, window, slots, shuffled queue): every pair of values of two columns occurs.
SETTINGS = [
    (PLAIN, 16, 16, 16, False),
    (PLAIN, 4, 0, 3, True),
    (PLAIN, 1, 16, 1, True),
    (COLD, 1, 0, 16, False),
    (COLD, 16, 16, 3, True),
    (TOP_P, 16, 0, 1, True),
    (TOP_P, 4, 16, 16, False),
    (TOP_K, 4, 16, 1, False),
    (TOP_K, 1, 0, 3, True),
    (MIXED, 16, 16, 3, False),
    (MIXED, 1, 0, 16, True),
]


@pytest.fixture(scope="module")
def bench():
    config = RunConfig()
    with closing(open_task(config)) as task:
        yield open_workbench(config, task)


def sample(
    bench: Workbench,
    sampling: Sampling,
    draft_tokens: int,
    window: int,
    slots: int,
    shuffled: bool,
    steps: Sequence[int] = (0, 1),
) -> list[Rollout]:
    """Rollouts of the last of the steps; the earlier ones fill the history."""
    base = engine_settings(bench.codec, RolloutConfig(max_new_tokens=48))
    settings = replace(base, sampling=sampling, draft_tokens=draft_tokens, slots=slots)
    drafter = (
        NgramDrafter(slots, draft_tokens, History(window)) if draft_tokens else NoDrafter(slots)
    )
    engine = RolloutEngine(bench.policy, drafter, settings)
    requests = group_requests(bench.train[:PROMPTS], GROUP, max_new_tokens=48)
    if shuffled:
        requests = [requests[i] for i in np.random.default_rng(0).permutation(len(requests))]
    rollouts: list[Rollout] = []
    for step in steps:
        rollouts, _ = engine.generate(
            bench.params, requests, seed=SEED, step=step, policy_version=0
        )
    return sorted(rollouts, key=lambda rollout: rollout.identity)


@pytest.fixture(scope="module")
def plain(bench):
    samplings = {setting[0] for setting in SETTINGS}
    return {sampling: sample(bench, sampling, 0, 0, 16, False, [1]) for sampling in samplings}


@pytest.fixture(scope="module")
def near_tie(bench):
    forward = PlainForward(bench.policy, RolloutConfig().max_prompt_tokens + 48)

    def judge(sampling: Sampling, rollout: Rollout, at: int) -> bool:
        return is_near_tie(forward, bench.params, sampling, SEED, rollout, at)

    return judge


@pytest.mark.slow
def test_the_same_tokens_with_and_without_drafting(bench, plain, near_tie):
    compared, parted, accepted = 0, [], 0
    for sampling, *setting in SETTINGS:
        rollouts = sample(bench, sampling, *setting)
        for one, other in zip(plain[sampling], rollouts, strict=True):
            at = parting(one, other)
            compared += len(one.tokens_N)
            accepted += int(other.drafted_N.sum())
            until = len(one.tokens_N) if at is None else at
            gap_N = np.abs(one.logps_N[:until] - other.logps_N[:until])
            # A token at the edge of top-p, in on one side and out on the other, shifts its
            # siblings' log-probabilities without being drawn itself.
            unequal = np.flatnonzero(gap_N > 1e-4).tolist()
            for place in unequal if at is None else [*unequal, at]:
                parted.append((sampling, setting, one.identity, place))
                assert near_tie(sampling, one, place), parted
    assert compared >= 20_000
    assert accepted >= 0.3 * compared  # else nothing was tested
    assert len(parted) <= 10, parted


@pytest.mark.slow
def test_a_wrong_key_would_be_seen(bench, plain, near_tie):
    """The comparison has power: rollouts of another step part, and at no near-tie."""
    others = sample(bench, PLAIN, 16, 16, 16, False, [0, 2])
    parted = [
        (one, at)
        for one, other in zip(plain[PLAIN], others, strict=True)
        if (at := parting(one, other)) is not None
    ]
    assert len(parted) > len(others) / 4
    assert not any(near_tie(PLAIN, one, at) for one, at in parted[:10])


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [PLAIN, COLD, TOP_P], ids=str)
def test_log_probabilities_equal_those_of_the_training_forward(bench, plain, sampling):
    drafted = sample(bench, sampling, 16, 16, 16, False)
    for rollouts in (plain[sampling], drafted):
        batch = rollout_batch(
            rollouts, np.zeros(len(rollouts)), micro_rows=len(rollouts), weights=token_mean
        )
        said = jax.jit(
            lambda tokens, start, width=batch.mask_BR.shape[2]: token_log_probs(
                bench.policy, bench.params, tokens, start, width, sampling
            )
        )(jnp.asarray(batch.tokens_BT[0]), jnp.asarray(batch.start_B[0]))
        inside = batch.mask_BR[0] & ~np.asarray(said.outside_BR)
        assert inside.sum() >= 0.999 * batch.mask_BR.sum()
        gap = np.abs(np.asarray(said.logp_BR) - batch.rollout_logp_BR[0])[inside]
        assert gap.max() < 1e-4
