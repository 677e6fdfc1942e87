"""Draft trees change no token, whatever they are; a wrong mask, key or path would."""

import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.evidence.faults import planted
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.ngram_trees import NgramTreeDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.rollout import slices, tree_round
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import RolloutRequest, Sampling
from ngramrl_jax.verify.keyed import position_keys
from ngramrl_jax.verify.tree import ancestors
from tests.support.drafters import RandomDrafter
from tests.support.table_policy import TablePolicy, random_table
from tests.support.tree_drafters import OracleTreeDrafter, RandomTreeDrafter

V, STOP, LONGEST = 6, 0, 20
TABLE = jnp.asarray(random_table(V, seed=0))
STEPS = 2
K_IN_SLICES = 5


def requests():
    rng = np.random.default_rng(1)
    prompts = [rng.integers(1, V, 1 + prompt_id % 5, dtype=np.int32) for prompt_id in range(6)]
    return [
        RolloutRequest(prompt_id, sibling, prompt_P, LONGEST)
        for prompt_id, prompt_P in enumerate(prompts)
        for sibling in range(3)
    ]


def settings(slots, nodes, **changes):
    given = {"stop_ids": (STOP,), "draft_shape": "tree", "best_tokens": 3} | changes
    return EngineSettings(
        slots=slots,
        draft_tokens=nodes,
        max_prompt_tokens=8,
        max_new_tokens=LONGEST,
        **given,
    )


def sample(drafter, slots, nodes, steps=1, **changes):
    """Rollouts of all steps, and the counters of the last one."""
    engine = RolloutEngine(TablePolicy(V), drafter, settings(slots, nodes, **changes))
    rollouts = []
    for step in range(steps):
        said, counters = engine.generate(TABLE, requests(), seed=0, step=step, policy_version=0)
        rollouts += said
    return rollouts, counters


def same(some, others):
    return all(
        np.array_equal(one.tokens_N, other.tokens_N)
        and np.allclose(one.logps_N, other.logps_N, atol=1e-5)
        and np.array_equal(one.best.ids_NR, other.best.ids_NR)
        for one, other in zip(some, others, strict=True)
    )


@pytest.fixture(scope="module")
def plain():
    return sample(NoDrafter(4), 4, 0)[0]


def future(rollouts):
    return {(rollout.prompt_id, rollout.sibling): rollout.tokens_N for rollout in rollouts}


@pytest.mark.parametrize(("slots", "nodes", "wave"), [(1, 4, 1), (3, 1, 2), (7, 16, 3)])
def test_trees_change_no_token(plain, slots, nodes, wave):
    for drafter in (
        RandomTreeDrafter(slots, nodes, V, hostile=True),
        OracleTreeDrafter(slots, nodes, future(plain), V),
    ):
        assert same(plain, sample(drafter, slots, nodes, wave=wave)[0])


def test_trees_are_verified_in_slices_of_the_rows(plain, monkeypatch):
    monkeypatch.setattr(slices, "CPU_ELEMENTS", 2 * V * (K_IN_SLICES + 1))
    drafter = OracleTreeDrafter(6, K_IN_SLICES, future(plain), V)
    assert same(plain, sample(drafter, 6, K_IN_SLICES)[0])


def test_the_noise_of_plain_decoding_and_the_trees_of_history():
    """Arg-max, a filtered law, and drafts that know the noise."""
    for sampling in (Sampling(0.0), Sampling(0.8, top_k=4, top_p=0.9)):
        plain, _ = sample(NoDrafter(4), 4, 0, steps=STEPS, sampling=sampling)
        drafter = NgramTreeDrafter(5, 8, History(8))
        drafted, counters = sample(drafter, 5, 8, steps=STEPS, sampling=sampling)
        assert same(plain, drafted)
        assert counters.kept_tokens > 0


def keyed_by_node(key_B, length_B, depth_BT):
    """`depth_keys`, but the noise follows the number of a token, not its depth."""
    return position_keys(key_B, length_B, depth_BT.shape[1])


def own_parent_only(parent_BN):
    """`ancestors`, but one step up at most."""
    sees_BTT = ancestors(parent_BN)
    depth_BT = sees_BTT.sum(axis=2)
    return sees_BTT & (depth_BT[:, :, None] - depth_BT[:, None] <= 1)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("depth_keys", keyed_by_node),
        ("ancestors", own_parent_only),
    ],
)
def test_faults_are_caught(plain, name, fault):
    drafter = OracleTreeDrafter(7, 9, future(plain), V)
    with planted((tree_round, name, fault)):
        assert not same(plain, sample(drafter, 7, 9)[0])


