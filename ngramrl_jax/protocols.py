"""The seam between the library and a language model.

Legend: B rows, T tokens of a forward, V vocabulary, S cache capacity, N prefixes.
"""

from typing import Any, Protocol

import jax

Params = Any
Cache = Any


class Policy(Protocol):
    """A causal language model as pure functions over explicit parameters and cache.

    `Params` and `Cache` are opaque pytrees. All methods are traceable under `jax.jit`; `live` is
    static. Positions at or past a row's own are never attended, whatever the cache holds there:
    that is how rejected drafts disappear.
    """

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        ...

    def init_cache(self, rows: int, capacity: int) -> Cache:
        """An empty cache for `rows` rows of `capacity` positions each."""
        ...

    def forward(
        self,
        params: Params,
        tokens_BT: jax.Array,
        position_B: jax.Array,
        cache: Cache,
        *,
        live: int,
    ) -> tuple[jax.Array, Cache]:
        """Runs T tokens of every row and stores their keys and values.

        Args:
            params: Parameters of the model.
            tokens_BT: int32 ids; row b's token t stands at position `position_B[b] + t`.
            position_B: int32, the position of each row's first token.
            cache: Holds positions `0 .. position_B[b] - 1` of row b. Writes past the capacity
                are dropped.
            live: Static; attend to cache positions `< live` only. The caller guarantees
                `max(position_B) + T <= live` for rows that matter.

        Returns:
            `logits_BTV` float32, the next-token logits at each token, and the new cache.
        """
        ...

    def commit(self, cache: Cache, position_B: jax.Array, count_B: jax.Array) -> Cache:
        """Keeps the first `count_B[b]` of the tokens just run from `position_B[b]` on.

        A cache addressed by position has nothing to do; one that carries a running state, or a
        draft tree to be compacted, selects here.
        """
        ...

    def insert(
        self, cache: Cache, prefixes: Cache, source_B: jax.Array, slot_B: jax.Array
    ) -> Cache:
        """Copies row `source_B[i]` of `prefixes` into row `slot_B[i]` of `cache`, for every i.

        Entries with `slot_B[i]` equal to the number of rows of `cache` are dropped. The prefix
        cache may have a smaller capacity; the rest of the row keeps what it held.
        """
        ...


class TreePolicy(Policy, Protocol):
    """A policy that can also run draft trees: T tokens of a row that are not one text.

    Token 0 is the root, the row's last committed token, at position `position_B[b]`; each other
    token continues one that comes before it. A token's *place* in the cache,
    `position_B[b] + t`, says nothing of its position in the text, which is `position_B[b]` + its
    depth.
    """

    def forward_tree(
        self,
        params: Params,
        tokens_BT: jax.Array,
        sees_BTT: jax.Array,
        position_B: jax.Array,
        cache: Cache,
        *,
        live: int,
    ) -> tuple[jax.Array, Cache]:
        """Runs the trees' tokens and stores their keys and values, token t at its place.

        Args:
            params: Parameters of the model.
            tokens_BT: int32 ids, the root first.
            sees_BTT: bool, `sees_BTT[b, t, u]` is True where u is t or on the way to it. Its row
                sums less 1 are the depths.
            position_B: int32, position and place of each row's root.
            cache: Holds positions `0 .. position_B[b] - 1` of row b, which every token sees.
            live: Static; as in `forward`, for places.

        Returns:
            `logits_BTV` float32, the next-token logits after each token, and the new cache.
        """
        ...

    def commit_path(
        self, cache: Cache, position_B: jax.Array, path_BT: jax.Array, count_B: jax.Array
    ) -> Cache:
        """Keeps the first `count_B[b]` tokens of a path through the tree just run.

        Token `path_BT[b, i]` of the tree becomes that of position `position_B[b] + i`. Paths start
        at the root, and rise.
        """
        ...
