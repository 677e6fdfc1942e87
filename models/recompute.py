"""Layers one after another, computed again in the backward pass, which holds little beside.

It holds the inputs of all layers and the gradients that it has made. A scan that JAX
differentiates has both whole from the backward pass's first layer to its last. Here the layers are
cut into parts, each as long as all before it: the inputs of a part go when its gradients have
come, so that with the last gradients there are the inputs of an eighth of the layers. Nothing is
computed that a scan under `jax.checkpoint` would not compute.

Legend: B rows, T tokens of a forward, D model width, L layers, N layers of a part.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

PARTS = 4

Step = Callable[[jax.Array, Any], jax.Array]


def recomputed_layers(step: Step, x_BTD: jax.Array, weights_L: Any) -> jax.Array:
    """`step(x_BTD, weights)` of every layer in turn, to be differentiated backwards.

    Args:
        step: One layer. Gradients come to its arguments alone, to nothing that it closes over.
        x_BTD: What goes into the first layer.
        weights_L: Pytree of weights with a leading layer axis.
    """
    layers = jax.tree.leaves(weights_L)[0].shape[0]
    ends = [layers >> halvings for halvings in reversed(range(PARTS))]
    parts = [range(start, end) for start, end in zip([0, *ends], ends, strict=False) if start < end]

    @jax.custom_vjp
    def run(x_BTD: jax.Array, weights_L: Any) -> jax.Array:
        return jax.lax.scan(lambda x, weights: (step(x, weights), None), x_BTD, weights_L)[0]

    def forward(x_BTD: jax.Array, weights_L: Any) -> tuple[jax.Array, Any]:
        def keep(x_BTD: jax.Array, layer: jax.Array) -> tuple[jax.Array, jax.Array]:
            return step(x_BTD, _of_layer(weights_L, layer)), x_BTD

        kept = []
        for part in parts:
            x_BTD, inputs_NBTD = jax.lax.scan(keep, x_BTD, jnp.array(part))
            kept.append(inputs_NBTD)
        return x_BTD, (kept, weights_L)

    def backward(residuals: Any, grad_BTD: jax.Array) -> tuple[jax.Array, Any]:
        kept, weights_L = residuals
        grads = []
        for part, inputs_NBTD in zip(reversed(parts), reversed(kept), strict=True):
            grad_BTD, grads_N = _backward(step, part, weights_L, inputs_NBTD, grad_BTD)
            grads.insert(0, grads_N)
        return grad_BTD, jax.tree.map(lambda *grads_N: jnp.concatenate(grads_N), *grads)

    run.defvjp(forward, backward)
    return run(x_BTD, weights_L)


def _backward(
    step: Step, part: range, weights_L: Any, inputs_NBTD: jax.Array, grad_BTD: jax.Array
) -> tuple[jax.Array, Any]:
    """The gradients of a part: of what goes into it, and of its weights."""

    def back(carry: tuple[jax.Array, Any], xs: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        (grad_BTD, grads_N), (x_BTD, layer) = carry, xs
        _, pull = jax.vjp(step, x_BTD, _of_layer(weights_L, layer))
        grad_BTD, grads = pull(grad_BTD)
        put = lambda all_N, one: all_N.at[layer - part.start].set(one)  # noqa: E731
        return (grad_BTD, jax.tree.map(put, grads_N, grads)), None

    # Every layer writes its own, so what stands there before does not matter. But zeros would be
    # made, and take memory, from the start of the program on; this cannot be.
    unwritten = grad_BTD[0, 0, 0]
    grads_N = jax.tree.map(
        lambda x_L: jnp.full((len(part), *x_L.shape[1:]), unwritten.astype(x_L.dtype)), weights_L
    )
    return jax.lax.scan(back, (grad_BTD, grads_N), (inputs_NBTD, jnp.array(part)), reverse=True)[0]


def _of_layer(weights_L: Any, layer: jax.Array) -> Any:
    return jax.tree.map(
        lambda x_L: jax.lax.dynamic_index_in_dim(x_L, layer, keepdims=False), weights_L
    )
