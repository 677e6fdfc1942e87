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
