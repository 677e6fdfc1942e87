"""Long rows on meshes: in pieces as on one device, and no weight is gathered more than once."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from models.feed_forward import SLICES
from models.qwen3 import LONG_ROW
from ngramrl_jax.types import Sampling
from tests.support.collectives import collectives
from tests.support.mesh_policy import mesh_policy
from train.batching import Batch
from train.config import MeshConfig
from train.learner import Learner, OptimizerSettings
from train.mesh import micro_batch_sharding, training_mesh
from train.objectives import grpo

POLICY = mesh_policy(layers=3)
ROWS, RESPONSE = 8, 64


def long_batch():
    rng = np.random.default_rng(0)
    return Batch(
        tokens_BT=rng.integers(POLICY.vocab_size, size=(1, ROWS, LONG_ROW)).astype(np.int32),
        start_B=np.full((1, ROWS), LONG_ROW - RESPONSE, np.int32),
        mask_BR=np.ones((1, ROWS, RESPONSE), bool),
        weight_BR=np.full((1, ROWS, RESPONSE), 1 / (ROWS * RESPONSE), np.float32),
        advantage_B=np.linspace(-1, 2, ROWS, dtype=np.float32)[None],
    )


def updated(sizes, devices=None):
    """Metrics and parameters after one update, and the compiled program's text."""
    mesh = training_mesh(MeshConfig(*sizes), devices)
    policy = replace(POLICY, mesh=mesh)
    learner = Learner(
        policy,
        OptimizerSettings(1e-3),
        grpo(),
        Sampling(),
        chunk_tokens=128,
        param_shardings=policy.shardings(mesh),
        batch_sharding=micro_batch_sharding(mesh),
    )
    params = jax.jit(POLICY.init_params)(jax.random.key(0))
    state = learner.init(jax.tree.map(lambda x: x * 4 if x.ndim > 1 else x, params))
    batch = learner._placed(long_batch())
    text = learner._update.lower(state, batch).compile().as_text()
    state, metrics = learner.update(state, long_batch())
    return jax.device_get(metrics), jax.device_get(state.opt_state[1][0].mu), text


@pytest.fixture(scope="module")
def alone():
    return updated((1, 1, 1), jax.devices()[:1])


@pytest.mark.parametrize("sizes", [(1, 8, 1), (2, 2, 2)])
def test_long_rows_on_a_mesh_are_those_of_one_device(alone, sizes):
    metrics, moments, text = updated(sizes)
    for name in ("loss", "grad_norm", "entropy"):
        np.testing.assert_allclose(metrics[name], alone[0][name], rtol=1e-4, atol=1e-6)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), moments, alone[1]
    )
    width, inner = POLICY.config.hidden_size, POLICY.config.intermediate_size // sizes[2]
    part = inner // SLICES if sizes[2] == 1 else inner  # what tensor splits stays as it is
    gathered = [shape for kind, shape in collectives(text) if kind == "all-gather"]
    feed = {shape for shape in gathered if set(shape) & {inner, inner // SLICES}}
    assert feed == {(width, part), (part, width)}
    assert not [shape for shape in gathered if LONG_ROW in shape]
