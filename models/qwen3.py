"""Dense decoder (Qwen3, Qwen2.5, Llama) in Flax NNX, layers stacked and scanned.

Legend: B rows, T tokens of a forward, S key positions, V vocabulary, D model width, L layers.

Two paths share every weight: `hidden` runs whole rows for training, `cached_hidden` runs the next
T tokens of every row against a cache. Weights keep their own dtype and are cast to the compute
dtype where they are used; logits, softmax and norms are float32.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models import cache as kv
from models.attention import AttentionName, attention, attention_in_chunks
from models.config import ModelConfig
from models.layers import INIT_SCALE, Block, Linear, RMSNorm
from models.parts import layers_in_parts, parts_pay
from models.rope import rope_phases
from models.tree import tree_mask

LONG_ROW = 512  # tokens from which on a row goes through layers in pieces, in training


class Qwen3(nnx.Module):
    """A causal language model: token ids to hidden states, hidden states to logits.

    Attributes:
        embedding_VD: Token embedding, also the output head where the configuration ties them.
        layers: One `Block` whose parameters carry a leading layer axis.
        norm: Norm before the head.
        head: Output projection `[D, V]`, or None where tied.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
        attention: AttentionName = "auto",
        rngs: nnx.Rngs,
    ) -> None:
        vocabulary, width = config.vocab_size, config.hidden_size

        @nnx.split_rngs(splits=config.num_hidden_layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked_blocks(rngs: nnx.Rngs) -> Block:
            return Block(config, param_dtype=param_dtype, rngs=rngs)

        init = nnx.initializers.normal(INIT_SCALE)
        self.config, self.dtype = config, dtype
        self.attention: AttentionName = attention
        self.embedding_VD = nnx.Param(init(rngs.params(), (vocabulary, width), param_dtype))
        self.layers = stacked_blocks(rngs)
        self.norm = RMSNorm(width, config.rms_norm_eps, param_dtype=param_dtype)
        self.head = (
            None
            if config.tie_word_embeddings
            else Linear(width, vocabulary, scale=INIT_SCALE, param_dtype=param_dtype, rngs=rngs)
        )

    def hidden(
        self,
        tokens_BT: jax.Array,
        *,
        remat: bool = False,
        split_width: bool = False,
        place: Callable[[jax.Array], jax.Array] = lambda x: x,
    ) -> jax.Array:
        """Hidden states of whole rows, from position 0 on, without a cache.

        Rows of different lengths are padded on the right: a causal mask is all it takes, since
        padding comes after everything that counts.

        Args:
            tokens_BT: int32 ids.
            remat: Recompute each layer in the backward pass instead of keeping what it made. Rows
                of `LONG_ROW` tokens or more also go through the layers in pieces, in less memory.
            split_width: Whether a mesh splits the width of the feed-forward layer, which then is in
                pieces already.
            place: Says how `[B, T, D]` between two layers lies on a mesh.

        Returns:
            `hidden_BTD` in the compute dtype, normed: ready for `logits`.
        """
        T = tokens_BT.shape[1]
        position_1T = jnp.arange(T, dtype=jnp.int32)[None, :]
        phases = self._phases(position_1T)
        mask_1TT = position_1T[:, None, :] <= position_1T[:, :, None]
        structure, state_L = nnx.split(self.layers)
        in_pieces = remat and T >= LONG_ROW
        in_slices = in_pieces and not split_width
        attend = attention_in_chunks if in_pieces else attention

        def step(x_BTD: jax.Array, state: nnx.State) -> jax.Array:
            block = nnx.merge(structure, state)
            query, key, value = block.project(x_BTD, *phases)
            attended = attend(query, key, value, mask_1TT)
            return place(block.finish(x_BTD, attended, in_slices=in_slices))

        x_BTD = place(self._embed(tokens_BT))
        if in_pieces and parts_pay(x_BTD, state_L):
            return self.norm(layers_in_parts(step, x_BTD, state_L))
        # a scan needs no guard against common-subexpression elimination, and is faster without
        layer = jax.checkpoint(step, prevent_cse=False) if remat else step
        x_BTD, _ = jax.lax.scan(lambda x, state: (layer(x, state), None), x_BTD, state_L)
        return self.norm(x_BTD)

    def cached_hidden(
        self,
        tokens_BT: jax.Array,
        position_B: jax.Array,
        cache: kv.KVCache,
        *,
        live: int,
        sees_BTT: jax.Array | None = None,
    ) -> tuple[jax.Array, kv.KVCache]:
        """Hidden states of the next T tokens of every row; their keys and values are stored.

        Args:
            tokens_BT: int32 ids; row b's token t stands at position `position_B[b] + t`.
            position_B: int32, the position of each row's first token.
            cache: Holds positions `0 .. position_B[b] - 1` of row b.
            live: Static; only cache positions `< live` are read.
            sees_BTT: Where the tokens are a tree (root first): bool, what each sees of it. A token
                then stands at the root's position + its depth, in the place that it would have in
                a chain.

        Returns:
            `hidden_BTD` as from `hidden`, and the cache with the new tokens in it.
        """
        T = tokens_BT.shape[1]
        position_BT = position_B[:, None] + jnp.arange(T, dtype=jnp.int32)[None, :]
        # written first, then read back: one mask covers the prefix and the new tokens
        mask_BTS = jnp.arange(live, dtype=jnp.int32)[None, None, :] <= position_BT[:, :, None]
        if sees_BTT is not None:
            position_BT = position_B[:, None] + jnp.sum(sees_BTT, axis=2, dtype=jnp.int32) - 1
            mask_BTS = tree_mask(sees_BTT, position_B, live)
        phases = self._phases(position_BT)
        structure, state_L = nnx.split(self.layers)

        # The cache is carried, never scanned over: as xs/ys XLA would copy all of it every call.
        def step(
            carry: tuple[jax.Array, kv.KVCache], xs: tuple[nnx.State, jax.Array]
        ) -> tuple[tuple[jax.Array, kv.KVCache], None]:
            (x_BTD, cache), (state, layer) = carry, xs
            block = nnx.merge(structure, state)
            query, key, value = block.project(x_BTD, *phases)
            cache = kv.write(cache, layer, position_B, key, value)
            keys_and_values = kv.read(cache, layer, position_B + T, live)
            attended = attention(query, *keys_and_values, mask_BTS, self.attention)
            return (block.finish(x_BTD, attended), cache), None

        layers_L = jnp.arange(self.config.num_hidden_layers)
        (x_BTD, cache), _ = jax.lax.scan(step, (self._embed(tokens_BT), cache), (state_L, layers_L))
        return self.norm(x_BTD), cache

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Next-token logits `[..., V]` in float32 from hidden states `[..., D]`."""
        if self.head is None:
            pattern, weight = "...d,vd->...v", self.embedding_VD[...]
        else:
            pattern, weight = "...d,dv->...v", self.head.kernel[...]
        return jnp.einsum(
            pattern, hidden, weight.astype(hidden.dtype), preferred_element_type=jnp.float32
        )

    def _embed(self, tokens_BT: jax.Array) -> jax.Array:
        return self.embedding_VD[...][tokens_BT].astype(self.dtype)

    def _phases(self, position_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        config = self.config
        return rope_phases(position_BT, config.head_dim, config.rope_theta, config.rope_scaling)
