"""Blocks of a decoder layer: projections, norms, gated feed-forward.

Legend: B rows, T tokens of a forward, D model width, H query heads, J key/value heads, E head
width, C = E / 2.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from models.config import ModelConfig
from models.feed_forward import feed_forward_in_slices
from models.rope import rotate

INIT_SCALE = 0.02  # standard deviation of fresh weights, `initializer_range` of Qwen3


class Linear(nnx.Module):
    """`x @ kernel`, plus a bias where there is one, in the compute dtype of x."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        scale: float,
        bias: bool = False,
        param_dtype: DTypeLike,
        rngs: nnx.Rngs,
    ) -> None:
        init = nnx.initializers.normal(scale)
        self.kernel = nnx.Param(init(rngs.params(), (inputs, outputs), param_dtype))
        self.bias = nnx.Param(jnp.zeros((outputs,), param_dtype)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps `[..., inputs]` to `[..., outputs]`."""
        mapped = x @ self.kernel[...].astype(x.dtype)
        if self.bias is None:
            return mapped
        return mapped + self.bias[...].astype(x.dtype).reshape((1,) * (x.ndim - 1) + (-1,))


class RMSNorm(nnx.Module):
    """`x / sqrt(mean(x ** 2) + eps) * scale` over the last axis, computed in float32.

    Source: Zhang and Sennrich 2019, arXiv 1910.07467.
    """

    def __init__(self, width: int, eps: float, *, param_dtype: DTypeLike) -> None:
        self.scale = nnx.Param(jnp.ones((width,), param_dtype))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises `[..., width]`; same shape and dtype."""
        wide = x.astype(jnp.float32)
        inverse = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        scale = self.scale[...].astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))
        return (wide * inverse * scale).astype(x.dtype)


class Block(nnx.Module):
    """One decoder layer, split where the key/value cache comes in.

    `project` makes queries, keys and values; the caller attends, with a cache or without;
    `finish` adds the attended values and the feed-forward layer to the residual stream.
    """

    def __init__(self, config: ModelConfig, *, param_dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        width, head = config.hidden_size, config.head_dim
        queries = config.num_attention_heads * head
        keys = config.num_key_value_heads * head
        # The two outputs that add to the residual stream start smaller, so that its variance
        # does not grow with depth (GPT-2's rule).
        residual_scale = INIT_SCALE / (2 * config.num_hidden_layers) ** 0.5

        def linear(
            inputs: int, outputs: int, scale: float = INIT_SCALE, bias: bool = False
        ) -> Linear:
            return Linear(
                inputs, outputs, scale=scale, bias=bias, param_dtype=param_dtype, rngs=rngs
            )

        def norm(size: int) -> RMSNorm:
            return RMSNorm(size, config.rms_norm_eps, param_dtype=param_dtype)

        family = config.family
        self.head_dim = head
        self.attention_norm = norm(width)
        self.query = linear(width, queries, bias=family.qkv_bias)
        self.key = linear(width, keys, bias=family.qkv_bias)
        self.value = linear(width, keys, bias=family.qkv_bias)
        self.query_norm = norm(head) if family.qk_norm else None
        self.key_norm = norm(head) if family.qk_norm else None
        self.output = linear(queries, width, residual_scale)
        self.mlp_norm = norm(width)
        self.gate = linear(width, config.intermediate_size)
        self.up = linear(width, config.intermediate_size)
        self.down = linear(config.intermediate_size, width, residual_scale)

    def project(
        self, x_BTD: jax.Array, cos_BTC: jax.Array, sin_BTC: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns `query_BTHE` and `key_BJTE`, rotated (Qwen3: normed first), and `value_BJTE`."""
        heads = (*x_BTD.shape[:2], -1, self.head_dim)
        normed = self.attention_norm(x_BTD)
        query_BTHE = self.query(normed).reshape(heads)
        key_BTJE = self.key(normed).reshape(heads)
        value_BTJE = self.value(normed).reshape(heads)
        if self.query_norm is not None and self.key_norm is not None:
            query_BTHE, key_BTJE = self.query_norm(query_BTHE), self.key_norm(key_BTJE)
        return (
            rotate(query_BTHE, cos_BTC, sin_BTC),
            rotate(key_BTJE, cos_BTC, sin_BTC).swapaxes(1, 2),
            value_BTJE.swapaxes(1, 2),
        )

    def finish(
        self, x_BTD: jax.Array, attended_BTHE: jax.Array, *, in_slices: bool = False
    ) -> jax.Array:
        """Adds the attention output and the feed-forward layer to the residual stream.

        Args:
            x_BTD: The stream.
            attended_BTHE: From attention.
            in_slices: The feed-forward layer, see `models.feed_forward`.
        """
        x_BTD = x_BTD + self.output(attended_BTHE.reshape(*x_BTD.shape[:2], -1))
        normed = self.mlp_norm(x_BTD)
        if in_slices:
            weights = (self.gate.kernel[...], self.up.kernel[...], self.down.kernel[...])
            return x_BTD + feed_forward_in_slices(normed, *weights)
        return x_BTD + self.down(jax.nn.silu(self.gate(normed)) * self.up(normed))
