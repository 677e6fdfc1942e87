"""With draft trees, rollouts of the real policy are those of plain decoding, token for token."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from ngramrl_jax.evidence.plain_forward import PlainForward
from ngramrl_jax.evidence.same_tokens import is_near_tie, parting
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.rollout.engine import RolloutEngine
from train.config import RolloutConfig, RunConfig
from train.prompts import group_requests
from train.tasks.registry import open_task
from train.workbench import engine_settings, open_workbench, rollout_sampling, training_engine

SEED, GROUP, PROMPTS, LONGEST = 5, 4, 12, 40
LEAST_KEPT = 500


@pytest.fixture(scope="module")
def bench():
    config = RunConfig()
    with closing(open_task(config)) as task:
        yield open_workbench(config, task)


@pytest.mark.parametrize(
    "config",
    [
        RolloutConfig(slots=7, draft_tokens=16, max_new_tokens=LONGEST, draft_shape="tree"),
        RolloutConfig(
            slots=16,
            draft_tokens=5,
            max_new_tokens=LONGEST,
            draft_shape="tree",
            temperature=1.2,
            top_p=0.95,
        ),
    ],
    ids=["trees of 16", "trees of 5, filtered"],
)
def test_trees_change_no_token(bench, config):
    requests = group_requests(bench.train[:PROMPTS], GROUP, max_new_tokens=LONGEST)
    drafting, _ = training_engine(bench.policy, bench.codec, config, deterministic=True)
    settings = replace(engine_settings(bench.codec, config), draft_tokens=0)
    plainly = RolloutEngine(bench.policy, NoDrafter(config.slots), settings)
    arguments = {"seed": SEED, "step": 1, "policy_version": 0}
    drafting.generate(bench.params, requests, **(arguments | {"step": 0}))  # history
    drafted, counters = drafting.generate(bench.params, requests, **arguments)
    plain, _ = plainly.generate(bench.params, requests, **arguments)
    forward = PlainForward(bench.policy, max(len(r.prompt_P) for r in requests) + LONGEST)
    kept = 0
    for one, other in zip(plain, drafted, strict=True):
        at = parting(one, other)
        if at is not None:
            sampling = rollout_sampling(config)
            assert is_near_tie(forward, bench.params, sampling, SEED, one, at)
        same = slice(None, at)
        kept += int(other.drafted_N[same].sum())
        np.testing.assert_allclose(one.logps_N[same], other.logps_N[same], atol=1e-3)
    assert kept >= LEAST_KEPT
    assert counters.kept_tokens < counters.drafted_tokens