class NotCompacted(TablePolicy):
    """Leaves the tokens of a tree where they stood."""

    def commit_path(self, cache, position_B, path_BT, count_B):
        return cache


class SeesOtherBranches(TablePolicy):
    """Masks a tree as if it were a chain."""

    def forward_tree(self, params, tokens_BT, sees_BTT, position_B, cache, *, live):
        chain_BTT = jnp.broadcast_to(jnp.tril(jnp.ones_like(sees_BTT[0]))[None], sees_BTT.shape)
        return super().forward_tree(params, tokens_BT, chain_BTT, position_B, cache, live=live)


@pytest.mark.parametrize("policy", [NotCompacted, SeesOtherBranches])
def test_a_wrong_policy_is_caught(plain, policy):
    drafter = OracleTreeDrafter(7, 9, future(plain), V)
    engine = RolloutEngine(policy(V), drafter, settings(7, 9))
    drafted, _ = engine.generate(TABLE, requests(), seed=0, step=0, policy_version=0)
    assert not same(plain, drafted)


class Counted(OracleTreeDrafter):
    """Adds up what it proposes."""

    nodes = 0
    deepest = 0

    def propose_tree(self, limit_B):
        trees = super().propose_tree(limit_B)
        self.nodes += int(trees.count_B.sum())
        self.deepest += int(trees.deepest_B.sum())
        return trees


def test_counters_count_nodes_and_depths(plain):
    drafter = Counted(7, 9, future(plain), V)
    drafted, counters = sample(drafter, 7, 9)
    assert counters.drafted_tokens == drafter.nodes
    assert counters.drafted_K.sum() == drafter.deepest
    assert counters.kept_K.sum() == counters.kept_tokens
    assert counters.kept_tokens == sum(int(rollout.drafted_N.sum()) for rollout in drafted)
    assert counters.committed_tokens == sum(len(rollout.tokens_N) for rollout in drafted)
    assert (counters.kept_K <= counters.drafted_K).all()


def test_one_program_whatever_the_trees(plain):
    drafter = OracleTreeDrafter(7, 9, future(plain), V)
    engine = RolloutEngine(TablePolicy(V), drafter, settings(7, 9))
    engine.warm_up(TABLE)
    compiled = engine.programs.compiled.total()
    engine.generate(TABLE, requests(), seed=0, step=0, policy_version=0)
    assert engine.programs.compiled.total() == compiled


class ChainPolicy(TablePolicy):
    """A policy that cannot run trees."""

    forward_tree = property()  # hasattr says no


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: settings(1, 4, verifier="rejection"), "with verifier rejection, allowed: chain"),
        (lambda: settings(1, 4, verifier="forced"), "with verifier forced, allowed: chain"),
        (lambda: settings(1, 4, prefetch="device"), "with prefetch device, allowed: chain"),
        (lambda: settings(1, 4, draft_length="auto"), "with draft_length auto, allowed: chain"),
        (lambda: settings(1, 4, draft_shape="bush"), "found bush, allowed: chain, tree"),
        (
            lambda: RolloutEngine(TablePolicy(V), RandomDrafter(1, 4, V), settings(1, 4)),
            "found tree with RandomDrafter, allowed: chain",
        ),
        (
            lambda: RolloutEngine(ChainPolicy(V), RandomTreeDrafter(1, 4, V), settings(1, 4)),
            "found tree with ChainPolicy, allowed: chain",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, said):
    with pytest.raises(ValueError, match=said) as error:
        make()
    assert "\n" not in str(error.value)


def test_without_noise_to_share_a_tree_of_one_branch_is_the_chain():
    """Where the history leaves nothing open, both drafters propose the same."""
    said_N = np.array([1, 2, 3, 4, 5, 1, 3], np.int32)
    chain, tree = (kind(2, 4, History(4)) for kind in (NgramDrafter, NgramTreeDrafter))
    for drafter in (chain, tree):
        drafter.observe(0, said_N, 0)
        drafter.start_row(0, 0, np.array([9], np.int32))
    limit_B = np.array([3, 0], np.int32)
    draft_BK, length_B = chain.propose(limit_B)
    trees = tree.propose_tree(limit_B)
    np.testing.assert_array_equal(trees.tokens_BN, draft_BK)
    np.testing.assert_array_equal(trees.count_B, length_B)
    np.testing.assert_array_equal(trees.deepest_B, length_B)
    assert trees.parent_BN[0, :3].tolist() == [0, 1, 2]
