# ruff: noqa: ANN001, ANN201 (Numba infers the types of kernels)
"""The log: all stored rollouts one after another in flat arrays, with chains to find text in it.

A rollout is START and then its tokens. Every position that a token follows is chained, newest
first, with the earlier ones whose last 1 token, and whose last 4 tokens, fall into the same bucket
of a hash table: the match finder of LZ77 compressors, here per prompt. Nothing is ever unlinked:
a prompt's rollouts fall dead oldest first, so a chain is followed until it leaves the living.

At every position the log may hold the policy's next-token law there (`ngramrl_jax.host.laws`).

Legend: C positions, E entries of laws, G gram sizes, H buckets, N response tokens, M entries
of one rollout, R rollouts.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.host.kernel import borrowed, kernel
from ngramrl_jax.types import Int32Array

START = -1
NONE = -1
GRAMS = (1, 4)
ENTRIES = 2  # room for entries of laws, a position

UInt16Array = NDArray[np.uint16]


class Log(NamedTuple):
    """Arrays of the log.

    Attributes:
        tokens_C: int32, START before each rollout.
        owner_C: int32, the id of the prompt.
        chain_GC: int32, the previous position of the same bucket; NONE at the end.
        bucket_GH: int32, newest position of each bucket; H is a power of two.
        law_C: int32 [C + 1], where the position's law begins; it ends where the next one begins.
        ids_E: int32, tokens of the laws.
        probs_E: uint16, their probabilities times `laws.WHOLE`.
        used: int32 [2], positions and entries in use.
    """

    tokens_C: Int32Array
    owner_C: Int32Array
    chain_GC: Int32Array
    bucket_GH: Int32Array
    law_C: Int32Array
    ids_E: Int32Array
    probs_E: UInt16Array
    used: Int32Array

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, filled or not."""
        return sum(array.nbytes for array in self)


# What `allocate` takes, at most: a position, and beside the positions.
POSITION_BYTES = 4 * (3 + 2 * len(GRAMS)) + 6 * ENTRIES
EMPTY_BYTES = 64


def allocate(capacity: int) -> Log:
    """An empty log with room for `capacity` positions and as many entries `ENTRIES` times."""
    buckets = 1 << max(capacity.bit_length() - 1, 0)  # a power of two at or next below C
    return Log(
        tokens_C=np.zeros(capacity, np.int32),
        owner_C=np.zeros(capacity, np.int32),
        chain_GC=np.zeros((len(GRAMS), capacity), np.int32),
        bucket_GH=np.full((len(GRAMS), buckets), NONE, np.int32),
        law_C=np.zeros(capacity + 1, np.int32),
        ids_E=np.zeros(ENTRIES * capacity, np.int32),
        probs_E=np.zeros(ENTRIES * capacity, np.uint16),
        used=np.zeros(2, np.int32),
    )


def allocate_behind(capacity: int, gap: int, entries: int) -> Log:
    """An empty log whose first positions and entries are in use, by nobody."""
    log = allocate(capacity)
    log.tokens_C[:gap] = START
    log.law_C[gap] = entries
    log.used[:] = gap, entries
    return log


@kernel
def bucket_of(text_S, start, end, gram, owner, buckets):
    """Bucket of the last `gram` tokens of START + `text_S[start:end]`, or of all where fewer."""
    key = np.uint64(owner + 1) * np.uint64(0x9E3779B97F4A7C15)
    for position in range(end - 1, end - 1 - gram, -1):
        token = START if position < start else text_S[position]
        key = (key ^ np.uint64(token + 2)) * np.uint64(0xBF58476D1CE4E5B9)
        key ^= key >> np.uint64(29)
        if token == START:
            break
    return np.int64(key & np.uint64(buckets - 1))


@kernel
def chain_up(text_S, chain_GS, bucket_GH, position, owner):
    """Makes a position, which some token must follow, the newest of its chains."""
    for size in range(len(GRAMS)):
        bucket = bucket_of(text_S, 0, position + 1, GRAMS[size], owner, bucket_GH.shape[1])
        chain_GS[size, position] = bucket_GH[size, bucket]
        bucket_GH[size, bucket] = position


