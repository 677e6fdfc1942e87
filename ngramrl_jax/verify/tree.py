"""Coupled verification of draft trees: the target walks from the root with its own noise.

Legend: B rows, N nodes of a draft tree, T = N + 1 tokens of a round, of which 0 is the root, the
row's last committed token, V vocabulary.
"""

import jax.numpy as jnp
from jax import Array

from ngramrl_jax.verify.keyed import position_keys, sample
from ngramrl_jax.verify.verdict import Verdict


def ancestors(parent_BN: Array) -> Array:
    """Which tokens of its tree each token sees: itself and those on the way to it, bool [B, T, T].

    Args:
        parent_BN: int32, the token that node n + 1 continues, 0 .. n.
    """
    nodes = parent_BN.shape[1]
    parent_BT = jnp.pad(parent_BN, ((0, 0), (1, 0)))
    token_T = jnp.arange(nodes + 1, dtype=jnp.int32)
    own_1TT = jnp.eye(nodes + 1, dtype=jnp.bool_)[None]
    sees_BTT = own_1TT | (parent_BT[:, :, None] == token_T[None, None])
    # Ways of up to 1, 2, 4, ... steps: two of the same length make one twice as long.
    for _ in range(max(nodes - 1, 0).bit_length()):
        ways_BTT = jnp.matmul(sees_BTT.astype(jnp.float32), sees_BTT.astype(jnp.float32))
        sees_BTT = ways_BTT > 0
    return sees_BTT


def depths(sees_BTT: Array) -> Array:
    """How far each token is from the root, int32 [B, T]."""
    return jnp.sum(sees_BTT, axis=2, dtype=jnp.int32) - 1


def depth_keys(key_B: Array, length_B: Array, depth_BT: Array) -> Array:
    """The keys of what is sampled after each token: those of plain decoding at its position.

    Args:
        key_B: Row keys.
        length_B: int32, committed tokens; what comes after the root stands at this position.
        depth_BT: int32, of each token.
    """
    key_BT = position_keys(key_B, length_B, depth_BT.shape[1])
    return jnp.take_along_axis(key_BT, depth_BT, axis=1)


def verify_tree(
    logp_BTV: Array,
    token_BN: Array,
    parent_BN: Array,
    count_B: Array,
    sees_BTT: Array,
    noise_BTV: Array,
) -> tuple[Verdict, Array]:
    """Follows the nodes that the target samples with its own noise.

    The target is sampled after every token. From the root on, the child that is the sample is
    followed, if there is one; the first sample without such a child is emitted. A node is thus on
    the way exactly if it and all nodes above it are what was sampled after their parents, so the
    walk needs no loop. As for a chain (`verify_coupled`), the committed tokens are those that plain
    decoding draws with the same noise, whatever the tree was; a chain is a tree.

    Args:
        logp_BTV: float32 adjusted log-probabilities after each token.
        token_BN: int32 draft tokens. Anything goes: ids outside the vocabulary are never sampled.
        parent_BN: int32, the token that each node continues, 0 .. n for node n + 1.
        count_B: int32, how many of the nodes count, 0 .. N.
        sees_BTT: From `ancestors`.
        noise_BTV: Gumbel noise with `depth_keys`: by position, so that siblings share it.

    Returns:
        The verdict, and `path_BT`: the tokens on the way, root first, of which `accepted_B + 1`
        mean anything.
    """
    nodes = token_BN.shape[1]
    sample_BT = sample(logp_BTV, noise_BTV)
    good_BN = _as_sampled(sample_BT, token_BN, parent_BN, count_B)
    good_BT = jnp.pad(good_BN, ((0, 0), (1, 0)), constant_values=True)
    on_way_BT = ~jnp.any(sees_BTT & ~good_BT[:, None], axis=2)
    accepted_B = jnp.sum(on_way_BT, axis=1, dtype=jnp.int32) - 1
    # A token comes after those above it: the way in rising order is the way from the root.
    token_T = jnp.arange(nodes + 1, dtype=jnp.int32)
    path_BT = jnp.sort(jnp.where(on_way_BT, token_T[None], nodes), axis=1)
    tokens_BT = jnp.take_along_axis(sample_BT, path_BT, axis=1)
    logp_BT = jnp.take_along_axis(logp_BTV, sample_BT[..., None], axis=2)[..., 0]
    logp_BT = jnp.take_along_axis(logp_BT, path_BT, axis=1)
    return Verdict(tokens_BT, accepted_B, logp_BT), path_BT


def _as_sampled(sample_BT: Array, token_BN: Array, parent_BN: Array, count_B: Array) -> Array:
    """Which nodes are what was sampled after their parents, bool [B, N].

    Of siblings that say the same the first one stands for all.
    """
    node_N = jnp.arange(token_BN.shape[1], dtype=jnp.int32)
    siblings_BNN = parent_BN[:, :, None] == parent_BN[:, None]
    twins_BNN = siblings_BNN & (token_BN[:, :, None] == token_BN[:, None])
    again_BN = jnp.any(twins_BNN & (node_N[:, None] > node_N[None])[None], axis=2)
    sampled_BN = jnp.take_along_axis(sample_BT, parent_BN, axis=1)
    return (node_N[None] < count_B[:, None]) & (sampled_BN == token_BN) & ~again_BN
