"""A Qwen3 model as pure functions over explicit parameters and cache.

Legend: B rows, T tokens of a forward, V vocabulary, D model width, N prefixes.

`Qwen3Policy` has the methods that a rollout engine asks of a policy, plus those that a trainer
needs. Parameters are a plain nested dict of arrays: cheaper to dispatch than an `nnx.State`, and
what optax, Orbax and the sharding table take as it is.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from models import cache as kv
from models.attention import AttentionName, check_attention
from models.config import ModelConfig
from models.qwen3 import Qwen3
from models.sharding import HIDDEN_AXES, LOGIT_AXES, TABLE_AXES, batch_sharding, shardings
from models.tree import keep_path

Params = dict[str, Any]


@dataclass(frozen=True)
class Qwen3Policy:
    """The model of a configuration, without its weights; hashable, so that jit can close over it.

    Attributes:
        config: Architecture.
        dtype: Dtype of the computation and of the cache. Parameters keep their own.
        attention: How a round attends to its cache, see `models.attention`.
        tokens: How many ids, from 0 on, are tokens; None where all are. The others are padding of
            the vocabulary: their logits are -inf, in rollouts as in training.
        mesh: Where training runs. Activations stay split by rows there: left alone, the compiler
            may split a product over fsdp by its inner axis and gather whole batches of logits
            where it should gather weights. None for one device, and for rollouts, whose engine
            says where rows lie.

    Raises:
        ValueError: No attention has that name.
    """

    config: ModelConfig
    dtype: DTypeLike = jnp.float32
    attention: AttentionName = "auto"
    tokens: int | None = None
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        check_attention(self.attention)

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""
        return self.config.vocab_size

    def init_params(self, key: jax.Array, dtype: DTypeLike = jnp.float32) -> Params:
        """Fresh parameters of the given dtype, drawn from `key`."""
        rngs = nnx.Rngs(params=key)
        model = Qwen3(self.config, dtype=self.dtype, param_dtype=dtype, rngs=rngs)
        return nnx.to_pure_dict(nnx.state(model))

    def shardings(self, mesh: Mesh) -> Any:
        """Where each parameter lies on a mesh; ValueError where one does not divide."""
        return shardings(jax.eval_shape(self.init_params, jax.random.key(0)), mesh)

    def init_cache(self, rows: int, capacity: int) -> kv.KVCache:
        """An empty cache for `rows` rows of `capacity` positions each."""
        return kv.init_cache(self.config, rows, capacity, self.dtype)

    def forward(
        self,
        params: Params,
        tokens_BT: jax.Array,
        position_B: jax.Array,
        cache: kv.KVCache,
        *,
        live: int,
    ) -> tuple[jax.Array, kv.KVCache]:
        """Runs T tokens of every row and stores their keys and values.

        Args:
            params: Parameters, as from `init_params`.
            tokens_BT: int32 ids; row b's token t stands at position `position_B[b] + t`.
            position_B: int32, the position of each row's first token.
            cache: Holds positions `0 .. position_B[b] - 1` of row b.
            live: Static, at most the capacity; only cache positions `< live` are read.

        Returns:
            `logits_BTV` float32 and the new cache.
        """
        model = self._model(params)
        hidden_BTD, cache = model.cached_hidden(tokens_BT, position_B, cache, live=live)
        return self._without_padding(model.logits(hidden_BTD)), cache

    def commit(self, cache: kv.KVCache, position_B: jax.Array, count_B: jax.Array) -> kv.KVCache:
        """Returns the cache as it is: rejected positions are written over later."""
        del position_B, count_B
        return cache

    def forward_tree(
        self,
        params: Params,
        tokens_BT: jax.Array,
        sees_BTT: jax.Array,
        position_B: jax.Array,
        cache: kv.KVCache,
        *,
        live: int,
    ) -> tuple[jax.Array, kv.KVCache]:
        """Runs draft trees and stores their keys and values, token t at place `position_B + t`.

        Args:
            params: Parameters, as from `init_params`.
            tokens_BT: int32 ids, each row's root first.
            sees_BTT: bool, what each token sees of its tree: itself and the way to it.
            position_B: int32, position of each row's root; a token's is deeper by its depth.
            cache: Holds positions `0 .. position_B[b] - 1` of row b.
            live: Static, at most the capacity; only cache places `< live` are read.

        Returns:
            `logits_BTV` float32 and the new cache, of which `commit_path` keeps one way.
        """
        model = self._model(params)
        hidden_BTD, cache = model.cached_hidden(
            tokens_BT, position_B, cache, live=live, sees_BTT=sees_BTT
        )
        return self._without_padding(model.logits(hidden_BTD)), cache

    def commit_path(
        self, cache: kv.KVCache, position_B: jax.Array, path_BT: jax.Array, count_B: jax.Array
    ) -> kv.KVCache:
        """Tokens `path_BT[b, :count_B[b]]` of the tree take the places from the root's on."""
        return keep_path(cache, position_B, path_BT, count_B)

    def insert(
        self, cache: kv.KVCache, prefixes: kv.KVCache, source_B: jax.Array, slot_B: jax.Array
    ) -> kv.KVCache:
        """Copies row `source_B[i]` of `prefixes` into row `slot_B[i]` of `cache`, for every i."""
        return kv.insert(cache, prefixes, source_B, slot_B)

    def hidden(self, params: Params, tokens_BT: jax.Array, *, remat: bool = False) -> jax.Array:
        """Hidden states `[B, T, D]` of whole right-padded rows, without a cache."""
        return self._model(params).hidden(
            tokens_BT,
            remat=remat,
            split_width=self.mesh is not None and self.mesh.shape["tensor"] > 1,
            place=lambda x_BTD: self._placed(x_BTD, HIDDEN_AXES),
        )

    def logits(self, params: Params, hidden: jax.Array) -> jax.Array:
        """Next-token logits `[..., V]` in float32 from hidden states `[..., D]`."""
        if hidden.ndim != len(HIDDEN_AXES):
            return self._without_padding(self._model(params).logits(hidden))
        logits = self._model(params).logits(self._placed(hidden, HIDDEN_AXES))
        return self._without_padding(self._placed(logits, LOGIT_AXES))

    def _placed(self, x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
        if self.mesh is None:
            return x
        return jax.lax.with_sharding_constraint(x, batch_sharding(self.mesh, axes))

    def _without_padding(self, logits: jax.Array) -> jax.Array:
        if self.tokens is None or self.tokens >= self.vocab_size:
            return logits
        id_XV = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
        return jnp.where(id_XV < self.tokens, logits, -jnp.inf)

    @cached_property
    def _structure(self) -> nnx.GraphDef[Qwen3]:
        abstract = nnx.eval_shape(
            lambda: Qwen3(
                self.config,
                dtype=self.dtype,
                attention=self.attention,
                rngs=nnx.Rngs(params=0),
            )
        )
        return nnx.graphdef(abstract)

    def _model(self, params: Params) -> Qwen3:
        if self.mesh is not None:  # rows looked up in a table split by width would be split so too
            table_VD = params["embedding_VD"].astype(self.dtype)
            params = params | {"embedding_VD": self._placed(table_VD, TABLE_AXES)}
        return nnx.merge(self._structure, params)
