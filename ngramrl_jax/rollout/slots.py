"""The host's view of the slots: which request sits where and what it has said so far.

Legend: B rows, T token columns of a result, N response tokens, R best tokens of a position,
W words of a key.
"""

from collections.abc import Iterator

import numpy as np

from ngramrl_jax.rollout.wire import RoundResult
from ngramrl_jax.types import (
    BestTokens,
    BoolArray,
    Int32Array,
    Rollout,
    RolloutRequest,
    UInt32Array,
)


class SlotTable:
    """Arrays over rows, so that recording a round needs no loop over rows or tokens.

    Attributes:
        length_B: int32, committed tokens, prompt included, as on the device.
        last_B: int32, the last committed token, as on the device.
        room_B: int32, response tokens left; 0 for idle rows, as on the device.
        key_BW: uint32, the rows' keys, as on the device.
    """

    def __init__(self, rows: int, longest_response: int, best_tokens: int) -> None:
        """An empty table for responses of up to `longest_response` tokens, R best ones of each."""
        self.length_B = np.ones(rows, np.int32)
        self.last_B = np.zeros(rows, np.int32)
        self.key_BW = np.zeros((rows, 2), np.uint32)
        self.room_B = np.zeros(rows, np.int32)
        self._requests: list[RolloutRequest | None] = [None] * rows
        self._started_B = np.zeros(rows, np.int32)
        self._filled_B = np.zeros(rows, np.int32)
        self._rounds_B = np.zeros(rows, np.int32)
        self._tokens_BN = np.zeros((rows, longest_response), np.int32)
        self._logps_BN = np.zeros((rows, longest_response), np.float32)
        self._drafted_BN = np.zeros((rows, longest_response), bool)
        self._best_BNR = np.zeros((rows, longest_response, best_tokens), np.int32)
        self._best_logps_BNR = np.zeros((rows, longest_response, best_tokens), np.float32)

    def emptied(self) -> "SlotTable":
        """A table of the same shape whose slots are all idle."""
        rows, longest_response, best_tokens = self._best_BNR.shape
        return SlotTable(rows, longest_response, best_tokens)

    @property
    def running_B(self) -> BoolArray:
        """bool, True where a row is being decoded."""
        return self.room_B > 0

    def reach(self, ahead_B: Int32Array) -> int:
        """One past the last position that rows may come to which move on by `ahead_B`."""
        return int(np.where(self.running_B, self.length_B + ahead_B, 0).max())

    def draft_limit(self, draft_tokens: int) -> Int32Array:
        """The longest draft that each row can use: its last token is the target's own."""
        return np.clip(self.room_B - 1, 0, draft_tokens)

    def idle_rows(self) -> Int32Array:
        """Slots that hold no request, in rising order."""
        return np.flatnonzero([request is None for request in self._requests]).astype(np.int32)

    def place(
        self, row: int, request: RolloutRequest, key_W: UInt32Array, started: int = 0
    ) -> None:
        """Puts a request into an idle slot, after `started` dispatches of its step."""
        assert self._requests[row] is None, f"slot {row} is taken"
        self._requests[row] = request
        self.length_B[row] = len(request.prompt_P)
        self.last_B[row] = request.prompt_P[-1]
        self.key_BW[row] = key_W
        self.room_B[row] = request.max_new_tokens
        self._started_B[row] = started
        self._filled_B[row] = 0
        self._rounds_B[row] = 0

    def record(self, result: RoundResult, rounds_B: Int32Array) -> None:
        """Appends what a dispatch committed; `rounds_B` is how many rounds each row took."""
        offset_BT = np.arange(result.tokens_BT.shape[1], dtype=np.int32)[None, :]
        row, column = np.nonzero(offset_BT < result.count_B[:, None])
        place = self._filled_B[row] + column
        self._tokens_BN[row, place] = result.tokens_BT[row, column]
        self._logps_BN[row, place] = result.logp_BT[row, column]
        self._drafted_BN[row, place] = column < result.kept_B[row]
        self._best_BNR[row, place] = result.best_BTR[row, column]
        self._best_logps_BNR[row, place] = result.best_logp_BTR[row, column]
        newest_B1 = np.maximum(result.count_B - 1, 0)[:, None]
        newest_B = np.take_along_axis(result.tokens_BT, newest_B1, axis=1)[:, 0]
        self.last_B = np.where(result.count_B > 0, newest_B, self.last_B)
        self._filled_B += result.count_B
        self._rounds_B += rounds_B
        self.length_B += result.count_B
        self.room_B = np.where(result.stopped_B, 0, self.room_B - result.count_B).astype(np.int32)

    def finished_rows(self) -> Iterator[int]:
        """Slots whose request is done but not taken out yet, in rising order."""
        return (int(row) for row in np.flatnonzero(~self.running_B) if self._requests[row])

    def take(
        self, row: int, stopped: bool, policy_version: int, step: int, finished: int = 0
    ) -> Rollout:
        """Takes the rollout, complete after `finished` dispatches of its step, out of slot `row`.

        The slot is idle then.
        """
        request = self._requests[row]
        assert request is not None, f"slot {row} is empty"
        self._requests[row] = None
        filled = self._filled_B[row]
        best = BestTokens(
            ids_NR=self._best_BNR[row, :filled].copy(),
            logps_NR=self._best_logps_BNR[row, :filled].copy(),
        )
        if not best.ids_NR.shape[1]:
            best = None
        if request.forced_N is not None:
            best = request.forced_best
        return Rollout(
            prompt_id=request.prompt_id,
            sibling=request.sibling,
            prompt_P=request.prompt_P,
            tokens_N=self._tokens_BN[row, :filled].copy(),
            logps_N=self._logps_BN[row, :filled].copy(),
            drafted_N=self._drafted_BN[row, :filled].copy(),
            truncated=not stopped,
            policy_version=policy_version,
            step=step,
            rounds=int(self._rounds_B[row]),
            attempt=request.attempt,
            best=best,
            slot=row,
            started=int(self._started_B[row]),
            finished=finished,
        )
