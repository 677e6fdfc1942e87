"""Floating-point operations of a traced function: those of its matrix products.

XLA's own count (`Compiled.cost_analysis`) takes the body of a loop once, however often it runs; a
model whose layers are scanned would seem as small as one layer.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters.partial_eval import dce_jaxpr


def matmul_flops(jaxpr: ClosedJaxpr | Jaxpr) -> float:
    """Multiplications and additions of all matrix products, over all devices.

    A scan counts its body as often as it runs; a `while` or `cond` counts each of its parts once.
    Products that no result depends on do not count: the compiler leaves them out.
    """
    whole = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    return _of_equations(dce_jaxpr(whole, True)[0])


def _of_equations(jaxpr: ClosedJaxpr | Jaxpr) -> float:
    inner = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    return sum(_of_equation(equation) for equation in inner.eqns)


def _of_equation(equation: JaxprEqn) -> float:
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        left = _shape(equation.invars[0])
        return 2.0 * prod(_shape(equation.outvars[0])) * prod(left[axis] for axis in contracted)
    times = equation.params["length"] if equation.primitive.name == "scan" else 1
    bodies = list(_bodies(equation.params))
    if equation.primitive.name == "shard_map":  # its body is what one group of devices does
        pairs = zip(equation.invars, bodies[0].invars, strict=True)
        times = max(prod(_shape(all_)) // prod(_shape(part)) for all_, part in pairs)
    return times * sum(map(_of_equations, bodies))


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def _bodies(params: dict[str, Any]) -> Iterator[ClosedJaxpr | Jaxpr]:
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr | Jaxpr):
                yield one
