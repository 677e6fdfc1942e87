"""A history as plain arrays that any checkpointer takes, and back.

Rollouts stand oldest first. Entry 0 of every array is a dummy, because some checkpointers refuse
arrays of size zero.

Legend: R rollouts, dummy included; N response tokens of one; X tokens of all; M entries of laws.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ngramrl_jax.host.laws import WHOLE, Laws
from ngramrl_jax.types import Int32Array

Snapshot = dict[str, NDArray[np.int32]]

_INT32_MAX = np.iinfo(np.int32).max
_NAMES = (
    "prompt_id_R",
    "step_R",
    "length_R",
    "tokens_X",
    "laws_X",
    "law_ids_M",
    "law_probs_M",
)


SIZES = "log_sizes"  # capacity of the log, its positions and its entries in use


class Stored(NamedTuple):
    """One rollout of a history."""

    prompt_id: int
    step: int
    tokens_N: Int32Array
    laws: Laws


def to_arrays(
    prompt_id_R: Int32Array,
    step_R: Int32Array,
    length_R: Int32Array,
    tokens_X: Int32Array,
    laws: Laws,
) -> Snapshot:
    """The arrays, all int32.

    `prompt_id_R`, `step_R` and `length_R` describe the rollouts; `tokens_X` holds their tokens one
    after another, `laws_X` how many entries the law of each token has, `law_ids_M` and
    `law_probs_M` the entries.
    """
    arrays = (prompt_id_R, step_R, length_R, tokens_X, *laws)
    dummies = (-1, -1, 1, -1, 1, 0, 0)
    return {
        name: np.concatenate([np.array([dummy]), array]).astype(np.int32)
        for name, dummy, array in zip(_NAMES, dummies, arrays, strict=True)
    }


def from_arrays(snapshot: Mapping[str, ArrayLike]) -> Iterator[Stored]:
    """The rollouts, oldest first.

    Raises:
        ValueError: An array is missing, holds what no snapshot holds, or does not fit the others;
            before anything is given out.
    """
    arrays = _checked(snapshot)
    law_ends_X = np.cumsum(arrays["laws_X"])
    ends_R = np.cumsum(arrays["length_R"])
    return (_rollout(arrays, r, ends_R, law_ends_X) for r in range(1, ends_R.size))


def unused(snapshot: Mapping[str, ArrayLike]) -> tuple[int, int, int] | None:
    """Capacity of the log, and the positions and entries in it that no rollout of a snapshot uses.

    None where the snapshot does not say, as those of earlier versions, or says what cannot be.
    """
    sizes = np.asarray(snapshot.get(SIZES, ()))
    if sizes.shape != (3,) or sizes.dtype.kind not in "iu":
        return None
    capacity, used, entries = (int(size) for size in sizes)
    length_R, ids_M = (np.asarray(snapshot[name])[1:] for name in ("length_R", "law_ids_M"))
    return capacity, used - int(length_R.sum()) - length_R.size, entries - ids_M.size


def _rollout(arrays: Snapshot, r: int, ends_R: NDArray, law_ends_X: NDArray) -> Stored:
    tokens = slice(ends_R[r - 1], ends_R[r])
    entries = slice(law_ends_X[tokens.start - 1], law_ends_X[tokens.stop - 1])
    laws = Laws(
        arrays["laws_X"][tokens],
        arrays["law_ids_M"][entries],
        arrays["law_probs_M"][entries].astype(np.uint16),
    )
    prompt_id, step = int(arrays["prompt_id_R"][r]), int(arrays["step_R"][r])
    return Stored(prompt_id, step, arrays["tokens_X"][tokens], laws)


def _checked(snapshot: Mapping[str, ArrayLike]) -> Snapshot:
    if missing := [name for name in _NAMES if name not in snapshot]:
        raise ValueError(f"snapshot: found no {missing[0]}, allowed: {', '.join(_NAMES)}")
    given = {name: np.asarray(snapshot[name]) for name in _NAMES}
    for name, array in given.items():
        most = WHOLE if name == "law_probs_M" else _INT32_MAX
        numbers = array.ndim == 1 and array.dtype.kind in "iu"
        if not numbers or array[1:].min(initial=0) < 0 or array.max(initial=0) > most:
            raise ValueError(
                f"{name}: found {array.dtype} of shape {array.shape}, allowed: one dimension of "
                f"integers, after the dummy none below 0, none above {most}"
            )
    lengths_R, laws_X = given["length_R"], given["laws_X"]
    fits = given["prompt_id_R"].shape == given["step_R"].shape == lengths_R.shape
    fits = fits and lengths_R.min(initial=1) >= 1 and laws_X.min(initial=0) >= 0
    fits = fits and lengths_R.sum() == given["tokens_X"].size == laws_X.size
    if not fits or not laws_X.sum() == given["law_ids_M"].size == given["law_probs_M"].size:
        sizes = ", ".join(f"{array.size} of {name}" for name, array in given.items())
        raise ValueError(
            f"snapshot: found {sizes}, allowed: as many of each R, lengths of 1 or more that add "
            "up to X, counts that add up to M"
        )
    return {name: array.astype(np.int32) for name, array in given.items()}
