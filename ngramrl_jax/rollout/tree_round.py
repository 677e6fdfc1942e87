"""The jitted round of draft trees: several continuations of a row, one forward, one way kept.

Legend: B rows, N nodes of a tree, T = N + 1 tokens of a forward, V vocabulary, R best tokens of a
position.
"""

from functools import partial
from typing import cast

import jax
import jax.numpy as jnp

from ngramrl_jax.protocols import Params, Policy, TreePolicy
from ngramrl_jax.rollout.round import DecodeRule, advance, cut, pack
from ngramrl_jax.rollout.slices import map_rows
from ngramrl_jax.rollout.state import DecodeState
from ngramrl_jax.rollout.wire import unpack_trees
from ngramrl_jax.verify.adjust import adjusted_log_probs, best
from ngramrl_jax.verify.keyed import gumbel, wrap_key_data
from ngramrl_jax.verify.tree import ancestors, depth_keys, depths, verify_tree
from ngramrl_jax.verify.verdict import Verdict


def as_tree_policy(policy: Policy) -> TreePolicy:
    """The policy, which must be able to run draft trees.

    Raises:
        ValueError: It is not.
    """
    if not hasattr(policy, "forward_tree"):
        raise ValueError(
            f"draft_shape: found tree with {type(policy).__name__}, allowed: chain, as this "
            "policy has no forward_tree"
        )
    return cast(TreePolicy, policy)


def tree_round(
    policy: TreePolicy,
    rule: DecodeRule,
    params: Params,
    state: DecodeState,
    trees_BX: jax.Array,
    *,
    live: int,
) -> tuple[DecodeState, jax.Array]:
    """Verifies one draft tree a row with one target forward.

    The tokens of a tree stand one after the other in the cache, from the place of the row's last
    committed token on; those that are kept move together behind it.

    Args:
        policy: The target model.
        rule: Sampling and stop ids; the verifier is the coupled one.
        params: Parameters of the policy.
        state: Donated by the caller.
        trees_BX: int32 `[B, 1 + 2 N]`, `DraftTrees.columns_BX` from `wire.pack_drafts`.
        live: Static bound on the places to be attended, see `TreePolicy.forward_tree`.

    Returns:
        The next state and the packed `RoundResult`.
    """
    token_BN, parent_BN, count_B = unpack_trees(trees_BX)
    sees_BTT = ancestors(parent_BN)
    position_B = state.length_B - 1
    # An id outside the vocabulary is never followed anyway, but must not reach the embedding.
    known_BN = jnp.clip(token_BN, 0, policy.vocab_size - 1)
    tokens_BT = jnp.concatenate([state.last_B[:, None], known_BN], axis=1)
    logits_BTV, cache = policy.forward_tree(
        params, tokens_BT, sees_BTT, position_B, state.cache, live=live
    )
    verdict, path_BT, best_BTR, best_logp_BTR = map_rows(
        partial(_verify, rule),
        logits_BTV,
        token_BN,
        parent_BN,
        count_B,
        sees_BTT,
        state.key_data_BW,
        state.length_B,
        elements_per_row=logits_BTV[0].size,
    )
    commit = cut(verdict, best_BTR, best_logp_BTR, state.room_B, rule.stop_ids)
    cache = policy.commit_path(cache, position_B, path_BT, commit.count_B)
    return advance(state, commit, cache), pack(commit)


def _verify(
    rule: DecodeRule,
    logits_BTV: jax.Array,
    token_BN: jax.Array,
    parent_BN: jax.Array,
    count_B: jax.Array,
    sees_BTT: jax.Array,
    key_data_BW: jax.Array,
    length_B: jax.Array,
) -> tuple[Verdict, jax.Array, jax.Array, jax.Array]:
    """What is made of the logits of some rows; the best tokens are those along the path."""
    logp_BTV = adjusted_log_probs(logits_BTV, rule.sampling)
    if rule.sampling.greedy:  # a single point needs no noise
        noise_BTV = jnp.zeros_like(logp_BTV)
    else:
        key_BT = depth_keys(wrap_key_data(key_data_BW), length_B, depths(sees_BTT))
        noise_BTV = gumbel(key_BT, logp_BTV.shape[-1])
    verdict, path_BT = verify_tree(logp_BTV, token_BN, parent_BN, count_B, sees_BTT, noise_BTV)
    best_logp_BTR, best_BTR = best(logp_BTV, rule.best_tokens)
    along_BT1 = path_BT[..., None]
    best_BTR = jnp.take_along_axis(best_BTR, along_BT1, axis=1)
    best_logp_BTR = jnp.take_along_axis(best_logp_BTR, along_BT1, axis=1)
    return verdict, path_BT, best_BTR, best_logp_BTR
