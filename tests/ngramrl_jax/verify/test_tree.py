"""The walk through draft trees: against the oracle, as a chain's, and by the law of what it says.

A correct walk fails the chi-square test with probability ALPHA (the seed is fixed: once green, it
stays green); every planted fault must fail the same test.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax import stats
from ngramrl_jax.host.trees import DraftTrees
from ngramrl_jax.verify import oracle
from ngramrl_jax.verify.coupled import verify_coupled
from ngramrl_jax.verify.keyed import gumbel, position_keys
from ngramrl_jax.verify.tree import ancestors, depth_keys, depths, verify_tree
from tests.support.tree_drafters import random_trees

B, N, V = 256, 7, 5
ALPHA = 1e-3
verify = jax.jit(verify_tree)


def walk_up(parent_N, node):
    """The tokens that a node sees, itself first."""
    seen = [node]
    while seen[-1]:
        seen.append(int(parent_N[seen[-1] - 1]))
    return seen


def random_case(seed):
    """Laws with zeros, trees of all shapes, with twins, impossible ids and what is sampled."""
    rng = np.random.default_rng(seed)
    trees = random_trees(rng, rng.integers(0, N + 1, B), N, -1, V + 1)
    logits = 2 * rng.normal(size=(B, N + 1, V))
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[..., 0] = np.where(np.isinf(logits[..., 0]), 0.0, logits[..., 0])
    logp = np.asarray(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)))
    key_B = jax.random.split(jax.random.key(seed), B)
    length_B = jnp.asarray(rng.integers(1, 99, B), jnp.int32)
    depth_BT = depths(ancestors(jnp.asarray(trees.parent_BN)))
    said = np.argmax(logp + gumbel(depth_keys(key_B, length_B, depth_BT), V), axis=2)
    after_parent_BN = np.take_along_axis(said, trees.parent_BN, axis=1)
    true_BN = rng.random((B, N)) < 0.5
    trees.tokens_BN[true_BN] = after_parent_BN[true_BN]
    return trees, logp, key_B, length_B


def tree_verdict(logp, trees, key_B, length_B, keys=depth_keys, law=verify):
    sees = ancestors(jnp.asarray(trees.parent_BN))
    noise = gumbel(keys(key_B, length_B, depths(sees)), logp.shape[-1])
    verdict, path = law(
        jnp.asarray(logp), trees.tokens_BN, trees.parent_BN, trees.count_B, sees, noise
    )
    return jax.device_get((verdict, path, noise))


def test_ancestors_and_depths_are_those_of_walking_up():
    trees, *_ = random_case(0)
    sees = ancestors(jnp.asarray(trees.parent_BN))
    expected = np.zeros((B, N + 1, N + 1), bool)
    for row in range(B):
        for node in range(N + 1):
            expected[row, node, walk_up(trees.parent_BN[row], node)] = True
    np.testing.assert_array_equal(sees, expected)
    np.testing.assert_array_equal(depths(sees), expected.sum(axis=2) - 1)


@pytest.mark.parametrize("nodes", [0, 1, 2, 16, 33])
def test_the_last_of_a_chain_sees_all(nodes):
    parent = jnp.arange(nodes, dtype=jnp.int32)[None]
    np.testing.assert_array_equal(ancestors(parent)[0], np.tril(np.ones((nodes + 1,) * 2, bool)))


def test_the_key_of_a_depth_is_that_of_its_position():
    """Whatever the number of rows: one row with deeper nodes than that."""
    key_B, length_B = jax.random.split(jax.random.key(5), 1), jnp.array([4], jnp.int32)
    depth_BT = jnp.array([[0, 1, 1, 2, 3]], jnp.int32)
    expected = [jax.random.fold_in(key_B[0], 4 + depth) for depth in depth_BT[0].tolist()]
    found = jax.random.key_data(depth_keys(key_B, length_B, depth_BT)[0])
    np.testing.assert_array_equal(found, jax.random.key_data(jnp.stack(expected)))


@pytest.mark.parametrize("seed", range(3))
def test_the_walk_is_the_oracles(seed):
    trees, logp, key_B, length_B = random_case(seed)
    verdict, path, noise = tree_verdict(logp, trees, key_B, length_B)
    for row in range(B):
        said = oracle.tree_verdict(
            np.exp(logp[row]),
            trees.tokens_BN[row],
            trees.parent_BN[row],
            int(trees.count_B[row]),
            noise[row],
        )
        count = said.accepted + 1
        assert verdict.accepted_B[row] == said.accepted
        assert verdict.tokens_BT[row, :count].tolist() == said.tokens
        np.testing.assert_allclose(verdict.logp_BT[row, :count], said.logps, atol=1e-5)
        for place, node in enumerate(path[row, :count]):
            seen = walk_up(trees.parent_BN[row], int(node))
            assert seen[::-1] == path[row, : place + 1].tolist()
    assert len(set(verdict.accepted_B.tolist())) > 3


def test_a_chain_is_a_tree():
    rng = np.random.default_rng(3)
    logp = jax.nn.log_softmax(jnp.asarray(2 * rng.normal(size=(B, N + 1, V)), jnp.float32))
    key_B = jax.random.split(jax.random.key(0), B)
    length_B = jnp.full(B, 5, jnp.int32)
    noise = gumbel(position_keys(key_B, length_B, N + 1), V)
    draft = np.array(jnp.argmax(logp + noise, axis=2)[:, :N], np.int32)
    draft[rng.random(draft.shape) < 0.2] = 0
    count = rng.integers(0, N + 1, B).astype(np.int32)
    chain = verify_coupled(logp, jnp.asarray(draft), jnp.asarray(count), noise)
    parent = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32)[None], (B, N))
    tree, path = verify(logp, draft, parent, count, ancestors(parent), noise)
    for row, accepted in enumerate(chain.accepted_B.tolist()):
        np.testing.assert_array_equal(path[row, : accepted + 1], np.arange(accepted + 1))
        for one, other in ((tree.tokens_BT, chain.tokens_BT), (tree.logp_BT, chain.logp_BT)):
            np.testing.assert_array_equal(one[row, : accepted + 1], other[row, : accepted + 1])
    np.testing.assert_array_equal(tree.accepted_B, chain.accepted_B)


# A bush over three tokens: two and then three continuations, one of them two deep twice over.
TOKENS = np.array([0, 1, 0, 1, 2, 2], np.int32)
PARENTS = np.array([0, 0, 1, 1, 2, 3], np.int32)
DRAWS, SMALL = 20_000, 3


def text_counts(keys, law):
    """How often the walk said which text of three tokens, plain decoding going on after it."""
    rng = np.random.default_rng(8)
    table = np.asarray(jax.nn.log_softmax(jnp.asarray(rng.normal(size=(SMALL,) * 3), jnp.float32)))
    before = [0] + [int(TOKENS[parent - 1]) if parent else 0 for parent in PARENTS]
    last = [0, *TOKENS.tolist()]
    grand = [0, *(before[node] if parent else 0 for node, parent in enumerate(PARENTS, 1))]
    logp = np.stack([table[grand[node], last[node]] for node in range(len(TOKENS) + 1)])
    key_B = jax.random.split(jax.random.key(4), DRAWS)
    length_B = jnp.full(DRAWS, 9, jnp.int32)

    def all_rows(row):
        return np.broadcast_to(row, (DRAWS, *row.shape))

    count_B = np.full(DRAWS, len(TOKENS), np.int32)
    trees = DraftTrees(all_rows(TOKENS), all_rows(PARENTS), count_B, count_B)
    verdict, _, _ = tree_verdict(all_rows(logp), trees, key_B, length_B, keys, law)
    rest_BD = np.asarray(gumbel(position_keys(key_B, length_B, 3), SMALL))
    counts = np.zeros((SMALL,) * 3)
    for row in range(DRAWS):
        text = verdict.tokens_BT[row, : verdict.accepted_B[row] + 1].tolist()[:3]
        while len(text) < 3:
            context = [0, 0, *text]
            text.append(int(np.argmax(table[context[-2], context[-1]] + rest_BD[row, len(text)])))
        counts[tuple(text)] += 1
    expected = np.exp(table[0, 0])[:, None, None] * np.exp(table[0])[:, :, None] * np.exp(table)
    return counts.ravel(), expected.ravel()


def keyed_by_node(key_B, length_B, depth_BT):
    return position_keys(key_B, length_B, depth_BT.shape[1])


def one_noise_for_all(key_B, length_B, depth_BT):
    """All tokens of a tree have the root's noise."""
    return position_keys(key_B, length_B, 1)[:, jnp.zeros(depth_BT.shape[1], jnp.int32)]


def any_sibling(logp, token, parent, count, sees, noise):
    """Accepts the first node half of the time, whether or not it was sampled."""
    verdict, path = verify_tree(logp, token, parent, count, sees, noise)
    forced = noise[:, 0, 0] > 0
    first_B = jnp.where(forced, token[:, 0], verdict.tokens_BT[:, 0])
    tokens = verdict.tokens_BT.at[:, 0].set(first_B)
    return verdict._replace(tokens_BT=tokens), path


def follows_the_law(keys, law=verify):
    counts, expected = text_counts(keys, law)
    return stats.chi_square(counts, expected).p_value > ALPHA


def test_texts_follow_the_law():
    assert follows_the_law(depth_keys)


@pytest.mark.parametrize(
    ("keys", "law"),
    [(keyed_by_node, verify), (one_noise_for_all, verify), (depth_keys, any_sibling)],
)
def test_planted_faults_are_caught(keys, law):
    assert not follows_the_law(keys, law)
