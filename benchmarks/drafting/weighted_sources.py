# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""Sources that count for more than others, and siblings that are still running, in replay.

To the default drafter all rollouts of a prompt are the same. Here what each says is weighed by what
is known of it: its reward or its advantage over its siblings (known as soon as it ends, which no
engine that scores a step at its end can hope for), how long it is, how old. And the rows that are
still saying a response to the same prompt may be searched like the row's own text: they are asked
where they match longer than all else.

Legend: N response tokens that a row has yet to say, R rollouts of a prompt, Y sibling rows, X
candidates for one token, F matches followed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.drafting.foreseen import ForeseenDrafter, kernel
from ngramrl_jax.host.candidates import CANDIDATES, Place, matches_at, one_on, start_of_draft
from ngramrl_jax.host.draft import Rows, Rule, guess
from ngramrl_jax.host.history import History
from ngramrl_jax.host.laws import WHOLE
from ngramrl_jax.host.log import NONE
from ngramrl_jax.host.matches import vote
from ngramrl_jax.host.ngram import DEFAULT_RULE
from ngramrl_jax.host.search import longest_matches
from ngramrl_jax.trace.records import TracedStep
from ngramrl_jax.types import BestTokens, Int32Array, Rollout

Name = tuple[int, tuple[int, int, int]]  # step and identity of a rollout


@dataclass(frozen=True)
class Source:
    """What is known of a rollout in the history, when a draft is made from it.

    Attributes:
        reward: As recorded.
        advantage: The same, less the mean of the rollouts of its prompt and step.
        length: In tokens, divided by the mean of the prompt's stored ones.
        age: In steps.
    """

    reward: float
    advantage: float
    length: float
    age: int


Weigh = Callable[[Source], float]


def scores(steps: Sequence[TracedStep]) -> dict[Name, tuple[float, float]]:
    """Reward and advantage of every rollout."""
    found: dict[Name, tuple[float, float]] = {}
    for step in steps:
        of_prompt: dict[int, list[float]] = {}
        for rollout, reward in zip(step.rollouts, step.reward_N.tolist(), strict=True):
            of_prompt.setdefault(rollout.prompt_id, []).append(reward)
        for rollout, reward in zip(step.rollouts, step.reward_N.tolist(), strict=True):
            mean = float(np.mean(of_prompt[rollout.prompt_id]))
            found[step.step, rollout.identity] = reward, reward - mean
    return found


class WeightedSources(ForeseenDrafter):
    """Keeps the true tokens that a chain drafted from weighted sources would hold."""

    def __init__(
        self,
        rows: int,
        draft_tokens: int,
        history: History,
        rule: Rule = DEFAULT_RULE,
        *,
        scored: Mapping[Name, tuple[float, float]],
        weigh: Weigh = lambda source: 1.0,
        in_flight: bool = False,
    ) -> None:
        """A drafter for idle rows.

        Args:
            rows: B.
            draft_tokens: K.
            history: Rollouts to draft from.
            rule: How matches are found.
            scored: Reward and advantage of every rollout of the trace.
            weigh: What a source counts for.
            in_flight: Whether siblings that are still running are searched, too.
        """
        super().__init__(rows, draft_tokens, history, rule)
        self._scored, self._weigh, self._in_flight = scored, weigh, in_flight
        self._known: dict[int, tuple[float, float]] = {}  # by serial number in the history
        self._ended = 0, (0, 0, 0)

    def finish_row(self, row: int) -> None:
        """The row's rollout is the one that is observed next."""
        super().finish_row(row)
        if row in self._rollouts:
            rollout = self._rollouts.pop(row)
            self._ended = rollout.step, rollout.identity

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """A finished rollout, and how it was scored."""
        self._known[self.history._next_serial] = self._scored[self._ended]
        super().observe(prompt_id, tokens_N, step, best)

    def kept(self, rows: Rows, row: int, rollout: Rollout, said: int, limit: int) -> int:
        """How many of the chain's tokens are the true ones, from the first on."""
        window = self.history._windows.get(rollout.prompt_id, [])
        mean = self.history.mean_length(rollout.prompt_id)
        weights = [
            self._weigh(
                Source(*self._known[each.serial], each.size / mean, rollout.step - each.step)
            )
            for each in window
        ]
        siblings = [
            other
            for other, running in self._rollouts.items()
            if self._in_flight and other != row and running.prompt_id == rollout.prompt_id
        ]
        return _kept(
            self.history.log,
            rows,
            self._rule,
            row,
            np.array(siblings, np.int32),
            np.array([each.begin for each in window], np.int32),
            np.array(weights, np.float64),
            rollout.tokens_N[said : said + limit],
        )


@kernel
def _kept(log, rows, rule, row, sibling_Y, begin_R, weight_R, ahead_N):
    found_F, alike_F, own_F = np.empty((3, rule.followed), np.int32)
    ids_X, words_X = np.empty(CANDIDATES, np.int32), np.empty(CANDIDATES, np.uint32)
    mass_X = np.empty(CANDIDATES, np.float64)
    keyed, key_W = rule.noise and rows.keyed_B[row], rows.key_BW[row]
    text_S, everyone_C = rows.text_BS[row], log.owner_C[:0]
    for sibling in sibling_Y:
        start_of_draft(rows, sibling)  # chains what it has said
    place = start_of_draft(rows, row)
    for n in range(ahead_N.size):
        count, length, own_length = matches_at(
            log, rows, rule, row, place, found_F, own_F[:1], False
        )
        token, longest = NONE, max(length, own_length)
        if own_length > length:
            token = text_S[own_F[0] + 1]
        elif count > 0:
            candidates = _gather(log, rule, found_F, count, begin_R, weight_R, ids_X, mass_X)
            token = guess(ids_X, mass_X, words_X, candidates, keyed, key_W, place.here)
        for sibling in sibling_Y:
            theirs_S = rows.text_BS[sibling]
            _, reach = longest_matches(
                theirs_S, everyone_C, rows.chain_BGS[sibling], rows.bucket_BGH[sibling],
                0, 0, rule.steps, text_S, 0, place.here, own_F[:1], alike_F, longest,
            )  # fmt: skip
            if reach > longest:
                token, longest = theirs_S[own_F[0] + 1], reach
        if token != ahead_N[n]:
            return n
        text_S[place.here] = token
        place = one_on(log, Place(place.here, np.int64(count), np.int64(length)), found_F, token)
    return ahead_N.size


@kernel
def _gather(log, rule, found_F, count, begin_R, weight_R, ids_X, mass_X):
    """As `matches.gather`, each source with its weight."""
    candidates = 0
    for f in range(count):
        position = found_F[f]
        weight = weight_R[np.searchsorted(begin_R, position, side="right") - 1]
        drawn, rest = log.tokens_C[position + 1], WHOLE
        for entry in range(log.law_C[position], log.law_C[position + 1]):
            mass = np.int64(log.probs_E[entry])
            candidates = vote(ids_X, mass_X, candidates, log.ids_E[entry], weight * mass)
            rest -= mass
            if log.ids_E[entry] == drawn:
                drawn = NONE
        if drawn != NONE and rest > 0:
            candidates = vote(ids_X, mass_X, candidates, drawn, weight * rest)
    return candidates
