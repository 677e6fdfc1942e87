"""Plans: what is kept is counted exactly, what is temporary is bounded, configurations fit."""

import re
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.config import PRESETS, ModelConfig
from models.policy import Qwen3Policy
from train.config_file import load_config
from train.flops import matmul_flops
from train.planning import make_plan

SMALL = replace(
    PRESETS["tiny"], vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=2
)
QWEN3 = ("0_6b_1gpu", "1_7b_1gpu", "4b_1gpu", "4b_8gpu", "8b_8gpu", "8b_tpu")


def test_products_are_counted_as_often_as_a_scan_runs():
    x, w = jnp.zeros((3, 5)), jnp.zeros((7, 5, 5))

    def layers(x, w):
        return jax.lax.scan(lambda x, w: (jax.jit(jnp.matmul)(x, w), None), x, w)[0]

    assert matmul_flops(jax.make_jaxpr(layers)(x, w)) == 7 * 2 * 3 * 5 * 5
    backward = jax.grad(lambda w: layers(x, w).sum())
    assert matmul_flops(jax.make_jaxpr(backward)(w)) == 3 * 7 * 2 * 3 * 5 * 5


def test_products_that_nothing_depends_on_are_not_counted():
    x = jnp.zeros((3, 5, 5))

    def half(x):
        return jax.lax.scan(lambda c, x: (c @ x, x @ x), jnp.zeros((2, 5)), x)[0]

    assert matmul_flops(jax.make_jaxpr(half)(x)) == 3 * 2 * 2 * 5 * 5


@pytest.fixture(scope="module")
def plans():
    short = ("rollout.max_prompt_tokens=16", "rollout.max_new_tokens=16", "train.micro_batch=8")
    split = ("mesh.fsdp=4", "mesh.tensor=2", "model.dtype=bfloat16")
    return [make_plan(load_config(None, (*short, *more)), SMALL) for more in ((), split)]


def test_what_is_kept_is_that_of_the_arrays(plans):
    alone, split = plans
    params = jax.eval_shape(Qwen3Policy(SMALL).init_params, jax.random.key(0))
    size = sum(4 * leaf.size for leaf in jax.tree.leaves(params))
    assert alone.parameters == size
    assert 2 * size <= alone.optimizer < 2 * size + 100
    assert alone.rollout_weights == 0
    assert size / 8 <= split.parameters < 1.1 * size / 8  # norms are whole everywhere
    assert size / 4 <= split.rollout_weights < 1.1 * size / 4  # two parts of half the width
    assert alone.cache == 16 * (16 + 16 + 16) * 2 * 2 * 2 * 64 * 4  # slots, S, K+V, L, J, E, bytes
    assert split.cache == alone.cache // 8 // 2


def test_operations_do_not_depend_on_the_mesh(plans):
    alone, split = plans
    np.testing.assert_allclose(split.update_flops, alone.update_flops)
    np.testing.assert_allclose(split.round_flops, alone.round_flops)


def test_slots_that_fit_use_the_memory_that_there_is(plans):
    plan = plans[0]
    assert plan.most_slots(plan.peak) <= plan.slots + 1
    assert plan.most_slots(plan.parameters) == 0
    assert plan.most_slots(10 * plan.peak) > 2 * plan.slots


@pytest.mark.parametrize("name", QWEN3)
def test_configurations_of_qwen3_are_whole(repository, name):
    path = repository / "configs" / f"qwen3_{name}.yaml"
    text, config = path.read_text(), load_config(path)
    assert text.startswith("# Qwen3-")
    assert f"python train/train.py configs/qwen3_{name}.yaml" in text
    assert "while training." in text
    model: ModelConfig = PRESETS[config.model.checkpoint.removeprefix("checkpoints/")]
    parts = config.mesh.data * config.mesh.fsdp
    assert config.train.micro_batch % parts == 0
    assert config.rollout.slots % parts == 0
    for size in (model.hidden_size, model.vocab_size, model.intermediate_size):
        assert size % (config.mesh.fsdp * config.mesh.tensor) == 0


def test_the_command_says_what_fits_and_by_its_status_what_does_not(repository):
    command = [sys.executable, "train/plan.py", "configs/quickstart.yaml", "mesh.fsdp=2"]
    done = subprocess.run([*command, "memory=1"], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"each of 2 devices, bytes:\n  parameters \(float32\) +[\d,]+ ", done.stdout)
    assert "fits 1 GB" in done.stdout
    wrong = subprocess.run([*command, "memory=x"], cwd=repository, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: memory: found x, allowed: gigabytes of one device")
