"""A draft tree says along each branch what the branch says as a text, also after one is kept."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import cache as kv
from models.policy import Qwen3Policy
from models.tree import keep_path, tree_mask

ROWS, PROMPT, NODES, CAPACITY = 3, 7, 6, 24
# nodes from 1 on, the parent of each: row 0 a chain, row 1 two branches, row 2 a bush
PARENT_BN = np.array([[0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4], [0, 0, 0, 1, 1, 5]], np.int32)
PATHS = ([0, 1, 2, 3, 4, 5, 6], [0, 2, 4, 6], [0, 1, 5, 6])

forward = jax.jit(Qwen3Policy.forward, static_argnums=0, static_argnames="live")
forward_tree = jax.jit(Qwen3Policy.forward_tree, static_argnums=0, static_argnames="live")


def ancestors(parent_BN):
    """By walking up, node after node."""
    sees = np.zeros((ROWS, NODES + 1, NODES + 1), bool)
    for row in range(ROWS):
        for node in range(NODES + 1):
            at = node
            while True:
                sees[row, node, at] = True
                if at == 0:
                    break
                at = parent_BN[row, at - 1]
    return sees


@pytest.fixture(scope="module")
def case(small_policy, small_params):
    """A prefix of different lengths in the rows' caches, and a tree behind it."""
    rng = np.random.default_rng(0)
    vocab = small_policy.vocab_size
    texts = rng.integers(0, vocab, (ROWS, PROMPT), dtype=np.int32)
    position_B = np.array([PROMPT, 3, 5], np.int32)
    tree = rng.integers(0, vocab, (ROWS, NODES + 1), dtype=np.int32)
    cache = small_policy.init_cache(ROWS, CAPACITY)
    start_B = jnp.zeros(ROWS, jnp.int32)
    _, cache = forward(
        small_policy, small_params, jnp.asarray(texts), start_B, cache, live=CAPACITY
    )
    return texts, position_B, tree, cache


def run_tree(policy, params, case, sees):
    _, position_B, tree, cache = case
    return forward_tree(
        policy,
        params,
        jnp.asarray(tree),
        jnp.asarray(sees),
        jnp.asarray(position_B),
        cache,
        live=CAPACITY,
    )


@partial(jax.jit, static_argnums=0)
def _logits(policy, params, tokens_BT):
    return policy.logits(params, policy.hidden(params, tokens_BT))


def text_logits(policy, params, *parts):
    """Logits after every token of a whole text."""
    text = np.concatenate(parts)
    padded_1T = np.zeros((1, CAPACITY), np.int32)
    padded_1T[0, : len(text)] = text
    return np.asarray(_logits(policy, params, jnp.asarray(padded_1T)))[0, : len(text)]


def largest_gap(policy, params, case, sees):
    texts, position_B, tree, _ = case
    logits_BTV, _ = run_tree(policy, params, case, sees)
    gaps = []
    for row, path in enumerate(PATHS):
        expected = text_logits(policy, params, texts[row, : position_B[row]], tree[row, path])
        gaps.append(np.abs(logits_BTV[row, path] - expected[-len(path) :]).max())
    return max(gaps)


def test_every_branch_is_a_text(small_policy, small_params, case):
    assert largest_gap(small_policy, small_params, case, ancestors(PARENT_BN)) < 1e-4


def test_padding_of_the_vocabulary_is_forbidden_in_trees_too(small_policy, small_params, case):
    tokens = small_policy.vocab_size - 3
    logits_BTV, _ = run_tree(
        replace(small_policy, tokens=tokens), small_params, case, ancestors(PARENT_BN)
    )
    assert np.isneginf(logits_BTV[..., tokens:]).all()
    assert np.isfinite(logits_BTV[..., :tokens]).all()


def test_a_wrong_mask_or_depth_is_seen(small_policy, small_params, case):
    sees = ancestors(PARENT_BN)
    others = sees.copy()
    others[1, 4, 1] = True  # a token of the other branch, and so a wrong depth as well
    grandparent = sees.copy()
    grandparent[2, 6, 1] = False
    for wrong in (others, grandparent, np.broadcast_to(np.tril(np.ones_like(sees[0])), sees.shape)):
        assert largest_gap(small_policy, small_params, case, wrong) > 1e-2


def test_decoding_goes_on_behind_the_path_that_was_kept(small_policy, small_params, case):
    texts, position_B, tree, _ = case
    _, cache = run_tree(small_policy, small_params, case, ancestors(PARENT_BN))
    path_BT = np.full((ROWS, NODES + 1), NODES, np.int32)
    for row, path in enumerate(PATHS):
        path_BT[row, : len(path)] = path
    count_B = np.array([len(path) for path in PATHS], np.int32)
    cache = small_policy.commit_path(cache, *map(jnp.asarray, (position_B, path_BT, count_B)))
    next_B = np.array([3, 1, 4], np.int32)
    logits_BTV, _ = forward(
        small_policy,
        small_params,
        jnp.asarray(next_B[:, None]),
        jnp.asarray(position_B + count_B),
        cache,
        live=CAPACITY,
    )
    for row, path in enumerate(PATHS):
        before, after = texts[row, : position_B[row]], next_B[row : row + 1]
        expected = text_logits(small_policy, small_params, before, tree[row, path], after)[-1]
        np.testing.assert_allclose(logits_BTV[row, 0], expected, atol=1e-4)


def test_a_path_is_moved_and_nothing_else():
    rng = np.random.default_rng(1)
    shape = (2, 2, 3, 8, 4)
    cache = kv.KVCache(*(jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(2)))
    position_B, count_B = np.array([1, 5], np.int32), np.array([3, 2], np.int32)
    path_BT = np.array([[0, 2, 3, 3], [0, 2, 3, 3]], np.int32)  # row 1 ends at the capacity
    moved = jax.jit(keep_path)(cache, *map(jnp.asarray, (position_B, path_BT, count_B)))
    for before, after in zip(cache, moved, strict=True):
        expected = np.array(before)
        expected[:, 0, :, 2:4] = np.array(before)[:, 0, :, 3:5]
        expected[:, 1, :, 6] = np.array(before)[:, 1, :, 7]
        np.testing.assert_array_equal(after, expected)


def test_the_mask_of_a_chain_is_the_causal_one():
    position_B = jnp.asarray([0, 3, 7], jnp.int32)
    chain = jnp.broadcast_to(jnp.tril(jnp.ones((4, 4), bool))[None], (3, 4, 4))
    mask = jax.jit(partial(tree_mask, live=9))(chain, position_B)  # row 2 runs past the end
    position_BT = np.asarray(position_B)[:, None] + np.arange(4)[None]
    np.testing.assert_array_equal(mask, np.arange(9)[None, None] <= position_BT[:, :, None])


def test_a_path_is_moved_in_place():
    cache = kv.KVCache(*(jax.ShapeDtypeStruct((2, 4, 2, 512, 16), jnp.float32) for _ in range(2)))
    position_B, count_B = (jax.ShapeDtypeStruct((4,), jnp.int32) for _ in range(2))
    path_BT = jax.ShapeDtypeStruct((4, 5), jnp.int32)
    jitted = jax.jit(keep_path, donate_argnums=0)
    memory = jitted.lower(cache, position_B, path_BT, count_B).compile().memory_analysis()
    assert memory.temp_size_in_bytes < cache.key_LBJSE.size * 4 / 10
