"""The n-gram drafter's rule in plain Python: every place is compared token by token.

A place is a position of a text that some token follows. Nothing is hashed, chained or shared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import NamedTuple

import numpy as np

from ngramrl_jax.host.draft import Rule
from ngramrl_jax.host.laws import NEGLIGIBLE, WHOLE
from ngramrl_jax.host.noise import gumbel, threefry
from ngramrl_jax.host.search import LONGEST, SURROUNDINGS, TOLERANCE
from ngramrl_jax.types import BestTokens

UNLIKELY = 2.0**-10  # share of the mass below which a candidate is out

START = -1
Law = list[tuple[int, int]]


class Told(NamedTuple):
    """A rollout: START and its tokens, and the law of each token."""

    prompt_id: int
    text: list[int]
    laws: list[Law]


class Place(NamedTuple):
    told: Told
    at: int

    @property
    def next_token(self) -> int:
        return self.told.text[self.at + 1]

    def votes(self, laws: bool) -> Law:
        law = self.told.laws[self.at] if laws else []
        rest = WHOLE - sum(mass for _, mass in law)
        unlisted = self.next_token not in [token for token, _ in law]
        return [*law, (self.next_token, rest)] if unlisted and rest > 0 else law

    def on(self) -> list["Place"]:
        """The place one token on, where some token follows it too."""
        return [Place(self.told, self.at + 1)] if self.at + 2 < len(self.told.text) else []


def laws(tokens: Sequence[int], best: BestTokens | None) -> list[Law]:
    """What the history keeps of the best tokens."""
    if best is None:
        return [[] for _ in tokens]
    kept = []
    for token, ids, logps in zip(tokens, best.ids_NR.tolist(), best.logps_NR.tolist(), strict=True):
        law = []
        for listed, logp in zip(ids, logps, strict=True):
            mass = round(exp(logp) * WHOLE)
            if mass < NEGLIGIBLE:
                break
            law.append((listed, mass))
        certain = ids[0] == token and exp(logps[0]) * WHOLE > WHOLE - NEGLIGIBLE
        kept.append([] if certain else law)
    return kept


def places_of(text: list[int], told: Told) -> list[Place]:
    """The last position first."""
    return [Place(told, at) for at in range(len(text) - 2, -1, -1)]


def shared(place: Place, context: Sequence[int]) -> int:
    """Length of the suffix of the context that ends at the place; LONGEST where it is all of it."""
    length = 0
    while (
        length < min(LONGEST, len(context), place.at + 1)
        and place.told.text[place.at - length] == context[len(context) - 1 - length]
    ):
        length += 1
    return LONGEST if length == len(context) else length


def alike(place: Place, context: Sequence[int]) -> int:
    """How many of the last 16 tokens are the same, START the last; 0 where all that count are."""
    if shared(place, context) == LONGEST:
        return 0
    same = 0
    for back in range(min(SURROUNDINGS, place.at + 1, len(context))):
        here, there = context[len(context) - 1 - back], place.told.text[place.at - back]
        same += here == there
        if START in (here, there):
            break
    return same


def longest(
    places: Sequence[Place], context: Sequence[int], most: int, steps: int
) -> tuple[list[Place], int]:
    """The newest `most` of the longest among the newest `steps` that share four tokens, or one."""
    for gram in (4, 1):
        near = [p for p in places if shared(p, context) >= min(gram, len(context))][:steps]
        if near:
            length = max(shared(place, context) for place in near)
            near = [place for place in near if shared(place, context) == length]
            near = sorted(near, key=lambda place: -alike(place, context))[:most]
            enough = alike(near[0], context) - TOLERANCE
            return [place for place in near if alike(place, context) >= enough], length
    return [], 0


@dataclass
class Row:
    prompt_id: int
    prompt: list[int]
    key: tuple[int, int] | None
    response: list[int] = field(default_factory=list)


@dataclass
class PlainDrafter:
    """`NgramDrafter` and its history; `rollouts` are those of all prompts, oldest first."""

    window: int
    rule: Rule
    rollouts: list[Told] = field(default_factory=list)
    rows: dict[int, Row] = field(default_factory=dict)

    def observe(self, prompt_id: int, tokens: list[int], best: BestTokens | None) -> None:
        self.rollouts.append(Told(prompt_id, [START, *tokens], laws(tokens, best)))
        same = [told for told in self.rollouts if told.prompt_id == prompt_id]
        if len(same) > self.window:
            self.rollouts = [told for told in self.rollouts if told is not same[0]]

    def draft(self, number: int, limit: int) -> tuple[list[int], int]:
        """A row's draft and the length of the match that it starts from."""
        row = self.rows[number]
        same = [told for told in reversed(self.rollouts) if told.prompt_id == row.prompt_id]
        places = [place for told in same for place in places_of(told.text, told)]
        said = [*row.prompt, *row.response]
        own = places_of(said, Told(row.prompt_id, said, []))
        draft, followed, length, first_length = [], [], 0, 0
        while len(draft) < limit:
            context = [START, *row.response, *draft]
            if not followed:
                followed, length = longest(places, context, self.rule.followed, self.rule.steps)
            own_found, own_length = [], 0
            if self.rule.own_text and length < 4:
                own_found, own_length = longest(own, [START, *said, *draft], 1, self.rule.steps)
            if length == own_length == 0:
                followed = self._pick_up(places, context)
            if own_length > length:
                token = own_found[0].next_token
            elif followed:
                token = self._choose(followed, row.key, len(said) + len(draft))
            else:
                break
            if not draft:
                first_length = max(length, own_length)
            draft.append(token)
            followed = [on for place in followed if place.next_token == token for on in place.on()]
            length = min(length + 1, LONGEST) if followed else 0
        return draft, first_length

    def _pick_up(self, places: Sequence[Place], context: list[int]) -> list[Place]:
        for skipped in range(1, min(self.rule.skipped, len(context) - 1) + 1):
            found, _ = longest(places, context[:-skipped], self.rule.followed, self.rule.steps)
            if found:
                for _ in range(skipped):
                    found = [on for place in found for on in place.on()]
                return found
        return []

    def _choose(self, followed: list[Place], key: tuple[int, int] | None, position: int) -> int:
        masses: dict[int, int] = {}
        for place in followed:
            for token, mass in place.votes(self.rule.laws):
                masses[token] = masses.get(token, 0) + mass
        total = sum(masses.values())
        likeliest = max(masses, key=lambda token: masses[token])
        surely = masses[likeliest] > (1 - UNLIKELY) * total
        if key is None or not self.rule.noise or surely:
            return likeliest
        high, low = threefry(
            np.uint32(key[0]), np.uint32(key[1]), np.uint32(0), np.uint32(position)
        )
        worthwhile = [token for token, mass in masses.items() if mass >= UNLIKELY * total]
        return max(worthwhile, key=lambda token: log(masses[token]) + gumbel(high, low, token))
