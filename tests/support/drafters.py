"""Drafters for tests, one that drafts at random and one that has seen the future; random laws."""

from collections.abc import Mapping

import numpy as np

from ngramrl_jax.types import BestTokens


class RandomDrafter:
    """Proposes random tokens, ids outside the vocabulary among them where `hostile`."""

    def __init__(self, rows: int, draft_tokens: int, vocab: int, seed: int = 0, hostile=False):
        self._shape = (rows, draft_tokens)
        self._low, self._high = (-1, vocab + 2) if hostile else (0, vocab)
        self._rng = np.random.default_rng(seed)
        self.events: list[tuple] = []

    def start_row(self, row, prompt_id, prompt_P, key_W=None):
        self.events.append(("start", row, prompt_id))

    def commit(self, tokens_BT, count_B):
        self.events.append(("commit", tokens_BT.copy(), count_B.copy()))

    def propose(self, limit_B):
        draft_BK = self._rng.integers(self._low, self._high, self._shape, dtype=np.int32)
        return draft_BK, np.minimum(limit_B, self._rng.integers(0, self._shape[1] + 1)).astype(
            np.int32
        )

    def finish_row(self, row):
        self.events.append(("finish", row))

    def end_batch(self):
        self.events.append(("end",))

    def observe(self, prompt_id, tokens_N, step, best=None):
        self.events.append(("observe", prompt_id, tokens_N.copy(), step))


class OracleDrafter(RandomDrafter):
    """Proposes what each row is known to say next, and now and then a wrong token."""

    def __init__(self, rows, draft_tokens, future: Mapping[tuple[int, int], np.ndarray], wrong=0.0):
        super().__init__(rows, draft_tokens, vocab=2)
        self._future, self._wrong = future, wrong
        self._started: dict[int, int] = {}
        self._text = [np.zeros(0, np.int32)] * rows

    def start_row(self, row, prompt_id, prompt_P, key_W=None):
        sibling = self._started.get(prompt_id, 0)  # wave order starts siblings in rising order
        self._started[prompt_id] = sibling + 1
        self._text[row] = self._future[prompt_id, sibling]

    def commit(self, tokens_BT, count_B):
        for row, count in enumerate(count_B):
            self._text[row] = self._text[row][count:]

    def propose(self, limit_B):
        draft_BK = np.zeros(self._shape, np.int32)
        length_B = np.zeros(len(limit_B), np.int32)
        for row, limit in enumerate(limit_B):
            ahead = self._text[row][:limit]
            draft_BK[row, : len(ahead)] = ahead
            length_B[row] = len(ahead)
        flip_BK = self._rng.random(self._shape) < self._wrong
        return np.where(flip_BK, 1 - (draft_BK > 0), draft_BK).astype(np.int32), length_B


def drafts(drafter, limits) -> list[list[int]]:
    """What a drafter proposes, row by row, held to the protocol."""
    draft_BK, length_B = drafter.propose(np.array(limits, np.int32))
    assert (length_B <= np.minimum(limits, drafter.draft_tokens)).all()
    assert all(not draft_BK[row, n:].any() for row, n in enumerate(length_B))
    return [draft_BK[row, :n].tolist() for row, n in enumerate(length_B)]


def best_tokens(rng, tokens, vocab=4, sharpness=2.0):
    """Random laws, now and then a certain one, an impossible token, or the drawn one unlisted."""
    size, width = len(tokens), 3
    ids_NR = np.array([rng.permutation(vocab)[:width] for _ in range(size)], np.int32)
    logps_NV = rng.normal(size=(size, vocab)) * sharpness
    logps_NV -= np.log(np.exp(logps_NV).sum(1, keepdims=True))
    logps_NR = -np.sort(-logps_NV, axis=1)[:, :width]
    certain_N = rng.random(size) < 0.2
    ids_NR[certain_N] = (np.asarray(tokens)[certain_N, None] + np.arange(width)) % vocab
    logps_NR[certain_N] = 0.0, -np.inf, -np.inf
    return BestTokens(ids_NR, logps_NR.astype(np.float32))
