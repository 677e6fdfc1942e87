"""A policy on meshes of eight devices: losses, rollouts and accepted counts are those of one."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import RolloutRequest, Sampling
from tests.support.collectives import collectives
from tests.support.mesh_policy import mesh_policy
from train.batching import rollout_batch
from train.config import MeshConfig
from train.learner import Learner, OptimizerSettings
from train.mesh import (
    WeightMover,
    micro_batch_sharding,
    rollout_layout,
    rollout_mesh,
    training_mesh,
)
from train.objectives import grpo

POLICY = mesh_policy(layers=2)
SLOTS, GROUP, STEPS = 8, 4, 2
SAMPLING = Sampling(temperature=1.0, top_k=3)
MESHES = [(8, 1, 1), (1, 8, 1), (2, 1, 4), (1, 2, 4), (2, 2, 2), (4, 2, 1)]


def run(sizes, draft_tokens=3, devices=None):
    """Losses, rollouts and accepted counts of two steps, and the mesh's learner and state."""
    section = MeshConfig(*sizes)
    mesh = training_mesh(section, devices)
    sampling_mesh = rollout_mesh(section, mesh)
    policy = replace(POLICY, mesh=mesh)
    objective = grpo()
    learner = Learner(
        policy,
        OptimizerSettings(1e-3),
        objective,
        SAMPLING,
        chunk_tokens=16,
        param_shardings=policy.shardings(mesh),
        batch_sharding=micro_batch_sharding(mesh),
    )
    params = POLICY.init_params(jax.random.key(0))
    state = learner.init(jax.tree.map(lambda x: x * 4 if x.ndim > 1 else x, params))
    move = WeightMover(jnp.float32, mesh, sampling_mesh)
    engine = RolloutEngine(
        POLICY,
        NgramDrafter(SLOTS, draft_tokens, History(window=8)),
        EngineSettings(SLOTS, draft_tokens, 6, 10, (0,), SAMPLING),
        rollout_layout(sampling_mesh),
    )
    requests = [
        RolloutRequest(prompt, sibling, np.arange(1, 5 + prompt, dtype=np.int32), 10)
        for prompt in range(2)
        for sibling in range(GROUP)
    ]
    losses, said = [], []
    for step in range(STEPS):
        rollouts, counters = engine.generate(
            move(state.params), requests, seed=1, step=step, policy_version=step
        )
        said.append(([r.tokens_N.tolist() for r in rollouts], counters.kept_tokens))
        advantage_N = np.linspace(-1.0, 2.0, len(rollouts))
        batch = rollout_batch(rollouts, advantage_N, micro_rows=8, weights=objective.weights)
        state, metrics = learner.update(state, batch)
        losses.append([float(metrics[name]) for name in ("loss", "grad_norm", "entropy")])
    return losses, said, learner, state, batch


@pytest.fixture(scope="module")
def alone():
    return run((1, 1, 1), devices=jax.devices()[:1])


@pytest.mark.parametrize("sizes", MESHES)
def test_every_mesh_gives_the_losses_and_rollouts_of_one_device(alone, sizes):
    losses, said, learner, state, batch = run(sizes)
    assert said == alone[1]
    np.testing.assert_allclose(losses, alone[0], rtol=1e-3, atol=1e-5)
    assert_collectives(learner, state, batch, sizes)


def test_some_drafts_are_accepted(alone):
    assert sum(kept for _, kept in alone[1]) > 5  # else the counts above say little


def test_plain_decoding_gives_the_same_tokens_on_a_mesh():
    one, many = run((1, 1, 1), 0, jax.devices()[:1]), run((4, 1, 2), 0)
    assert [tokens for tokens, _ in one[1]] == [tokens for tokens, _ in many[1]]


def assert_collectives(learner, state, batch, sizes):
    """The update gathers weights over fsdp, adds up over the rest, and never gathers logits."""
    lowered = learner._update.lower(state, learner._placed(batch))
    found = collectives(lowered.compile().as_text())
    kinds = {kind for kind, _ in found}
    assert sizes[1] == 1 or "all-gather" in kinds
    assert "all-reduce" in kinds or "reduce-scatter" in kinds
    wide = (POLICY.config.hidden_size, POLICY.vocab_size)  # of activations and of logits
    gathered = [shape for kind, shape in found if kind == "all-gather"]
    assert not [shape for shape in gathered if len(shape) > 2 and shape[-1] in wide]
    for leaf, wanted in zip(
        jax.tree.leaves(state.opt_state[1][0].mu), jax.tree.leaves(state.params), strict=True
    ):
        assert leaf.sharding.is_equivalent_to(wanted.sharding, leaf.ndim)


def test_a_mesh_that_does_not_fit_is_refused_in_one_line():
    with pytest.raises(ValueError, match="mesh: found data=3 fsdp=1 tensor=1, product 3, with 8"):
        training_mesh(MeshConfig(data=3))
    mesh = training_mesh(MeshConfig(data=8))
    with pytest.raises(ValueError, match=r"mesh.rollout_tensor: found 3, allowed: a divisor of 8"):
        rollout_mesh(MeshConfig(data=8, rollout_tensor=3), mesh)


def test_rollouts_may_be_laid_out_otherwise_than_training():
    section = MeshConfig(fsdp=8, rollout_tensor=4)
    mesh = training_mesh(section)
    params = jax.device_put(POLICY.init_params(jax.random.key(0)), POLICY.shardings(mesh))
    moved = WeightMover(jnp.bfloat16, mesh, rollout_mesh(section, mesh))(params)
    kernel = moved["layers"]["query"]["kernel"]
    assert kernel.dtype == jnp.bfloat16
    assert kernel.sharding.shard_shape(kernel.shape) == (2, 32, 12)
    np.testing.assert_array_equal(
        kernel.astype(jnp.float32),
        params["layers"]["query"]["kernel"].astype(jnp.bfloat16).astype(jnp.float32),
    )
