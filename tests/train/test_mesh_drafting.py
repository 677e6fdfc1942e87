"""Every way of drafting says on a mesh what it says on one device, in the same rounds."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram_trees import NgramTreeDrafter
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.forced import forced_requests, forced_settings
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import RolloutRequest, Sampling
from tests.support.mesh_policy import mesh_policy
from train.config import MeshConfig
from train.mesh import rollout_layout, training_mesh

POLICY = mesh_policy(layers=1)
SLOTS, K, LONGEST = 4, 3, 10
SETTINGS = EngineSettings(SLOTS, K, 6, LONGEST, (0,), Sampling(top_k=3))
REQUESTS = [
    RolloutRequest(prompt, sibling, np.arange(1, 5 + prompt, dtype=np.int32), LONGEST)
    for prompt in range(2)
    for sibling in range(4)
]


def run(settings, layout, requests=REQUESTS):
    """Two steps' rollouts and the counters of the second."""
    drafter = NgramTreeDrafter(SLOTS, K, History(window=8), stop_ids=settings.stop_ids)
    engine = RolloutEngine(POLICY, drafter, settings, layout)
    params = POLICY.init_params(jax.random.key(0))
    params = jax.tree.map(lambda x: x * 4 if x.ndim > 1 else x, params)
    if layout is not None:
        params = jax.device_put(params, POLICY.shardings(layout.mesh))
    said = []
    for step in range(2):
        rollouts, counters = engine.generate(params, requests, seed=1, step=step, policy_version=0)
        said.append(rollouts)
    return said, counters


def told(said):
    return [[(r.tokens_N.tolist(), r.rounds) for r in rollouts] for rollouts in said]


@pytest.mark.parametrize("sizes", [(4, 1, 2), (2, 2, 2)])
@pytest.mark.parametrize(
    "changes", [{"prefetch": "host"}, {"prefetch": "device"}, {"draft_shape": "tree"}]
)
def test_rounds_on_a_mesh_are_those_of_one_device(sizes, changes):
    settings = replace(SETTINGS, **changes)
    alone, counters = run(settings, None)
    spread, spread_counters = run(settings, rollout_layout(training_mesh(MeshConfig(*sizes))))
    assert told(spread) == told(alone)
    assert spread_counters.kept_tokens == counters.kept_tokens > 5
    assert spread_counters.skipped_rounds == counters.skipped_rounds
    if changes == {"prefetch": "device"}:
        assert counters.skipped_rounds > 0


@pytest.mark.parametrize("prefetch", ["off", "device"])
def test_recorded_rollouts_are_said_again_on_a_mesh(prefetch):
    (rollouts, _), _ = run(replace(SETTINGS, draft_tokens=0), None)
    settings = forced_settings(replace(SETTINGS, prefetch=prefetch))
    layout = rollout_layout(training_mesh(MeshConfig(data=4, tensor=2)))
    (said, again), _ = run(settings, layout, forced_requests(rollouts, LONGEST))
    recorded = {r.identity: r.tokens_N.tolist() for r in rollouts}
    for step in (said, again):
        assert {r.identity: r.tokens_N.tolist() for r in step} == recorded
