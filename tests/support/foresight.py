"""Drafters that foresee, for tests: any drafter by copying it, and one that knows what comes.

Legend: B rows, F entries a row, K draft budget.
"""

from copy import deepcopy

import numpy as np

from ngramrl_jax.host.protocol import FanOut
from tests.support.drafters import OracleDrafter


def no_entries(rows: int, entries: int, draft_tokens: int) -> FanOut:
    return FanOut(
        np.zeros((rows, entries), np.int32),
        np.zeros((rows, entries), np.int32),
        np.zeros((rows, entries, draft_tokens), np.int32),
        np.zeros((rows, entries), np.int32),
        np.zeros((rows, entries), np.float32),
        np.zeros(rows, np.float32),
    )


class CopiedForesight:
    """Foresees by trying: a copy of the drafter is told a candidate outcome and asked to propose.

    Candidates are drawn at random from all outcomes over `vocab`; with `entries` at least
    `vocab * (K + 1)` they are all of them. Every call made of it is noted in `calls`.
    """

    def __init__(self, drafter, entries: int, vocab: int, seed: int = 0):
        self.drafter, self.entries, self.vocab = drafter, entries, vocab
        self.draft_tokens = drafter.draft_tokens
        self._rng = np.random.default_rng(seed)
        self._length_B = np.zeros(drafter.rows, np.int32)
        self.calls: list[str] = []

    def start_row(self, row, prompt_id, prompt_P, key_W=None):
        self.calls.append("start_row")
        self._length_B[row] = len(prompt_P)
        self.drafter.start_row(row, prompt_id, prompt_P, key_W)

    def commit(self, tokens_BT, count_B):
        self.calls.append("commit")
        self._length_B += count_B
        self.drafter.commit(tokens_BT, count_B)

    def propose(self, limit_B):
        self.calls.append("propose")
        return self.drafter.propose(limit_B)

    def finish_row(self, row):
        self.calls.append("finish_row")
        self.drafter.finish_row(row)

    def end_batch(self):
        self.calls.append("end_batch")
        self.drafter.end_batch()

    def observe(self, prompt_id, tokens_N, step, best=None):
        self.calls.append("observe")
        self.drafter.observe(prompt_id, tokens_N, step, best)

    def foresee(self, flight_BK, flown_B, room_B):
        self.calls.append("foresee")
        K, rows = self.draft_tokens, len(room_B)
        outcomes = self._rng.permutation([(j, b) for j in range(K + 1) for b in range(self.vocab)])
        fan = no_entries(rows, self.entries, K)
        for f, (j, b) in enumerate(outcomes[: self.entries]):
            possible_B = (room_B > j + 2) & (flown_B >= j)
            count_B = np.where(possible_B, j + 1, 0).astype(np.int32)
            tokens_BT = np.concatenate([flight_BK[:, :j], np.full((rows, 1), b)], axis=1)
            copy = deepcopy(self.drafter)
            copy.commit(tokens_BT.astype(np.int32), count_B)
            limit_B = np.where(possible_B, np.minimum(room_B - count_B - 1, K), 0).astype(np.int32)
            draft_BK, drafted_B = copy.propose(limit_B)
            fan.length_BF[:, f] = np.where(possible_B, self._length_B + j + 1, 0)
            fan.last_BF[:, f] = b
            fan.draft_BFK[:, f], fan.drafted_BF[:, f] = draft_BK, drafted_B
        return fan


class OracleForesight(OracleDrafter):
    """Knows the outcome, and holds its draft ready unless it is told to miss.

    Args (beside those of `OracleDrafter`):
        missing: Share of the outcomes that it has no entry for.
        decoys: Further entries of each row, of outcomes that do not happen or drafts of others.
        swapped: Each row gets its neighbour's entries.
    """

    def __init__(
        self, rows, draft_tokens, future, wrong=0.0, missing=0.0, decoys=3, swapped=False, vocab=6
    ):
        super().__init__(rows, draft_tokens, future, wrong)
        self._missing, self._decoys, self._swapped, self._ids = missing, decoys, swapped, vocab
        self._length_B = np.zeros(rows, np.int32)
        self._foresight = np.random.default_rng(1)
        self.wanted = self.held = 0

    def start_row(self, row, prompt_id, prompt_P, key_W=None):
        super().start_row(row, prompt_id, prompt_P, key_W)
        self._length_B[row] = len(prompt_P)

    def commit(self, tokens_BT, count_B):
        super().commit(tokens_BT, count_B)
        self._length_B += count_B

    def foresee(self, flight_BK, flown_B, room_B):
        K, rng = self._shape[1], self._foresight
        fan = no_entries(len(room_B), 1 + self._decoys, K)
        for row, room in enumerate(room_B):
            text = self._text[row]
            if not room:
                continue
            flight = flight_BK[row, : flown_B[row]]
            ahead = text[: len(flight)]
            same = flight[: len(ahead)] == ahead
            kept = len(same) if same.all() else int(np.argmin(same))
            for entry in range(1, 1 + self._decoys):
                fan.length_BF[row, entry] = self._length_B[row] + rng.integers(0, K + 3)
                fan.last_BF[row, entry] = self._ids  # no token of the policy's
                fan.draft_BFK[row, entry] = rng.integers(0, self._ids, K)
                fan.drafted_BF[row, entry] = K
            fan.ending_B[row] = kept + 1 >= len(text)
            if kept + 1 >= len(text) or room - kept - 1 < 2:
                continue
            fan.mass_BF[row, 0] = 1.0 - self._missing
            self.wanted += 1
            if rng.random() < self._missing:
                continue
            self.held += 1
            draft = text[kept + 1 :][: min(K, room - kept - 2)]
            fan.length_BF[row, 0] = self._length_B[row] + kept + 1
            fan.last_BF[row, 0] = text[kept]
            fan.draft_BFK[row, 0, : len(draft)] = draft
            fan.drafted_BF[row, 0] = len(draft)
        if self._swapped:
            arrays = (np.roll(array, 1, axis=0) for array in vars(fan).values())
            return FanOut(*arrays)
        return fan
