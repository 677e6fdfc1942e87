# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""How likely each outcome of a round in flight is, and which of them are worth a draft.

Let a row's draft be d_1..d_k. With S_j the probability that d_1..d_j are accepted, its outcome is
(j, b) with probability S_j p(b | d_1..d_j), b other than d_(j+1) for j < k: the probability that
what is sampled starts with d_1..d_j b. What a set of outcomes covers is a sum, so the best F are
the F most likely ones. Every estimate is causal: it knows what was committed, the history and,
where the drafter may use it, the row's key, which it drafts with already; never the logits of the
round.

Legend: B rows, K draft tokens, T = K + 1 positions of a round, X candidates of one position,
F outcomes that get a draft, Y outcomes of all rows.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ngramrl_jax.host.calibration import Flight
from ngramrl_jax.host.checks import at_least
from ngramrl_jax.host.kernel import inlined, kernel
from ngramrl_jax.host.log import NONE
from ngramrl_jax.types import Float32Array, Int32Array

AllocatorName = Literal["causal", "uniform", "geometric", "all_accepted"]


class Outcomes(NamedTuple):
    """What a round in flight may bring.

    Attributes:
        ids_BTX: int32, the emitted b after j = T accepted tokens.
        chance_BTX: float32, probability of b where d_1..d_j were accepted.
        mass_BTX: float32, probability of the outcome; 0 where there is none, and where it ends the
            row or leaves no room for a draft.
        ending_B: float32, probability of the outcomes that end the row.
    """

    ids_BTX: Int32Array
    chance_BTX: Float32Array
    mass_BTX: Float32Array
    ending_B: Float32Array


@dataclass(frozen=True)
class Budget:
    """How many outcomes get a draft, and how they are chosen.

    Attributes:
        entries: F, outcomes a row.
        pooled: The rows' budgets are one, and the likeliest outcomes of all rows take it; a row has
            at most twice its share.
        least: The causal choice leaves out outcomes of a smaller mass, and nothing is asked about
            positions that are reached with a smaller probability.
        allocator: "causal" takes the likeliest. For comparison: "uniform" gives each position of
            the draft as many, "geometric" follows Saguaro's law, "all_accepted" expects the whole
            draft to be kept.

    Raises:
        ValueError: No entries, a share that is none, or an unknown allocator.
    """

    entries: int = 16
    pooled: bool = False
    least: float = 0.002
    allocator: AllocatorName = "causal"

    def __post_init__(self) -> None:
        at_least("entries", self.entries, 1)
        if not 0 <= self.least < 1:
            raise ValueError(f"least: found {self.least}, allowed: 0 to below 1")
        if self.allocator not in get_args(AllocatorName):
            allowed = ", ".join(get_args(AllocatorName))
            raise ValueError(f"allocator: found {self.allocator}, allowed: {allowed}")

    @property
    def width(self) -> int:
        """The most entries that one row can get."""
        return 2 * self.entries if self.pooled else self.entries


def outcomes_of(
    ids_BTX: Int32Array, chance_BTX: Float32Array, flight: Flight, stop_ids: Int32Array
) -> Outcomes:
    """The masses of all outcomes (j, b), and of those together that end their row."""
    mass_BTX, ending_B = np.zeros_like(chance_BTX), np.zeros(len(chance_BTX), np.float32)
    _masses(ids_BTX, chance_BTX, flight, stop_ids, mass_BTX, ending_B)
    return Outcomes(ids_BTX, chance_BTX, mass_BTX, ending_B)


@inlined
def _is_in(token, stop_ids):
    found = False
    for stop in stop_ids:
        found |= stop == token
    return found