@kernel
def append(
    log: Log, owner: int, tokens_N: Int32Array, laws_N: Int32Array, ids_M: Int32Array, probs_M
) -> int:
    """Appends START and a rollout; returns where it begins. The caller made room.

    `laws_N` says how many of the M entries belong to the law of each token, see `host.laws`.
    """
    log = borrowed(log)
    begin, entry = log.used[0], log.used[1]
    end = begin + 1 + tokens_N.size
    log.tokens_C[begin] = START
    log.tokens_C[begin + 1 : end] = tokens_N
    log.owner_C[begin:end] = owner
    log.ids_E[entry : entry + ids_M.size] = ids_M
    log.probs_E[entry : entry + ids_M.size] = probs_M
    for n in range(tokens_N.size):
        chain_up(log.tokens_C, log.chain_GC, log.bucket_GH, begin + n, owner)
        log.law_C[begin + n] = entry
        entry += laws_N[n]
    log.law_C[end - 1 : end + 1] = entry
    log.used[0], log.used[1] = end, entry
    return begin


@kernel
def move_together(log: Log, begin_R: Int32Array, size_R: Int32Array) -> None:
    """Moves the given rollouts, oldest first, to the front; everything else is gone.

    `begin_R` becomes where they begin now. `chain_all` must follow.
    """
    to, entry = 0, 0
    for r in range(begin_R.size):
        begin = begin_R[r]
        begin_R[r] = to
        for position in range(begin, begin + 1 + size_R[r]):
            first, last = log.law_C[position], log.law_C[position + 1]
            log.tokens_C[to] = log.tokens_C[position]
            log.owner_C[to] = log.owner_C[position]
            log.law_C[to] = entry
            for source in range(first, last):
                log.ids_E[entry] = log.ids_E[source]
                log.probs_E[entry] = log.probs_E[source]
                entry += 1
            to += 1
    log.law_C[to] = entry
    log.used[0], log.used[1] = to, entry


@kernel
def chain_all(log: Log) -> None:
    """Chains everything anew."""
    log = borrowed(log)
    log.bucket_GH[:] = NONE
    for position in range(log.used[0] - 1):
        if log.tokens_C[position + 1] != START:
            owner = log.owner_C[position]
            chain_up(log.tokens_C, log.chain_GC, log.bucket_GH, position, owner)


@kernel
def gathered(
    log: Log, begin_R: Int32Array, size_R: Int32Array
) -> tuple[Int32Array, Int32Array, Int32Array, UInt16Array]:
    """Tokens of the given rollouts, how many entries the law of each has, and these entries."""
    tokens_X = np.empty(size_R.sum(), np.int32)
    laws_X = np.empty_like(tokens_X)
    ids_M = np.empty(log.used[1], np.int32)
    probs_M = np.empty(log.used[1], np.uint16)
    x = m = 0
    for r in range(begin_R.size):
        for position in range(begin_R[r], begin_R[r] + size_R[r]):
            first, last = log.law_C[position], log.law_C[position + 1]
            tokens_X[x] = log.tokens_C[position + 1]
            laws_X[x] = last - first
            ids_M[m : m + last - first] = log.ids_E[first:last]
            probs_M[m : m + last - first] = log.probs_E[first:last]
            x += 1
            m += last - first
    return tokens_X, laws_X, ids_M[:m], probs_M[:m]


def resized(log: Log, capacity: int) -> Log:
    """The same content with another C, which it fits. `chain_all` must follow."""
    other = allocate(capacity)._replace(used=log.used)
    used, entries = (int(number) for number in log.used)
    other.tokens_C[:used] = log.tokens_C[:used]
    other.owner_C[:used] = log.owner_C[:used]
    other.law_C[: used + 1] = log.law_C[: used + 1]
    other.ids_E[:entries] = log.ids_E[:entries]
    other.probs_E[:entries] = log.probs_E[:entries]
    return other
