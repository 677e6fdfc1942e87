"""The arrays that hold the suffix automata of all prompts in use.

Legend: B rows.
"""

from typing import Any, NamedTuple

import numpy as np

from ngramrl_jax.types import Int32Array

START = -1
NONE = -1

STATE = np.dtype(
    [
        ("link", np.int32),  # state of the longest suffix that ends elsewhere too; NONE at a root
        ("length", np.int32),  # of the state's longest string
        ("weight", np.int32),  # occurrences, each times the weight of its rollout
        ("latest", np.int32),  # serial of the newest rollout that has the string
        ("edge", np.int32),  # first edge that leads out
        ("visits", np.int32),  # scratch of `weigh`, 0 outside it
        ("waiting", np.int32),  # scratch of `weigh`
    ]
)
EDGE = np.dtype(
    [
        ("source", np.int32),
        ("token", np.int32),
        ("target", np.int32),
        ("sibling", np.int32),  # next edge out of the same state
        ("chained", np.int32),  # next edge in the same bucket of the hash table
    ]
)
# Where one row's text stands in its prompt's automaton.
MATCH = np.dtype(
    [
        ("root", np.int32),  # NONE while the prompt has no history
        ("seen", np.int32),  # `latest` of the root when the match was made; another one voids it
        ("state", np.int32),
        ("length", np.int32),  # of the longest suffix of START + response that the automaton has
        ("end", np.int32),  # text length that has been read
    ]
)

Records = Any  # structured arrays, whose fields type checkers do not know


class Arena(NamedTuple):
    """The arrays that all automata share.

    Attributes:
        states: Of type `STATE`.
        edges: Of type `EDGE`.
        buckets: First edge of each bucket of the hash table over (source, token); a power of two.
        used: How many states and how many edges are in use.
    """

    states: Records
    edges: Records
    buckets: Int32Array
    used: Int32Array


# What a token of capacity takes: 2 states, 3 edges, and 3 to 6 hash buckets.
TOKEN_BYTES = 2 * STATE.itemsize + 3 * EDGE.itemsize + 6 * np.dtype(np.int32).itemsize


def allocate(tokens: int) -> Arena:
    """An empty arena for texts of `tokens` tokens in all, one START per text included.

    However they repeat, texts of n tokens in all make at most 2 n states and 3 n edges (Blumer et
    al. 1987), so nothing needs to check for room while they are read.
    """
    buckets = 1 << (3 * tokens - 1).bit_length() if tokens else 0
    return Arena(
        states=np.empty(2 * tokens, STATE),
        edges=np.empty(3 * tokens, EDGE),
        buckets=np.full(buckets, NONE, np.int32),
        used=np.zeros(2, np.int32),
    )