@kernel
def _masses(ids_BTX, chance_BTX, flight, stop_ids, mass_BTX, ending_B):
    for row in range(len(mass_BTX)):
        accepted, drafted = np.float32(1.0), flight.length_B[row]
        for t in range(drafted + 1):
            left = flight.room_B[row] - (t + 1)
            if left < 1:  # whatever comes is the row's last token, if it is not idle
                ending_B[row] += accepted if left == 0 else np.float32(0.0)
                break
            expected = flight.draft_BK[row, t] if t < drafted else NONE
            chance = np.float32(0.0)
            for x in range(ids_BTX.shape[2]):
                token = ids_BTX[row, t, x]
                if chance_BTX[row, t, x] > 0:
                    mass = accepted * chance_BTX[row, t, x]
                    if token == expected:
                        chance = chance_BTX[row, t, x]
                    if _is_in(token, stop_ids):
                        ending_B[row] += mass
                    elif token != expected and left >= 2:  # there is room for a draft
                        mass_BTX[row, t, x] = mass
            accepted *= chance
            if accepted == 0.0 or _is_in(expected, stop_ids):
                break


def priorities(
    outcomes: Outcomes, flown_B: Int32Array, budget: Budget, kept: float, power: float
) -> Float32Array:
    """What each outcome's claim to an entry is, `priority_BTX`; -inf where there is none.

    A rule that gives position j a number F_j of entries is the priority F_j - rank, with the rank
    of b among the outcomes of the position, from 0: the F largest are F_j each, fractions rounded
    by the largest remainder, and what a position has no candidates for goes to the others.
    """
    mass_BTX = outcomes.mass_BTX
    if budget.allocator == "causal":
        worth_BTX = (mass_BTX > 0) & (mass_BTX >= budget.least)
        return np.where(worth_BTX, mass_BTX, -np.inf).astype(np.float32)
    order_BTX = np.argsort(-mass_BTX, axis=2, kind="stable")
    rank_BTX = np.argsort(order_BTX, axis=2, kind="stable")
    quota_BT = np.zeros(mass_BTX.shape[:2])
    for flown in np.unique(flown_B).tolist():
        quota_BT[flown_B == flown, : flown + 1] = quota(budget, flown, kept, power)
    return np.where(mass_BTX > 0, quota_BT[:, :, None] - rank_BTX, -np.inf).astype(np.float32)


def quota(budget: Budget, flown: int, kept: float, power: float) -> NDArray[np.float64]:
    """F_j of the positions 0 to `flown` of a draft, which sum to F.

    Geometric: Kumar, Dao and May (arXiv 2603.03251), Theorem 12, with a = `kept`, r = `power`.
    """
    quota_T = np.zeros(flown + 1)
    if budget.allocator == "all_accepted":
        quota_T[flown] = 1.0
    elif budget.allocator == "uniform":
        quota_T[:] = 1.0
    else:
        quota_T[:] = kept ** (np.arange(flown + 1) / (1 + power))
        quota_T[flown] *= (1 - kept) ** (-1 / (1 + power))
    return budget.entries * quota_T / quota_T.sum()


def allocate(priority_BTX: Float32Array, budget: Budget) -> Int32Array:
    """The outcomes that get a draft, `chosen_BF`: indices into [T X], rising; -1 where unused."""
    chosen_BF = np.full((len(priority_BTX), budget.width), -1, np.int32)
    claim_BF = np.full(chosen_BF.shape, -np.inf, np.float32)
    _largest(priority_BTX.reshape(len(priority_BTX), -1), chosen_BF, claim_BF)
    if budget.pooled:
        rows = int((chosen_BF >= 0).any(axis=1).sum())
        spare_Y = np.argsort(-claim_BF, axis=None, kind="stable")[rows * budget.entries :]
        chosen_BF.reshape(-1)[spare_Y] = -1
    chosen_BF.sort(axis=1)
    return chosen_BF


@kernel
def _largest(priority_BY, chosen_BF, claim_BF):
    """The largest of each row, the first of equal ones first."""
    for row in range(len(priority_BY)):
        chosen_F, claim_F = chosen_BF[row], claim_BF[row]
        count = 0
        for y in range(priority_BY.shape[1]):
            claim = priority_BY[row, y]
            if claim == -np.inf or (count == claim_F.size and claim <= claim_F[count - 1]):
                continue
            place = count if count < claim_F.size else count - 1
            count = place + 1
            while place > 0 and claim_F[place - 1] < claim:
                claim_F[place], chosen_F[place] = claim_F[place - 1], chosen_F[place - 1]
                place -= 1
            claim_F[place], chosen_F[place] = claim, y
