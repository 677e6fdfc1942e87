"""Independence: what was said elsewhere must not make a token more or less likely.

Wherever two tokens share noise that they should not share, the second one repeats the first more
often than its own law says. So for every token and an earlier one that was drawn independently (by
a sibling, in the other epoch, for another prompt, a little before in the same text) the repeats are
counted and set against the sum of the probabilities that the policy gave to a repeat, each in its
own context. With fresh noise the difference is a martingale whatever the contexts are, and
Freedman's inequality bounds its tail without any approximation.

Legend: N response tokens, C ids asked about, P prompt tokens.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ngramrl_jax.evidence.plain_forward import NOBODY, Told
from ngramrl_jax.evidence.subject import Finding
from ngramrl_jax.stats import holm
from ngramrl_jax.types import Int32Array, Rollout

PAIRS = ("siblings", "steps", "prompts", "positions")
WIDE = 8  # other prompts, and earlier tokens of the same text, that a token may repeat
LEAST_VARIANCE = 5.0  # below it, no dependence could be told from chance
_COLUMNS = dict(zip(PAIRS, np.split(np.arange(1, 3 + 2 * WIDE), [1, 2, 2 + WIDE]), strict=True))


class Repeats(NamedTuple):
    """Repeats of one kind of pair.

    Attributes:
        observed: How often the token was repeated.
        expected: Sum of the probabilities of a repeat.
        variance: Sum of `p (1 - p)`.
        p_value: Bound on the chance of so large a difference if noise is independent.
        telling: Whether enough repeats were open for a dependence to be seen.
    """

    observed: int
    expected: float
    variance: float
    p_value: float
    telling: bool


def asked_ids(first: Sequence[Rollout], second: Sequence[Rollout]) -> list[Int32Array]:
    """For every token of the second epoch: itself, then what it might repeat.

    Returns:
        One int32 `[N, 3 + 2 * WIDE]` a rollout: the token itself, then the ids for each of `PAIRS`.
    """
    by_name = {rollout.identity: rollout for rollout in second}
    earlier = {rollout.identity: rollout for rollout in first}
    return [_asked(rollout, by_name, earlier) for rollout in second]


def repeats(
    rollouts: Sequence[Rollout], told: Sequence[Told], asked: Sequence[Int32Array]
) -> dict[str, Repeats]:
    """The four counts, by the names in `PAIRS`."""
    own_N = np.concatenate([rollout.tokens_N for rollout in rollouts])
    ids_NC = np.concatenate(asked)
    chance_NC = np.exp(np.concatenate([said.logp_NC for said in told]), dtype=np.float64)
    same_NC = (ids_NC == own_N[:, None]) & (ids_NC != NOBODY)
    counted = {}
    for name, columns_X in _COLUMNS.items():
        observed_N, chance_N = same_NC[:, columns_X].sum(1), chance_NC[:, columns_X].sum(1)
        observed, expected = int(observed_N.sum()), float(chance_N.sum())
        variance = float((chance_N * (1 - chance_N)).clip(min=0).sum())
        p_value = freedman_tail(observed - expected, variance)
        telling = variance >= LEAST_VARIANCE
        counted[name] = Repeats(observed, expected, variance, p_value, telling)
    return counted


def freedman_tail(difference: float, variance: float) -> float:
    """Bound on the chance that a martingale strays by `difference` or more, either way.

    For increments of at most 1 whose conditional variances sum to `variance`:
    `2 exp(-x^2 / (2 (variance + x / 3)))` (Freedman, Annals of Probability 3, 1975).
    """
    x = abs(difference)
    if x == 0:
        return 1.0
    return min(1.0, 2 * math.exp(-(x**2) / (2 * (variance + x / 3))))


def independence(counted: Mapping[str, Repeats], alpha: float) -> Finding:
    """Judges the counts; the chance of a false alarm over all of them is at most alpha."""
    rejected = dict(
        zip(counted, holm([one.p_value for one in counted.values()], alpha), strict=True)
    )
    silent = [name for name, one in counted.items() if not one.telling]
    alarms = [name for name in counted if rejected[name]]
    enough = counted["siblings"].telling and counted["steps"].telling
    seen = ", ".join(
        f"{name} {one.observed:,} ({one.expected:,.1f} ± {math.sqrt(one.variance):.1f})"
        for name, one in counted.items()
    )
    worst = min(one.p_value for one in counted.values())
    return Finding(
        name="independent siblings, steps, prompts, positions",
        outcome="fails" if alarms else "holds" if enough else "no power",
        found=f"repeats, and expected: {seen}; smallest p {worst:.2g}"
        + (f"; dependent: {', '.join(alarms)}" if alarms else "")
        + (f"; too few open places to tell: {', '.join(silent)}" if silent else ""),
        rule=f"Freedman's bound, Holm over {len(counted)} at alpha {alpha:g}",
        numbers={
            f"{name}_{key}": value
            for name, one in counted.items()
            for key, value in one._asdict().items()
        }
        | {f"{name}_rejected": int(rejected[name]) for name in counted},
    )


def _asked(
    rollout: Rollout,
    by_name: Mapping[tuple[int, int, int], Rollout],
    earlier: Mapping[tuple[int, int, int], Rollout],
) -> Int32Array:
    prompt_id, sibling, attempt = rollout.identity
    count = len(rollout.tokens_N)
    # Each pair once: the odd one looks at the even one.
    partner = by_name.get((prompt_id, sibling - 1, attempt)) if sibling % 2 else None
    others_XN = [NOBODY * np.ones(count, np.int32)]
    for other_id in range(max(0, prompt_id - WIDE), prompt_id):
        other = by_name[other_id, sibling, attempt]
        shift = len(rollout.prompt_P) - len(other.prompt_P)  # to the same absolute position
        others_XN.append(_aligned(other, count, shift))
    asked_NC = np.full((count, 3 + 2 * WIDE), NOBODY, np.int32)
    asked_NC[:, 0] = rollout.tokens_N
    asked_NC[:, _COLUMNS["siblings"]] = _aligned(partner, count)[:, None]
    asked_NC[:, _COLUMNS["steps"]] = _aligned(earlier.get(rollout.identity), count)[:, None]
    for at in range(count):
        _fill(asked_NC[at, _COLUMNS["prompts"][0] :], [ids_N[at] for ids_N in others_XN])
        _fill(asked_NC[at, _COLUMNS["positions"][0] :], rollout.tokens_N[max(0, at - WIDE) : at])
    return asked_NC


def _fill(row_C: Int32Array, ids: Sequence[int] | Int32Array) -> None:
    """Writes each id once, `NOBODY` not at all."""
    different = np.setdiff1d(np.asarray(ids, np.int32), [NOBODY])
    row_C[: len(different)] = different


def _aligned(other: Rollout | None, count: int, shift: int = 0) -> Int32Array:
    """The other's token at each of `count` places, `shift` further on; `NOBODY` where none is."""
    ids_N = np.full(count, NOBODY, np.int32)
    if other is not None:
        place_N = np.arange(count) + shift
        there_N = (place_N >= 0) & (place_N < len(other.tokens_N))
        ids_N[there_N] = other.tokens_N[place_N[there_N]]
    return ids_N
