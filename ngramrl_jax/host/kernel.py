"""What the host's kernels are compiled with.

They let other threads run, and are kept on disk between processes. Numba knows a kernel by its own
file alone: after a change to a file whose kernels others call, delete the `__pycache__` beside it.
"""

from typing import Any, TypeVar

import numba
from llvmlite.ir import Constant
from numba.extending import intrinsic, overload

Arrays = TypeVar("Arrays", bound=tuple[Any, ...])

kernel = numba.njit(nogil=True, cache=True)
# For small functions of large arguments: handing over a tuple of arrays costs more than they do.
inlined = numba.njit(nogil=True, inline="always")


def borrowed(arrays: Arrays) -> Arrays:
    """The same tuple of arrays without their reference counts, for kernels that hand it on.

    Counts are atomic: kernels that pass arrays to each other spent half of their time on them, and
    threads wait for each other there. Whoever calls this keeps the arrays as long as they are used.
    """
    return arrays


@intrinsic
def _borrow(_: Any, arrays: Any) -> Any:
    def uncount(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        [value] = arguments
        for place, kind in enumerate(arrays):
            array = context.make_array(kind)(context, builder, builder.extract_value(value, place))
            array.meminfo = Constant(array.meminfo.type, None)
            array.parent = Constant(array.parent.type, None)
            value = builder.insert_value(value, array._getvalue(), place)
        return value

    return arrays(arrays), uncount


@overload(borrowed, strict=False)
def _(arrays: Any) -> Any:
    return lambda arrays: _borrow(arrays)  # pyright: ignore[reportCallIssue]


@kernel
def alive(_: tuple[Any, ...]) -> None:
    """Nothing, but arrays that a kernel made, and lent by `borrowed`, are there until here."""
