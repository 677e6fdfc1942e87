"""The bounded history: the last rollouts of every prompt, and snapshots of them.

What is kept is the tokens themselves. An index over them exists only for the prompts of the batch
that is being sampled; it is made when the first row of a group starts (`acquire`) and kept up with
every rollout that is observed. With the last row (`release`) it comes to rest: it stays for the
siblings that are still queued, as long as there is room, until the batch ends (`drop_resting`). So
the price of a prompt that waits for its next epoch is about that of its tokens.

Legend: N response tokens of one rollout, R rollouts.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ngramrl_jax.host.checks import as_token_ids, at_least
from ngramrl_jax.host.index import BYTES_PER_TOKEN, SuffixIndex, Weighted
from ngramrl_jax.types import Int32Array

# Python's own objects around one stored rollout, measured with tracemalloc (a test repeats it).
_ROLLOUT_BYTES = 512

_FRESH_WEIGHT = 2
_OLDER_WEIGHT = 1


class _Rollout(NamedTuple):
    serial: int
    step: int
    tokens_N: Int32Array

    @property
    def nbytes(self) -> int:
        return self.tokens_N.nbytes + _ROLLOUT_BYTES


class History:
    """The last `window` rollouts per prompt, within `max_bytes` overall, oldest out first.

    The newest half of the window (rounded up) is fresh and weighs twice as much as the rest.

    Attributes:
        window: Rollouts kept per prompt; 0 keeps nothing.
        max_bytes: Bound on `history_bytes` after every call: the oldest rollouts of all prompts
            are forgotten for it. It charges the index of the prompts in use at its worst case
            (`BYTES_PER_TOKEN`), and indices at rest are dropped before any rollout is forgotten,
            so that what is forgotten never depends on the index's inner state.
        index: The automata of the prompts in use or at rest.

    Raises:
        ValueError: `window` below 0 or `max_bytes` below 1.
    """

    def __init__(self, window: int = 16, max_bytes: int = 2**30) -> None:
        self.window = at_least("window", window, 0)
        self.max_bytes = at_least("max_bytes", max_bytes, 1)
        self._fresh = (window + 1) // 2
        self._users: Counter[int] = Counter()
        self._resting: OrderedDict[int, None] = OrderedDict()  # indexed but unused, oldest first
        self._clear()
        self.index = SuffixIndex(self._weighted)

    def _clear(self) -> None:
        self._windows: dict[int, list[_Rollout]] = {}
        self._order: OrderedDict[int, int] = OrderedDict()  # serial -> prompt id
        self._next_serial = 0
        self._tokens = 0
        self._bytes = 0
        self._charge = 0  # for the index of prompts in use, at its worst case
        self._resting_charge = 0  # likewise, for those at rest

    @property
    def history_tokens(self) -> int:
        """Response tokens in store."""
        return self._tokens

    @property
    def history_bytes(self) -> int:
        """Bytes of the stored rollouts and of the index."""
        return self._bytes + self.index.nbytes

    @property
    def bytes_per_token(self) -> float:
        """`history_bytes` per stored token; 0 while nothing is stored."""
        return self.history_bytes / self._tokens if self._tokens else 0.0

    def rollouts(self, prompt_id: int) -> list[Int32Array]:
        """Copies of the prompt's stored rollouts, oldest first."""
        return [rollout.tokens_N.copy() for rollout in self._windows.get(prompt_id, [])]

    def mean_length(self, prompt_id: int) -> float:
        """Mean tokens of the prompt's stored rollouts; 0 where there are none."""
        window = self._windows.get(prompt_id)
        return sum(rollout.tokens_N.size for rollout in window) / len(window) if window else 0.0

    def acquire(self, prompt_id: int) -> None:
        """A row takes the prompt into use: its history is indexed."""
        self._users[prompt_id] += 1
        if self._users[prompt_id] == 1:
            charge = self._charge_for(prompt_id)
            self._charge += charge
            if prompt_id in self._resting:
                del self._resting[prompt_id]
                self._resting_charge -= charge
            else:
                self.index.open(prompt_id)
            self._fit_budget()

    def release(self, prompt_id: int) -> None:
        """One row no longer uses the prompt; after the last one its index is at rest."""
        self._users[prompt_id] -= 1
        if self._users[prompt_id] == 0:
            del self._users[prompt_id]
            charge = self._charge_for(prompt_id)
            self._charge -= charge
            self._resting[prompt_id] = None
            self._resting_charge += charge

    def drop_resting(self) -> None:
        """Drops every index at rest: no queued row will want it."""
        while self._resting:
            self._drop_oldest_resting()

    def observe(self, prompt_id: int, tokens_N: ArrayLike, step: int) -> None:
        """Adds a finished rollout, stop token included, and forgets what no longer fits.

        Raises:
            ValueError: `tokens_N` is empty or not int32 ids of 0 or more; `prompt_id` or `step`
                is negative.
        """
        at_least("prompt_id", prompt_id, 0)
        at_least("step", step, 0)
        ids_N = as_token_ids("tokens_N", tokens_N)
        if self.window == 0:
            return
        rollout = _Rollout(self._next_serial, step, ids_N)
        self._next_serial += 1
        self._order[rollout.serial] = prompt_id
        self._tokens += ids_N.size
        self._bytes += rollout.nbytes
        window = self._windows.setdefault(prompt_id, [])
        window.append(rollout)
        if self._is_indexed(prompt_id):
            self._add_charge(prompt_id, _index_charge(rollout))
            if len(window) > self._fresh:
                fades = window[-1 - self._fresh]
                change = _OLDER_WEIGHT - _FRESH_WEIGHT
                self.index.change_weight(prompt_id, fades.tokens_N, change, fades.serial)
            self.index.add(prompt_id, (ids_N, _FRESH_WEIGHT, rollout.serial))
        if len(window) > self.window:
            self._forget_oldest(prompt_id)
        self._fit_budget()

    def snapshot(self) -> dict[str, NDArray[np.int32]]:
        """Everything stored, oldest rollout first, as arrays that any checkpointer takes.

        `prompt_id_R`, `step_R` and `length_R` describe the rollouts and `tokens` holds their
        tokens one after another, all int32. Entry 0 is a dummy (prompt -1, step -1, one token
        -1), because some checkpointers refuse arrays of size zero.
        """
        stored = [
            (prompt_id, rollout)
            for prompt_id, window in self._windows.items()
            for rollout in window
        ]
        stored.sort(key=lambda entry: entry[1].serial)
        tokens = [rollout.tokens_N for _, rollout in stored]
        return {
            "prompt_id_R": np.array([-1, *(prompt_id for prompt_id, _ in stored)], np.int32),
            "step_R": np.array([-1, *(rollout.step for _, rollout in stored)], np.int32),
            "length_R": np.array([1, *(ids_N.size for ids_N in tokens)], np.int32),
            "tokens": np.concatenate([np.array([-1], np.int32), *tokens]),
        }

    def restore(self, snapshot: Mapping[str, ArrayLike]) -> None:
        """Replaces everything stored; prompts in use stay in use.

        A smaller window or budget than that of the snapshot keeps the newest.

        Raises:
            ValueError: An array is missing, holds what no snapshot holds, or does not fit the
                others. Nothing has changed then.
        """
        names = ("prompt_id_R", "step_R", "length_R", "tokens")
        if missing := [name for name in names if name not in snapshot]:
            raise ValueError(f"snapshot: found no {missing[0]}, allowed: {', '.join(names)}")
        prompt_id_R, step_R, length_R, tokens = (np.asarray(snapshot[name]) for name in names)
        for name in names:
            array = np.asarray(snapshot[name])
            if array.ndim != 1 or array.dtype.kind not in "iu" or array[1:].min(initial=0) < 0:
                raise ValueError(
                    f"{name}: found {array.dtype} of shape {array.shape}, allowed: one dimension "
                    "of integers, none below 0 after the dummy"
                )
        if not prompt_id_R.shape == step_R.shape == length_R.shape or (
            length_R.min(initial=1) < 1 or length_R.sum() != tokens.size
        ):
            raise ValueError(
                f"snapshot: found {prompt_id_R.size} prompt ids, {step_R.size} steps, "
                f"{length_R.size} lengths over {tokens.size} tokens, allowed: as many of each, "
                "lengths of 1 or more that add up to the tokens"
            )
        texts = np.split(tokens, np.cumsum(length_R)[:-1])
        users, self._users = self._users, Counter()
        self._resting.clear()
        self._clear()
        self.index = SuffixIndex(self._weighted)
        for prompt_id, step, ids_N in list(zip(prompt_id_R, step_R, texts, strict=True))[1:]:
            self.observe(int(prompt_id), ids_N, int(step))
        for prompt_id, count in users.items():
            self.acquire(prompt_id)
            self._users[prompt_id] = count

    def _weighted(self, prompt_id: int) -> Iterator[Weighted]:
        window = self._windows.get(prompt_id, [])
        for age, rollout in zip(range(len(window) - 1, -1, -1), window, strict=True):
            yield rollout.tokens_N, self._weight(age), rollout.serial

    def _weight(self, age: int) -> int:
        """Weight of the rollout that `age` newer ones of its prompt have followed."""
        return _FRESH_WEIGHT if age < self._fresh else _OLDER_WEIGHT

    def _is_indexed(self, prompt_id: int) -> bool:
        return prompt_id in self._users or prompt_id in self._resting

    def _charge_for(self, prompt_id: int) -> int:
        return sum(map(_index_charge, self._windows.get(prompt_id, [])))

    def _add_charge(self, prompt_id: int, change: int) -> None:
        if prompt_id in self._users:
            self._charge += change
        else:
            self._resting_charge += change

    def _fit_budget(self) -> None:
        needed = self._bytes + self._charge
        while self._resting and needed + self._resting_charge > self.max_bytes:
            self._drop_oldest_resting()
        while self._order and self._bytes + self._charge > self.max_bytes:
            self._forget_oldest(self._order[next(iter(self._order))])

    def _drop_oldest_resting(self) -> None:
        prompt_id, _ = self._resting.popitem(last=False)
        self._resting_charge -= self._charge_for(prompt_id)
        self.index.close(prompt_id)

    def _forget_oldest(self, prompt_id: int) -> None:
        window = self._windows[prompt_id]
        weight = self._weight(len(window) - 1)
        rollout = window.pop(0)
        if not window:
            del self._windows[prompt_id]
        del self._order[rollout.serial]
        self._tokens -= rollout.tokens_N.size
        self._bytes -= rollout.nbytes
        if self._is_indexed(prompt_id):
            self._add_charge(prompt_id, -_index_charge(rollout))
            self.index.remove(prompt_id, (rollout.tokens_N, weight, rollout.serial))


def _index_charge(rollout: _Rollout) -> int:
    return BYTES_PER_TOKEN * (rollout.tokens_N.size + 1)
