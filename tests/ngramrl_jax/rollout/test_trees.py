"""Draft trees change no token, whatever they are; a wrong mask, key or path would."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.rollout import tree_round
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.types import Sampling
from ngramrl_jax.verify.keyed import position_keys
from ngramrl_jax.verify.tree import ancestors
from tests.ngramrl_jax.rollout.test_engine import (
    LONGEST,
    STOP,
    TABLE,
    V,
    assert_same,
    engine,
    requests,
    sample,
)
from tests.support.table_policy import TablePolicy
from tests.support.tree_drafters import OracleTreeDrafter, RandomTreeDrafter


@pytest.fixture(scope="module")
def plain():
    return sample(NoDrafter(4), slots=4, draft_tokens=0)


def by_sibling(rollouts):
    return {(rollout.prompt_id, rollout.sibling): rollout.tokens_N for rollout in rollouts}


@pytest.mark.parametrize(("slots", "nodes", "wave"), [(1, 4, 1), (3, 1, 2), (16, 16, 1), (7, 9, 3)])
def test_trees_change_no_token(plain, slots, nodes, wave):
    for drafter in (
        RandomTreeDrafter(slots, nodes, V, hostile=True),
        OracleTreeDrafter(slots, nodes, by_sibling(plain), V),
    ):
        assert_same(plain, sample(drafter, slots, nodes, wave=wave, draft_shape="tree"))
