"""Layers one after another in parts, so that the backward pass lets go of what it is done with.

It holds the inputs of all layers, from which it computes each again, and the gradients that it has
made. A scan that JAX differentiates has both whole from first to last. Here every part is as long
as all parts before it, and a part's inputs go when its gradients have come: with the last
gradients there are the inputs of an eighth of the layers. Nothing is computed that a scan under
`jax.checkpoint` would not compute. In the end the parts' gradients are joined, array by array, so
that one of these exists twice.

Legend: B rows, T tokens of a forward, D model width, L layers, N layers of a part.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

PARTS = 4

Step = Callable[[jax.Array, Any], jax.Array]


def parts_pay(x_BTD: jax.Array, weights_L: Any) -> bool:
    """Whether the inputs of all layers outweigh every single array of their weights."""
    largest = max(jax.tree.leaves(weights_L), key=_bytes)
    return largest.shape[0] * _bytes(x_BTD) > _bytes(largest)


def layers_in_parts(step: Step, x_BTD: jax.Array, weights_L: Any) -> jax.Array:
    """`step(x_BTD, weights)` of every layer in turn; each is computed again in the backward pass.

    Args:
        step: One layer. Gradients come to its arguments alone, to nothing that it closes over.
        x_BTD: What goes into the first layer.
        weights_L: Pytree of weights with a leading layer axis.
    """
    parts = _parts(weights_L)

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
            grad_BTD, grads_N = _backward(step, part, inputs_NBTD, weights_L, grad_BTD)
            grads.insert(0, grads_N)
        return grad_BTD, jax.tree.map(lambda *grads_N: jnp.concatenate(grads_N), *grads)

    run.defvjp(forward, backward)
    return run(x_BTD, weights_L)


def _backward(
    step: Step, part: range, inputs_NBTD: jax.Array, weights_L: Any, grad_BTD: jax.Array
) -> tuple[jax.Array, Any]:
    """The gradients of what goes into a part, and of its weights."""

    def back(carry: tuple[jax.Array, Any], xs: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        (grad_BTD, grads_N), (x_BTD, place) = carry, xs
        _, pull = jax.vjp(step, x_BTD, _of_layer(weights_L, part.start + place))
        grad_BTD, grads = pull(grad_BTD)

        def put(all_N: jax.Array, one: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_index_in_dim(all_N, one, place, 0)

        return (grad_BTD, jax.tree.map(put, grads_N, grads)), None

    # What stands here is written over. Zeros would be made, and take memory, from the start of
    # the program on; what comes from the gradient cannot be.
    def unwritten(x_L: jax.Array) -> jax.Array:
        return jnp.full((len(part), *x_L.shape[1:]), grad_BTD[0, 0, 0].astype(x_L.dtype))

    start = (grad_BTD, jax.tree.map(unwritten, weights_L))
    places = jnp.arange(len(part))
    return jax.lax.scan(back, start, (inputs_NBTD, places), reverse=True)[0]


def _parts(weights_L: Any) -> list[range]:
    layers = jax.tree.leaves(weights_L)[0].shape[0]
    ends = [layers >> halvings for halvings in reversed(range(PARTS))]
    return [range(start, end) for start, end in itertools.pairwise([0, *ends]) if start < end]


def _of_layer(weights_L: Any, layer: jax.Array) -> Any:
    return jax.tree.map(
        lambda x_L: jax.lax.dynamic_index_in_dim(x_L, layer, keepdims=False), weights_L
    )


def _bytes(x: jax.Array) -> int:
    return x.size * x.dtype.itemsize
