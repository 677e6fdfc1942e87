"""A policy whose law is a table, so that every sequence probability is known exactly.

Legend: B rows, T tokens of a forward, V vocabulary, S cache capacity.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from ngramrl_jax.types import Float32Array


@dataclass(frozen=True)
class TablePolicy:
    """Implements `Policy`: logits depend on the last two tokens, the earlier one out of the cache.

    Parameters are the table `[V, V, V]`. The cache holds token ids, so a row that reads another
    row's cache, or a rejected token, draws from a visibly wrong law.

    Attributes:
        vocab_size: V.
    """

    vocab_size: int

    def init_cache(self, rows: int, capacity: int) -> jax.Array:
        """No token anywhere."""
        return jnp.full((rows, capacity), -1, jnp.int32)

    def forward(
        self,
        params: jax.Array,
        tokens_BT: jax.Array,
        position_B: jax.Array,
        cache: jax.Array,
        *,
        live: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Stores the tokens and looks their logits up; the token before the first counts as 0."""
        T = tokens_BT.shape[1]
        row_B1 = jnp.arange(tokens_BT.shape[0])[:, None]
        position_BT = position_B[:, None] + jnp.arange(T, dtype=jnp.int32)[None, :]
        cache = cache.at[row_B1, position_BT].set(tokens_BT, mode="drop")
        before_BT = cache[:, :live].at[row_B1, jnp.maximum(position_BT - 1, 0)].get(mode="clip")
        before_BT = jnp.where(position_BT > 0, before_BT, 0)
        return params[before_BT, tokens_BT], cache

    def commit(self, cache: jax.Array, position_B: jax.Array, count_B: jax.Array) -> jax.Array:
        """Rejected tokens are written over later."""
        return cache

    def forward_tree(
        self,
        params: jax.Array,
        tokens_BT: jax.Array,
        sees_BTT: jax.Array,
        position_B: jax.Array,
        cache: jax.Array,
        *,
        live: int,
    ) -> tuple[jax.Array, jax.Array]:
        """As `forward`, but the token before is the deepest of those that a token sees."""
        _, cache = self.forward(params, tokens_BT, position_B, cache, live=live)
        T = tokens_BT.shape[1]
        depth_BT = jnp.sum(sees_BTT, axis=2, dtype=jnp.int32)
        others_BTT = sees_BTT & ~jnp.eye(T, dtype=jnp.bool_)[None]
        parent_BT = jnp.argmax(jnp.where(others_BTT, depth_BT[:, None], 0), axis=2)
        before_BT = jnp.take_along_axis(tokens_BT, parent_BT, axis=1)
        last_B1 = jnp.maximum(position_B - 1, 0)[:, None]
        root_B1 = jnp.where(position_B[:, None] > 0, jnp.take_along_axis(cache, last_B1, 1), 0)
        before_BT = jnp.where(depth_BT > 1, before_BT, root_B1)
        return params[before_BT, tokens_BT], cache

    def commit_path(
        self, cache: jax.Array, position_B: jax.Array, path_BT: jax.Array, count_B: jax.Array
    ) -> jax.Array:
        """The tokens of the path take the places from the root's on."""
        rows, capacity = cache.shape
        step_1T = jnp.arange(path_BT.shape[1], dtype=jnp.int32)[None]
        source_BT = jnp.minimum(position_B[:, None] + path_BT, capacity - 1)
        place_BT = jnp.where(step_1T < count_B[:, None], position_B[:, None] + step_1T, capacity)
        path_ids_BT = jnp.take_along_axis(cache, source_BT, axis=1)
        return cache.at[jnp.arange(rows)[:, None], place_BT].set(path_ids_BT, mode="drop")

    def insert(
        self, cache: jax.Array, prefixes: jax.Array, source_B: jax.Array, slot_B: jax.Array
    ) -> jax.Array:
        """Copies rows of ids."""
        width = prefixes.shape[1]
        return cache.at[slot_B, :width].set(prefixes[source_B], mode="drop")


def random_table(vocab: int, seed: int, spread: float = 1.5) -> Float32Array:
    """A table of normal logits, float32 `[V, V, V]`."""
    rng = np.random.default_rng(seed)
    return (spread * rng.standard_normal((vocab,) * 3)).astype(np.float32)
