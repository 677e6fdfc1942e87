"""Trees of the n-gram drafter: well formed, the chain's draft first, the likeliest nodes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host import ngram_trees
from ngramrl_jax.host.draft import Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.ngram_trees import NgramTreeDrafter
from ngramrl_jax.host.noise import exponential, threefry
from ngramrl_jax.host.tree_draft import true_depths
from ngramrl_jax.types import BestTokens

ROWS, NODES, VOCAB = 4, 9, 5


def best_tokens(rng, tokens_N):
    ids_NR = np.array([rng.permutation(VOCAB)[:3] for _ in tokens_N], np.int32)
    probs_NR = np.sort(rng.dirichlet(np.ones(4), len(tokens_N))[:, :3], axis=1)[:, ::-1]
    return BestTokens(ids_NR, np.log(np.maximum(probs_NR, 1e-9)).astype(np.float32))


def told(kind, seed, rule=Rule(), **more):  # noqa: B008
    """A drafter with a random history and random rows, of which the last is idle."""
    rng = np.random.default_rng(seed)
    drafter = kind(ROWS, NODES, History(4), rule, **more)
    for _ in range(12):
        said_N = rng.integers(0, VOCAB, rng.integers(1, 30), dtype=np.int32)
        best = best_tokens(rng, said_N) if rng.random() < 0.7 else None
        drafter.observe(int(rng.integers(0, 2)), said_N, 0, best)
    for row in range(ROWS - 1):
        key_W = rng.integers(0, 2**32, 2, dtype=np.uint32) if rng.random() < 0.7 else None
        prompt_P = rng.integers(0, VOCAB, 4, dtype=np.int32)
        drafter.start_row(row, int(rng.integers(0, 3)), prompt_P, key_W)
    said_BT = rng.integers(0, VOCAB, (ROWS, 6), dtype=np.int32)
    drafter.commit(said_BT, np.array([6, 3, 0, 0], np.int32))
    return drafter, np.append(rng.integers(1, NODES + 2, ROWS - 1), 5).astype(np.int32)


RULE = st.builds(
    Rule,
    followed=st.sampled_from([1, 2, 6]),
    steps=st.just(16),
    skipped=st.sampled_from([0, 8]),
    own_text=st.booleans(),
    laws=st.booleans(),
    noise=st.booleans(),
)
SEED = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=60)
@given(SEED, RULE)
def test_trees_are_well_formed_and_hold_the_chain_first(seed, rule):
    drafter, limit_B = told(NgramTreeDrafter, seed, rule)
    trees = drafter.propose_tree(limit_B)
    draft_BK, length_B = told(NgramDrafter, seed, rule)[0].propose(limit_B)
    assert trees.count_B[-1] == 0
    for row in range(ROWS):
        count = trees.count_B[row]
        assert not trees.tokens_BN[row, count:].any()
        assert not trees.parent_BN[row, count:].any()
        depths, children = [0], {}
        for node in range(1, count + 1):
            parent, token = trees.parent_BN[row, node - 1], trees.tokens_BN[row, node - 1]
            assert 0 <= parent < node
            depths.append(depths[parent] + 1)
            children.setdefault(parent, []).append((token, node))
        assert max(depths) == trees.deepest_B[row] <= min(limit_B[row], NODES)
        for siblings in children.values():
            assert len({token for token, _ in siblings}) == len(siblings)
        at, first = 0, []
        while at in children:
            token, at = children[at][0]
            first.append(token)
        assert first == draft_BK[row, : len(first)].tolist()
        assert (count > 0) == (length_B[row] > 0)


@pytest.mark.parametrize("seed", range(3))
def test_trees_do_not_depend_on_threads_or_on_being_asked_before(seed):
    drafter, limit_B = told(NgramTreeDrafter, seed)
    once, again = drafter.propose_tree(limit_B), drafter.propose_tree(limit_B)
    threaded = told(NgramTreeDrafter, seed, threads=3)[0].propose_tree(limit_B)
    for other in (again, threaded):
        np.testing.assert_array_equal(once.columns_BX, other.columns_BX)
        np.testing.assert_array_equal(once.count_B, other.count_B)
        assert not np.shares_memory(once.tokens_BN, other.tokens_BN)


def test_the_next_node_is_the_one_most_likely_reached():
    """By hand: a law of three tokens after a match of three, and nothing known beyond them."""
    probs = {1: 0.5, 2: 0.3, 3: 0.2}
    history = History(4)
    best = BestTokens(
        np.array([[4, 0, 0], [1, 2, 3]], np.int32),
        np.log(np.array([[1, 1e-12, 1e-12], list(probs.values())])).astype(np.float32),
    )
    history.observe(0, np.array([4, 1], np.int32), 0, best)
    for key_W in (None, np.array([7, 9], np.uint32)):
        drafter = NgramTreeDrafter(1, 3, history, Rule(own_text=False, skipped=0))
        drafter.start_row(0, 0, np.array([8], np.int32), key_W)
        drafter.commit(np.array([[4]], np.int32), np.array([1], np.int32))
        trees = drafter.propose_tree(np.array([3], np.int32))
        weight = dict(probs)
        if key_W is not None:
            high, low = threefry(*key_W, np.uint32(0), np.uint32(2))
            weight = {x: p / exponential(high, low, x) for x, p in probs.items()}
        ranked = sorted(weight, key=lambda x: -weight[x])
        assert trees.tokens_BN[0].tolist() == ranked
        assert trees.parent_BN[0].tolist() == [0, 0, 0]


def test_how_deep_the_truth_leads():
    tokens_BN = np.array([[1, 2, 3, 1, 5], [1, 1, 2, 9, 9]], np.int32)
    parent_BN = np.array([[0, 0, 2, 3, 1], [0, 0, 2, 0, 0]], np.int32)
    count_B = np.array([5, 3], np.int32)
    ahead_BT = np.array([[2, 3, 1, 7, 7, 7], [1, 2, 9, 9, 9, 9]], np.int32)
    # in the second tree the first of two nodes that say 1 is followed, which has no child
    assert true_depths(tokens_BN, parent_BN, count_B, ahead_BT).tolist() == [3, 1]


def test_warm_up_takes_no_arguments_and_leaves_nothing():
    assert ngram_trees.warm_up() is None


def test_limits_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match="limit_B"):
        NgramTreeDrafter(2, 3, History(1)).propose_tree(np.array([1], np.int32))
