"""The sharding table: specs as asserted, collisions refused, same logits on every mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from models.policy import Qwen3Policy
from models.sharding import (
    RULES,
    batch_sharding,
    cache_shardings,
    make_mesh,
    partition_spec,
    shardings,
)


def test_specs_are_the_intended_ones(small_policy):
    mesh = make_mesh(2, 2, 2)
    specs = jax.tree.map(
        lambda sharding: sharding.spec,
        shardings(jax.eval_shape(small_policy.init_params, jax.random.key(0)), mesh),
    )
    split_in, split_out = P(None, "fsdp", "tensor"), P(None, "tensor", "fsdp")
    layer_norm = {"scale": P(None, None)}
    assert specs == {
        "embedding_VD": P("tensor", "fsdp"),
        "layers": {
            "attention_norm": layer_norm,
            "query": {"kernel": split_in},
            "key": {"kernel": split_in},
            "value": {"kernel": split_in},
            "query_norm": layer_norm,
            "key_norm": layer_norm,
            "output": {"kernel": split_out},
            "mlp_norm": layer_norm,
            "gate": {"kernel": split_in},
            "up": {"kernel": split_in},
            "down": {"kernel": split_out},
        },
        "norm": {"scale": P(None)},
        "head": {"kernel": P("fsdp", "tensor")},
    }
    assert batch_sharding(mesh).spec == P(("data", "fsdp"), None)
    cache = jax.eval_shape(lambda: small_policy.init_cache(4, 8))
    rows = P(None, ("data", "fsdp"), "tensor", None, None)
    assert [leaf.spec for leaf in cache_shardings(cache, mesh)] == [rows, rows]


def test_colliding_and_unknown_axes_are_refused():
    with pytest.raises(ValueError, match="colliding mesh axes"):
        partition_spec(("vocab", "mlp"))
    with pytest.raises(ValueError, match="colliding"):
        partition_spec(("batch", "embed"))
    with pytest.raises(ValueError, match="colliding"):
        partition_spec(("vocab", "embed"), {**RULES, "embed": ("fsdp", "tensor")})
    with pytest.raises(ValueError, match="'length'"):
        partition_spec(("length",))


def test_what_does_not_fit_a_mesh_is_named(small_policy):
    params = jax.eval_shape(small_policy.init_params, jax.random.key(0))
    with pytest.raises(ValueError, match="'layers/query/extra': not in the sharding table"):
        shardings({"layers": {"query": {"extra": params["embedding_VD"]}}}, make_mesh(8))
    odd = jax.ShapeDtypeStruct((63, 32), jnp.float32)
    with pytest.raises(ValueError, match="axis 'vocab' of size 63 does not divide by 8"):
        shardings({"embedding_VD": odd}, make_mesh(tensor=8))
    with pytest.raises(ValueError, match="allowed: sizes of product 8"):
        make_mesh(3, 2, 1)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 4, 2)])
def test_logits_are_the_same_on_every_mesh(small_policy, small_params, sizes):
    mesh = make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    tokens_BT = np.random.default_rng(0).integers(0, 64, (8, 5)).astype(np.int32)
    position_B, cache = np.zeros(8, np.int32), small_policy.init_cache(8, 6)
    forward = jax.jit(Qwen3Policy.forward, static_argnums=0, static_argnames="live")
    args = (small_params, jnp.array(tokens_BT), jnp.array(position_B), cache)
    places = (
        shardings(small_params, mesh),
        batch_sharding(mesh),
        batch_sharding(mesh, ("batch",)),
        cache_shardings(cache, mesh),
    )
    expected, _ = forward(small_policy, *args, live=6)
    logits, after = forward(small_policy, *jax.device_put(args, places), live=6)
    assert len(logits.sharding.device_set) == np.prod(sizes)
    assert after.key_LBJSE.sharding.is_equivalent_to(places[3].key_LBJSE, 5)
    np.testing.assert_allclose(logits, expected, atol=1e-5, rtol=0)
