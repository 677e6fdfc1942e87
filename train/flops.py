"""Floating-point operations of a traced function: those of its matrix products.

XLA's own count (`Compiled.cost_analysis`) takes the body of a loop once, however often it runs; a
model whose layers are scanned would seem as small as one layer.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn


def matmul_flops(jaxpr: ClosedJaxpr | Jaxpr) -> float:
    """Multiplications and additions of all matrix products, over all devices.

    A scan counts its body as often as it runs; a `while` or `cond` counts each of its parts once.
    """
    inner = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    return sum(_of_equation(equation) for equation in inner.eqns)


def _of_equation(equation: JaxprEqn) -> float:
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2.0 * prod(equation.outvars[0].aval.shape) * prod(left[axis] for axis in contracted)
    times = equation.params["length"] if equation.primitive.name == "scan" else 1
    if equation.primitive.name == "shard_map":  # its body is what one group of devices does
        mesh = equation.params["mesh"]
        times = prod(mesh.shape[axis] for axis in equation.params["manual_axes"])
    return times * sum(matmul_flops(body) for body in _bodies(equation.params))


def _bodies(params: dict[str, Any]) -> Iterator[ClosedJaxpr | Jaxpr]:
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr | Jaxpr):
                yield one
