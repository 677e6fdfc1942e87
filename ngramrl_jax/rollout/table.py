"""The table of drafts that goes to the device before the outcome is known, and the choice from it.

A chain's outcome (j, b) fixes the row's length and its last token, so an entry is keyed by these
two, and a line of the table by the row's key besides: a slot that has changed hands finds nothing,
never somebody else's draft. The choice is made twice from the same integers by the same code: by
the device, which holds the outcome first, and later by the host, which must know what was run.

Legend: B rows, F entries a row, K draft budget, W words of a key.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ngramrl_jax.host.protocol import FanOut
from ngramrl_jax.types import BoolArray, Int32Array, UInt32Array

# Misses of this weight together are as dear as a look-up that the device waits for.
WHOLE_WEIGHT = 1 << 20

_HEAD = 3  # the two words of the key, the weight


@dataclass(frozen=True)
class DraftTable:
    """Entries of every row; arrays of NumPy or of JAX.

    Attributes:
        key_BW: uint32, key of the request that the row belongs to.
        weight_B: int32, what it costs to run the row without a draft, see `WHOLE_WEIGHT`.
        length_BF: int32, the row's length; 0 where the entry is unused.
        last_BF: int32, its last token.
        drafted_BF: int32, length of the draft.
        draft_BFK: int32, padded with 0.
    """

    key_BW: Any
    weight_B: Any
    length_BF: Any
    last_BF: Any
    drafted_BF: Any
    draft_BFK: Any


@dataclass(frozen=True)
class Choice:
    """What a table holds for the rows as they are.

    Attributes:
        draft_BK: int32, zeros where nothing was found.
        drafted_B: int32, its length.
        found_B: bool, whether the table holds the row as it is.
        missed_B: bool, rows that could use a draft and have no entry.
        skipped: bool scalar, whether the round is not worth running: nobody is left to decode, or
            so many rows missed that looking their drafts up comes cheaper.
    """

    draft_BK: Any
    drafted_B: Any
    found_B: Any
    missed_B: Any
    skipped: Any


def choose(
    table: DraftTable, length_B: Any, last_B: Any, room_B: Any, key_BW: Any, xp: ModuleType
) -> Choice:
    """Picks every row's draft by what the row is now; `xp` is `numpy` or `jax.numpy`.

    Args:
        table: Arrays of `xp`, as are the others.
        length_B: int32, committed tokens.
        last_B: int32, the last of them.
        room_B: int32, response tokens left; 0 for idle rows.
        key_BW: uint32, the row's own key.
        xp: The module that computes.
    """
    same_B1 = xp.all(table.key_BW == key_BW, axis=1)[:, None]
    hit_BF = (table.length_BF == length_B[:, None]) & (table.last_BF == last_B[:, None]) & same_B1
    found_B = xp.any(hit_BF, axis=1)
    entry_B1 = xp.argmax(hit_BF, axis=1)[:, None]
    drafted_B = xp.take_along_axis(table.drafted_BF, entry_B1, axis=1)[:, 0]
    draft_BK = xp.take_along_axis(table.draft_BFK, entry_B1[:, :, None], axis=1)[:, 0]
    missed_B = ~found_B & (room_B > 1)  # the last token is the target's own
    burden = xp.sum(xp.where(missed_B, table.weight_B, 0))
    return Choice(
        draft_BK=xp.where(found_B[:, None], draft_BK, 0),
        drafted_B=xp.where(found_B, drafted_B, 0),
        found_B=found_B,
        missed_B=missed_B,
        skipped=(burden > WHOLE_WEIGHT) | ~xp.any(room_B > 0),
    )


def fresh_table(
    fan: FanOut | None, key_BW: UInt32Array, weight_B: Int32Array, entries: int, draft_tokens: int
) -> DraftTable:
    """Host side: the fan-out's entries, or none, in arrays that nobody else holds.

    Raises:
        ValueError: The drafter foresees more outcomes than there are entries.
    """
    rows = len(key_BW)
    table = DraftTable(
        key_BW=key_BW.copy(),
        weight_B=weight_B,
        length_BF=np.zeros((rows, entries), np.int32),
        last_BF=np.zeros((rows, entries), np.int32),
        drafted_BF=np.zeros((rows, entries), np.int32),
        draft_BFK=np.zeros((rows, entries, draft_tokens), np.int32),
    )
    if fan is not None:
        found = fan.length_BF.shape[1]
        if found > entries:
            raise ValueError(f"foresee: found {found} entries a row, allowed: at most {entries}")
        for name in ("length_BF", "last_BF", "drafted_BF", "draft_BFK"):
            getattr(table, name)[:, :found] = getattr(fan, name)
    return table


def set_certain(
    table: DraftTable,
    rows_B: BoolArray,
    key_BW: UInt32Array,
    length_B: Int32Array,
    last_B: Int32Array,
    draft_BK: Int32Array,
    drafted_B: Int32Array,
) -> None:
    """Host side: the rows `rows_B` are known as they will be; each has that one entry."""
    table.key_BW[rows_B] = key_BW[rows_B]
    table.length_BF[rows_B] = 0
    table.length_BF[rows_B, 0] = length_B[rows_B]
    table.last_BF[rows_B, 0] = last_B[rows_B]
    table.drafted_BF[rows_B, 0] = drafted_B[rows_B]
    table.draft_BFK[rows_B, 0] = draft_BK[rows_B]


def pack_table(table: DraftTable) -> Int32Array:
    """Host side: a fresh `[B, 3 + F (3 + K)]` array, for one copy to the device."""
    rows = len(table.weight_B)
    parts = (
        table.key_BW.view(np.int32),
        table.weight_B[:, None],
        table.length_BF,
        table.last_BF,
        table.drafted_BF,
        table.draft_BFK.reshape(rows, -1),
    )
    return np.concatenate(parts, axis=1, dtype=np.int32)


def unpack_table(packed_BX: jax.Array, draft_tokens: int) -> DraftTable:
    """Device side: the inverse of `pack_table` for K = `draft_tokens`."""
    rows, width = packed_BX.shape
    F = (width - _HEAD) // (3 + draft_tokens)
    heads_BX, drafts_BX = packed_BX[:, _HEAD : _HEAD + 3 * F], packed_BX[:, _HEAD + 3 * F :]
    length_BF, last_BF, drafted_BF = jnp.split(heads_BX, 3, axis=1)
    return DraftTable(
        key_BW=jax.lax.bitcast_convert_type(packed_BX[:, :2], jnp.uint32),
        weight_B=packed_BX[:, 2],
        length_BF=length_BF,
        last_BF=last_BF,
        drafted_BF=drafted_BF,
        draft_BFK=drafts_BX.reshape(rows, F, draft_tokens),
    )
