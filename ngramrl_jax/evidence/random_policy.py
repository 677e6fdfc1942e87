"""A small causal transformer with random weights: real attention, cache and rounding, no files.

Legend: B rows, T tokens of a forward, V vocabulary, S cache capacity, L layers, D width, M width of
the hidden layer.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

_RECENCY = 0.2  # each position further back counts this much less, in nats
_SPREAD = 3.0  # standard deviation of the logits

Params = dict[str, jax.Array]


class KeysAndValues(NamedTuple):
    """The cache, both in the policy's dtype.

    Attributes:
        keys_LBSD: Keys of every layer, row and position.
        values_LBSD: Values likewise.
    """

    keys_LBSD: jax.Array
    values_LBSD: jax.Array


@dataclass(frozen=True)
class RandomPolicy:
    """Implements `Policy` with one attention head a layer.

    Attributes:
        vocab_size: V.
        width: D.
        layers: L.
        dtype: Of the computation and the cache; parameters are float32.
    """

    vocab_size: int = 96
    width: int = 64
    layers: int = 2
    dtype: DTypeLike = jnp.float32

    def init_params(self, key: jax.Array) -> Params:
        """Random weights that keep activations at about unit size."""
        V, D, L, M = self.vocab_size, self.width, self.layers, 2 * self.width
        shapes = {
            "embedding_VD": (V, D),
            "attention_LXDD": (L, 4, D, D),
            "up_LDM": (L, D, M),
            "down_LMD": (L, M, D),
            "head_DV": (D, V),
        }
        keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
        params = {
            name: jax.random.normal(keys[name], shape) * shape[-2] ** -0.5
            for name, shape in shapes.items()
        }
        return params | {"head_DV": _SPREAD * params["head_DV"]}

    def init_cache(self, rows: int, capacity: int) -> KeysAndValues:
        """All zeros."""
        shape = (self.layers, rows, capacity, self.width)
        return KeysAndValues(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))

    def forward(
        self,
        params: Params,
        tokens_BT: jax.Array,
        position_B: jax.Array,
        cache: KeysAndValues,
        *,
        live: int,
    ) -> tuple[jax.Array, KeysAndValues]:
        """Runs the tokens against the cache; see `Policy.forward`."""
        weights = {name: weight.astype(self.dtype) for name, weight in params.items()}
        offset_1T = jnp.arange(tokens_BT.shape[1], dtype=jnp.int32)[None]
        position_BT = position_B[:, None] + offset_1T
        row_B1 = jnp.arange(tokens_BT.shape[0])[:, None]
        keys_LBSD, values_LBSD = cache
        x_BTD = _unit(weights["embedding_VD"][tokens_BT])
        for layer in range(self.layers):
            query, key, value, out = weights["attention_LXDD"][layer]
            y_BTD = _unit(x_BTD)
            at = (layer, row_B1, position_BT)
            keys_LBSD = keys_LBSD.at[at].set(y_BTD @ key, mode="drop")
            values_LBSD = values_LBSD.at[at].set(y_BTD @ value, mode="drop")
            mixed_BTD = _attend(
                y_BTD @ query, keys_LBSD[layer, :, :live], values_LBSD[layer, :, :live], position_BT
            )
            x_BTD = x_BTD + mixed_BTD @ out
            hidden_BTM = jax.nn.gelu(_unit(x_BTD) @ weights["up_LDM"][layer])
            x_BTD = x_BTD + hidden_BTM @ weights["down_LMD"][layer]
        logits_BTV = (_unit(x_BTD) @ weights["head_DV"]).astype(jnp.float32)
        return logits_BTV, KeysAndValues(keys_LBSD, values_LBSD)

    def commit(
        self, cache: KeysAndValues, position_B: jax.Array, count_B: jax.Array
    ) -> KeysAndValues:
        """Rejected positions are written over later."""
        return cache

    def insert(
        self,
        cache: KeysAndValues,
        prefixes: KeysAndValues,
        source_B: jax.Array,
        slot_B: jax.Array,
    ) -> KeysAndValues:
        """Copies rows of keys and values."""
        width = prefixes.keys_LBSD.shape[2]
        return KeysAndValues(
            *(
                mine.at[:, slot_B, :width].set(theirs[:, source_B], mode="drop")
                for mine, theirs in zip(cache, prefixes, strict=True)
            )
        )


def _attend(
    query_BTD: jax.Array, keys_BSD: jax.Array, values_BSD: jax.Array, position_BT: jax.Array
) -> jax.Array:
    score_BTS = jnp.einsum("btd,bsd->bts", query_BTD, keys_BSD).astype(jnp.float32)
    score_BTS = score_BTS * query_BTD.shape[-1] ** -0.5
    place_S = jnp.arange(keys_BSD.shape[1], dtype=jnp.int32)
    back_BTS = position_BT[..., None] - place_S[None, None]
    score_BTS = jnp.where(
        back_BTS >= 0, score_BTS - _RECENCY * back_BTS.astype(jnp.float32), -jnp.inf
    )
    share_BTS = jax.nn.softmax(score_BTS, axis=-1).astype(values_BSD.dtype)
    return jnp.einsum("bts,bsd->btd", share_BTS, values_BSD)


def _unit(x_BTD: jax.Array) -> jax.Array:
    """Root mean square 1 along the width."""
    exact = x_BTD.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(exact**2, axis=-1, keepdims=True) + 1e-6)
    return (exact * scale).astype(x_BTD.dtype)
