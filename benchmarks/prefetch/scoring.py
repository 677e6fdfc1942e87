"""What allocators cover of the outcomes that rounds brought, and how well they knew it.

A round of a row that had been given a draft for its outcome is covered. Outcomes that end the row,
or leave no room for a draft, need none and count apart. The oracle takes the outcomes that are the
likeliest under the policy's own law, known after the round (of its R best tokens at each position,
which is short of the whole by what the others would add): what is reached by knowing everything but
the noise of the round.

Legend: B rows, K draft budget, T = K + 1 positions of a round, R best tokens, X candidates of one
position, Y outcomes of a row, N row-rounds, F outcomes with a draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.prefetch.recorded import Recording, Round
from ngramrl_jax.host.calibration import Calibration, Flight
from ngramrl_jax.host.draft import Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.outcome_laws import new_calibration
from ngramrl_jax.host.outcomes import AllocatorName, Budget, Outcomes, outcomes_of, priorities

ALLOCATORS: tuple[AllocatorName, ...] = get_args(AllocatorName)
ORACLE = "oracle"
ENTRIES = (1, 2, 4, 8, 16, 32)
_MISSED = 1 << 20  # the rank of what is not among the outcomes at all


@dataclass
class Scored:
    """What was found of every row-round, N in number, as lists.

    Attributes:
        step: Of training.
        accepted: j of its outcome.
        drafted: Length of the draft in flight.
        ends: Whether the outcome ended the row or left no room for a draft.
        rank: For each allocator and F, how many outcomes were preferred to the one that came.
        mass: For each F, the probability that the causal choice was thought to cover.
    """

    step: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)
    rank: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    mass: dict[int, list[float]] = field(default_factory=dict)

    def covered(self, allocator: str, entries: int) -> NDArray[np.bool_]:
        """Of every row-round, whether its outcome had a draft."""
        return np.array(self.rank[allocator, entries]) < entries


def score(recordings: Sequence[Recording], rule: Rule) -> Scored:
    """Leads a new drafter through each recording and asks it before every round.

    What is learnt of the estimates themselves goes from one drafter to the next.
    """
    scored, past = Scored(), new_calibration()
    for recording in recordings:
        drafter = NgramDrafter(
            recording.rows,
            recording.draft_tokens,
            History(window=32),
            rule,
            stop_ids=recording.stop_ids,
            budget=Budget(least=0.0),  # every allocator finds candidates at every position
            calibration=past,
        )
        _score(recording, drafter, past, scored)
    return scored


def _score(recording: Recording, drafter: NgramDrafter, past: Calibration, scored: Scored) -> None:
    stop_ids = np.array(recording.stop_ids, np.int32)
    for around in recording.rounds(drafter):
        flight = Flight(around.draft_BK, around.length_B, around.room_B)
        outcomes = drafter.outcomes(*flight)
        rows = np.flatnonzero((around.count_B > 0) & (around.room_B > 0))
        happened = [_happened(around, row, recording.stop_ids) for row in rows.tolist()]
        for accepted, _, ends in happened:
            scored.step.append(around.step)
            scored.accepted.append(accepted)
            scored.ends.append(ends)
        scored.drafted += around.length_B[rows].tolist()
        for entries in ENTRIES:
            for name in ALLOCATORS:
                claim_BTX = priorities(
                    outcomes,
                    flight.length_B,
                    Budget(entries, allocator=name),
                    past.kept,
                    past.power,
                )
                _rank(scored, name, entries, claim_BTX, outcomes, rows, happened)
            mass_BY = np.sort(outcomes.mass_BTX.reshape(recording.rows, -1)[rows], axis=1)
            scored.mass.setdefault(entries, []).extend(mass_BY[:, -entries:].sum(axis=1).tolist())
        if around.best_BTR is not None and around.best_logp_BTR is not None:
            true = outcomes_of(around.best_BTR, np.exp(around.best_logp_BTR), flight, stop_ids)
            claim_BTR = np.where(true.mass_BTX > 0, true.mass_BTX, -np.inf)
            for entries in ENTRIES:
                _rank(scored, ORACLE, entries, claim_BTR, true, rows, happened)


def _happened(around: Round, row: int, stop_ids: Sequence[int]) -> tuple[int, int, bool]:
    """The outcome (j, b) of a row, and whether nothing can be drafted after it."""
    count = int(around.count_B[row])
    emitted = int(around.tokens_BT[row, count - 1])
    return count - 1, emitted, emitted in stop_ids or around.room_B[row] - count < 2


def _rank(
    scored: Scored,
    name: str,
    entries: int,
    claim_BTX: NDArray[np.floating],
    outcomes: Outcomes,
    rows: NDArray[np.intp],
    happened: Sequence[tuple[int, int, bool]],
) -> None:
    ranks = scored.rank.setdefault((name, entries), [])
    for row, (accepted, emitted, _) in zip(rows.tolist(), happened, strict=True):
        there = (outcomes.ids_BTX[row, accepted] == emitted) & (claim_BTX[row, accepted] > -np.inf)
        rank = _MISSED
        if there.any():
            x = int(np.argmax(there))
            claim = claim_BTX[row, accepted, x]
            at = accepted * there.size + x
            flat_Y = claim_BTX[row].reshape(-1)
            rank = int((flat_Y > claim).sum() + (flat_Y[:at] == claim).sum())
        ranks.append(rank)
