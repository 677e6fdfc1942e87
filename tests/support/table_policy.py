"""A policy whose law is a table, so that every sequence probability is known exactly.

Legend: B rows, T tokens of a forward, V vocabulary, S cache capacity.
"""

from dataclasses import dataclass
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class TablePolicy:
    """Implements `Policy`: logits depend on the last two tokens, the earlier one out of the cache.

    `params` is the table `[V, V, V]`. The cache holds token ids, so a row that reads another row's
    cache, or a rejected token, draws from a visibly wrong law.
    """

    vocab_size: int

    def init_cache(self, rows: int, capacity: int) -> jax.Array:
        return jnp.full((rows, capacity), -1, jnp.int32)

    def forward(self, params, tokens_BT, position_B, cache, *, live):
        T = tokens_BT.shape[1]
        row_B1 = jnp.arange(tokens_BT.shape[0])[:, None]
        position_BT = position_B[:, None] + jnp.arange(T, dtype=jnp.int32)[None, :]
        cache = cache.at[row_B1, position_BT].set(tokens_BT, mode="drop")
        before_BT = cache[:, :live].at[row_B1, jnp.maximum(position_BT - 1, 0)].get(mode="clip")
        before_BT = jnp.where(position_BT > 0, before_BT, 0)
        return params[before_BT, tokens_BT], cache

    def commit(self, cache, position_B, count_B):
        return cache

    def insert(self, cache, prefixes, source_B, slot_B):
        width = prefixes.shape[1]
        return cache.at[slot_B, :width].set(prefixes[source_B], mode="drop")


def random_table(vocab: int, seed: int, spread: float = 1.5) -> np.ndarray:
    """A table of normal logits, float32 `[V, V, V]`."""
    rng = np.random.default_rng(seed)
    return (spread * rng.standard_normal((vocab,) * 3)).astype(np.float32)


def response_law(
    adjusted_VVV: np.ndarray, prompt: list[int], stop: int, longest: int
) -> dict[tuple[int, ...], float]:
    """Probability of every complete response, given adjusted probabilities `[V, V, V]`."""
    vocab = adjusted_VVV.shape[0]
    law = {}
    for length in range(1, longest + 1):
        for tokens in product(range(vocab), repeat=length):
            ended = tokens[-1] == stop
            if stop in tokens[:-1] or not (ended or length == longest):
                continue
            context = [0, *prompt]
            probability = 1.0
            for token in tokens:
                probability *= adjusted_VVV[context[-2], context[-1], token]
                context.append(token)
            law[tokens] = probability
    return law
