"""What the host's kernels are compiled with.

They let other threads run, and are kept on disk between processes. Numba knows a kernel by its own
file alone: after a change to a file whose kernels others call, delete the `__pycache__` beside it.
"""

import numba

kernel = numba.njit(nogil=True, cache=True)
# For small functions of large arguments: handing over a tuple of arrays costs more than they do.
inlined = numba.njit(nogil=True, inline="always")
