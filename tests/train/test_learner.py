"""The update as a whole: equal under any split, refusing what is not finite, compiled once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ngramrl_jax.types import Rollout, Sampling
from tests.train.fake_policy import FakePolicy
from train.batching import rollout_batch, supervised_batch
from train.learner import Learner, OptimizerSettings, make_optimizer
from train.objectives import dapo, dr_grpo, grpo, supervised

SGD = optax.sgd(1.0)  # shows the gradient itself, where AdamW would hide its size


def rollouts(count=6, seed=0, longest=9):
    rng = np.random.default_rng(seed)
    made = []
    for sibling in range(count):
        size = int(rng.integers(1, longest))
        made.append(
            Rollout(
                prompt_id=0,
                sibling=sibling,
                prompt_P=rng.integers(11, size=rng.integers(1, longest)).astype(np.int32),
                tokens_N=rng.integers(11, size=size).astype(np.int32),
                logps_N=rng.uniform(-3, -1, size=size).astype(np.float32),
                drafted_N=np.zeros(size, bool),
                truncated=False,
                policy_version=0,
                step=0,
                rounds=size,
            )
        )
    return made


def advantages(count=6):
    return np.linspace(-1.0, 2.0, count)


def batch_for(objective, micro_rows, rollouts_=None, **kwargs):
    chosen = rollouts() if rollouts_ is None else rollouts_
    return rollout_batch(
        chosen, advantages(len(chosen)), micro_rows=micro_rows, weights=objective.weights, **kwargs
    )


def learner_for(objective, optimizer=SGD, policy=None, sampling=None, **kwargs):
    return Learner(policy or FakePolicy(), optimizer, objective, sampling or Sampling(), **kwargs)


def assert_same(left, right, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), left, right)


def leaves_equal(left, right):
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("objective", [grpo(), dr_grpo(max_length=16), dapo()])
def test_split_chunk_and_remat_change_nothing(objective):
    results = []
    splits = [(6, 999, False), (1, 2, True), (4, 5, True)]
    for micro_rows, chunk_tokens, remat in splits if objective.standardise else splits[:2]:
        learner = learner_for(objective, chunk_tokens=chunk_tokens, remat=remat)
        state = learner.init(FakePolicy().init_params())
        results.append(learner.update(state, batch_for(objective, micro_rows)))
    (state, metrics), *others = results
    for other_state, other_metrics in others:
        assert_same(other_state.params, state.params, atol=1e-5)
        assert_same(other_metrics, metrics, rtol=2e-5, atol=1e-6)


def test_the_update_is_the_policy_gradient():
    """One SGD step against the gradient of `−Σ w A log π`, written row by row."""
    objective, policy = dapo(), FakePolicy()
    params, rolled = policy.init_params(), rollouts(count=3)

    def direct(params):
        total = 0.0
        for advantage, row in zip(advantages(3), rolled, strict=True):
            tokens_1T = jnp.asarray(np.concatenate([row.prompt_P, row.tokens_N]))[None]
            logp_TV = jax.nn.log_softmax(policy.logits(params, policy.hidden(params, tokens_1T)))[0]
            start = len(row.prompt_P)
            for r, token in enumerate(row.tokens_N):
                total += advantage * logp_TV[start + r - 1, token]
        return -total / sum(len(row.tokens_N) for row in rolled)

    learner = learner_for(objective)
    state, metrics = learner.update(learner.init(params), batch_for(objective, 2, rolled))
    grads = jax.jit(jax.grad(direct))(params)
    assert_same(state.params, jax.tree.map(jnp.subtract, params, grads), atol=1e-5)
    np.testing.assert_allclose(metrics["grad_norm"], optax.tree.norm(grads), rtol=1e-4)
    assert metrics["clip_frac"] == 0.0


def test_the_gap_to_the_rollout_is_reported():
    objective, policy = grpo(), FakePolicy()
    learner = learner_for(objective, policy=policy, sampling=Sampling(temperature=0.7))
    params = policy.init_params()
    batch = batch_for(objective, 3)
    exact = np.asarray(learner.log_probs(params, batch))
    _, metrics = learner.update(learner.init(params), replace(batch, rollout_logp_BR=exact))
    assert metrics["logp_gap_max"] < 1e-6
    shifted = exact + np.where(batch.advantage_B[..., None] == 2.0, 0.5, 0.25) * batch.mask_BR
    _, metrics = learner.update(
        learner.init(params), replace(batch, rollout_logp_BR=shifted.astype(np.float32))
    )
    np.testing.assert_allclose(metrics["logp_gap_max"], 0.5, atol=1e-5)
    assert 0.25 < metrics["logp_gap_mean"] < 0.5


def test_old_log_probs_of_the_same_parameters_are_the_default():
    objective = grpo()
    learner = learner_for(objective)
    params = FakePolicy().init_params()
    batch = batch_for(objective, 3)
    with_old = replace(batch, old_logp_BR=learner.log_probs(params, batch))
    one, _ = learner.update(learner.init(params), batch)
    two, metrics = learner.update(learner.init(params), with_old)
    assert_same(one.params, two.params, atol=1e-6)
    # A second update on the same batch now sees ratios, and clips some.
    _, metrics = learner.update(two, with_old)
    assert metrics["clip_frac"] > 0.0


def test_kl_pulls_back_to_the_reference():
    objective = grpo(kl=1.0)
    learner = learner_for(objective, optax.sgd(0.3))
    reference = FakePolicy().init_params(seed=1)
    batch = batch_for(objective, 3)
    with pytest.raises(ValueError, match="reference_logp_BR"):
        learner.update(learner.init(reference), batch)
    still = replace(
        batch,
        advantage_B=np.zeros_like(batch.advantage_B),
        reference_logp_BR=learner.log_probs(reference, batch),
    )
    state, metrics = learner.update(learner.init(reference), still)
    assert abs(float(metrics["kl"])) < 1e-6
    away = jax.tree.map(lambda leaf: leaf * 1.1, reference)
    state, kls = learner.init(away), []
    for _ in range(4):
        state, metrics = learner.update(state, still)
        kls.append(float(metrics["kl"]))
    assert kls[-1] < 0.5 * kls[0]


@pytest.mark.parametrize("planted", ["advantage", "params"])
def test_an_update_that_is_not_finite_is_refused(planted):
    objective = grpo()
    learner = learner_for(objective, OptimizerSettings(0.1))
    params = FakePolicy().init_params()
    batch = batch_for(objective, 3)
    if planted == "advantage":
        batch.advantage_B[0, 0] = np.nan
    else:
        params["head_DV"] = params["head_DV"].at[0, 0].set(jnp.nan)
    before = jax.device_get(learner.init(params))
    after, metrics = learner.update(learner.init(params), batch)
    assert metrics["refused"] == 1.0
    assert after.step == 0
    assert_same(jax.device_get(after), before, rtol=0)
    if planted == "advantage":  # and the next good batch goes through
        after, metrics = learner.update(after, batch_for(objective, 3))
        assert metrics["refused"] == 0.0
        assert after.step == 1
        assert not leaves_equal(after.params, params)


def test_a_batch_without_signal_moves_nothing():
    objective = grpo()
    learner = learner_for(objective)
    params = FakePolicy().init_params()
    batch = batch_for(objective, 3)
    empty = replace(
        batch, mask_BR=np.zeros_like(batch.mask_BR), weight_BR=np.zeros_like(batch.weight_BR)
    )
    state, metrics = learner.update(learner.init(params), empty)
    assert leaves_equal(state.params, params)
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["loss"] == 0.0


def test_the_state_is_given_away_and_nothing_else():
    objective = grpo()
    learner = learner_for(objective, OptimizerSettings(0.1))
    params = FakePolicy().init_params()
    state = learner.init(params)
    new, metrics = learner.update(state, batch_for(objective, 3))
    jax.block_until_ready(new)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))  # init copied them
    views = jax.device_get(metrics)
    newer, _ = learner.update(new, batch_for(objective, 3))
    jax.block_until_ready(newer)
    # A metric that shared memory with the state would have cancelled the donation, or be gone.
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(new))
    assert_same(jax.device_get(metrics), views, rtol=0)


def test_it_compiles_once_per_step_of_the_ladder():
    objective, policy = grpo(), FakePolicy()
    learner = learner_for(objective, OptimizerSettings(0.01), policy=policy)
    state = learner.init(policy.init_params())
    ladder = (16, 32)

    def run(state, seeds, longest):
        for seed in seeds:
            rolled = rollouts(count=4 + seed % 3, seed=seed, longest=longest)
            batch = batch_for(objective, 2, rolled, rows=6, ladder=ladder)
            state, _ = learner.update(state, batch)
        return state

    state = run(state, range(2), longest=7)
    state = run(state, range(6), longest=16)
    warm = policy.traces
    state = run(state, range(10, 20), longest=7)
    run(state, range(10, 20), longest=16)
    assert policy.traces == warm
    assert warm <= 4


def test_the_warm_start_learns_its_responses():
    learner = learner_for(supervised(), OptimizerSettings(0.05, warmup_steps=2, total_steps=40))
    state = learner.init(FakePolicy().init_params())
    batch = supervised_batch(
        [[1, 2, 3], [4, 5], [6]], [[7, 8], [9], [10, 1]], stop_id=0, micro_rows=2
    )
    losses = []
    for _ in range(40):
        state, metrics = learner.update(state, batch)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.1 < losses[0]
    assert "logp_gap_mean" not in metrics


def test_a_mesh_gives_the_same_update_and_keeps_its_shardings():
    objective, policy = grpo(), FakePolicy(vocab_size=16)
    params, settings = policy.init_params(), OptimizerSettings(0.1)
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    shardings = {
        "embed_VD": NamedSharding(mesh, PartitionSpec("fsdp", None)),
        "mix_DD": NamedSharding(mesh, PartitionSpec(None, "fsdp")),
        "head_DV": NamedSharding(mesh, PartitionSpec("fsdp", None)),
    }
    rows = NamedSharding(mesh, PartitionSpec(None, ("data", "fsdp")))
    sharded = learner_for(
        objective, settings, policy=policy, param_shardings=shardings, batch_sharding=rows
    )
    state = sharded.init(params)
    wanted = jax.tree.map(lambda leaf: leaf.sharding, state)
    alone = learner_for(objective, settings, policy=FakePolicy(vocab_size=16))
    lone = alone.init(params)
    batch = batch_for(objective, 8)
    for _ in range(3):
        state, metrics = sharded.update(state, batch)
        lone, lone_metrics = alone.update(lone, batch)
    assert policy.traces == 1
    kept = jax.tree.map(lambda leaf, s: leaf.sharding.is_equivalent_to(s, leaf.ndim), state, wanted)
    assert all(jax.tree.leaves(kept))
    moments = state.opt_state[1][0].mu
    assert moments["embed_VD"].sharding.spec == PartitionSpec("fsdp", None)
    assert_same(jax.device_get(state.params), jax.device_get(lone.params), atol=1e-4)
    np.testing.assert_allclose(metrics["loss"], lone_metrics["loss"], atol=1e-5)


def test_the_schedule_rises_then_falls_or_stays():
    def rates(**settings):
        optimizer = make_optimizer(OptimizerSettings(1.0, clip_norm=1e9, **settings))
        params = {"x": jnp.zeros(())}
        opt_state, seen = optimizer.init(params), []
        with jax.numpy_dtype_promotion("standard"):
            for _ in range(12):
                change, opt_state = optimizer.update({"x": jnp.ones(())}, opt_state, params)
                seen.append(-float(change["x"]))  # Adam's step on a constant gradient is the rate
        return seen

    np.testing.assert_allclose(rates(warmup_steps=3)[:5], [0.25, 0.5, 0.75, 1, 1], rtol=1e-4)
    falling = rates(warmup_steps=2, total_steps=10)
    np.testing.assert_allclose(falling[2], 1.0, rtol=1e-4)
    assert falling[2:11] == sorted(falling[2:11], reverse=True)
    np.testing.assert_allclose(falling[10:], 0.1, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": 1.0, "clip_norm": 0.0}, "clip_norm"),
        ({"learning_rate": 1.0, "warmup_steps": 5, "total_steps": 5}, "warmup_steps"),
    ],
)
def test_bad_optimizer_settings_are_named(settings, named):
    with pytest.raises(ValueError, match=f"{named}: found"):
        OptimizerSettings(**settings)
