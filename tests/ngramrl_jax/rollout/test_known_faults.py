"""Faults of other systems (CASES) through the whole engine: the right value of each.

Legend: B rows, K draft budget, N response tokens, V vocabulary.
"""

from dataclasses import replace
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from ngramrl_jax import stats
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import RolloutRequest, Sampling
from tests.support.drafters import OracleDrafter, RandomDrafter
from tests.support.table_policy import TablePolicy, random_table

V = 10
STOP = 2
ALPHA = 1e-3
TABLE = random_table(V, seed=4)
BASE = EngineSettings(
    slots=4, draft_tokens=3, max_prompt_tokens=4, max_new_tokens=8, stop_ids=(STOP,)
)


class FixedDrafter(RandomDrafter):
    """Proposes the same tokens in every round; `pushy` ones ignore the limit they are told."""

    def __init__(self, rows, tokens, pushy=False):
        super().__init__(rows, len(tokens), vocab=2)
        self._tokens, self._pushy = tokens, pushy

    def propose(self, limit_B):
        draft_BK = np.tile(np.array(self._tokens, np.int32), (len(limit_B), 1))
        most_B = np.full_like(limit_B, len(self._tokens))
        return draft_BK, most_B if self._pushy else np.minimum(limit_B, most_B)


def request(prompt, room, prompt_id=0, sibling=0):
    return RolloutRequest(prompt_id, sibling, np.array(prompt, np.int32), room)


def generate(drafter, asked, table=TABLE, settings=BASE, seed=0, step=0):
    engine = RolloutEngine(TablePolicy(table.shape[0]), drafter, settings)
    rollouts, _ = engine.generate(jnp.asarray(table), asked, seed=seed, step=step, policy_version=0)
    return rollouts


def chain(*tokens):
    """A table in which each token is surely followed by the next."""
    table = np.zeros((V, V, V), np.float32)
    for token, following in pairwise(tokens):
        table[:, token, following] = 50.0
    return table


def texts(rollouts):
    return [rollout.tokens_N.tolist() for rollout in rollouts]


@pytest.mark.stat
@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
def test_a_draft_is_taken_by_chance_not_for_being_likely(verifier):
    """B3: the likeliest token, drafted 4000 times, is kept as often as p says. Error rate 1e-3."""
    logits_V = np.array([2.0, 1.5, 1.0, 0.5], np.float32)
    table = np.broadcast_to(logits_V, (4, 4, 4)).copy()
    settings = replace(BASE, slots=100, draft_tokens=1, stop_ids=(9,), verifier=verifier)
    asked = [request([3], 2, sibling=i) for i in range(4000)]
    rollouts = generate(FixedDrafter(100, [0]), asked, table, settings)
    count_V = np.bincount([rollout.tokens_N[0] for rollout in rollouts], minlength=4)
    law_V = softmax(logits_V.astype(np.float64))
    assert law_V[0] == pytest.approx(0.455, abs=1e-3)
    assert stats.chi_square(count_V, law_V).p_value > ALPHA
    kept = sum(bool(rollout.drafted_N[0]) for rollout in rollouts)
    assert kept == count_V[0]
    always_V = np.array([4000, 0, 0, 0])  # the fault
    assert stats.chi_square(always_V, law_V).p_value < ALPHA


def test_a_stop_token_inside_an_accepted_draft_ends_the_row():
    """B15: of the draft [7, STOP, 9], all of it what the target says, [7, STOP] is committed."""
    table = chain(3, 7, STOP, 9, 9)
    drafter = FixedDrafter(1, [7, STOP, 9])
    settings = replace(BASE, slots=1, sampling=Sampling(0.0))
    asked = [request([3], 8), request([4, 3], 8, prompt_id=1)]  # the second takes the same slot
    first, second = generate(drafter, asked, table, settings)
    for rollout in (first, second):
        assert rollout.tokens_N.tolist() == [7, STOP]
        assert rollout.drafted_N.tolist() == [True, True]
        assert not rollout.truncated
        assert rollout.rounds == 1
    observed = [event[2].tolist() for event in drafter.events if event[0] == "observe"]
    heard = [event[2].tolist() for event in drafter.events if event[0] == "commit"]
    assert observed == [[7, STOP], [7, STOP]]  # history learns nothing past the stop
    assert heard == [[2], [2]]


@pytest.mark.parametrize("pushy", [False, True])
def test_no_row_gets_more_than_its_room(pushy):
    """B17, B18: whatever is drafted, and longer than any response may be."""
    table, draft = chain(3, 7, 8, 9, 7), [7, 8, 9, 7, 8, 9, 7, 8, 9]
    asked = [request([3], room, prompt_id=room) for room in (1, 2, 3, 4)]
    settings = replace(BASE, draft_tokens=len(draft), max_new_tokens=4)
    rollouts = generate(FixedDrafter(4, draft, pushy), asked, table, settings)
    assert texts(rollouts) == [[7, 8, 9, 7][:room] for room in (1, 2, 3, 4)]
    assert all(rollout.truncated for rollout in rollouts)


@pytest.mark.parametrize("draft_tokens", [0, 5])
def test_the_last_place_of_the_cache_is_used_once(draft_tokens):
    """B20, B18: rows that fill their cache to the end say what they say in a roomy one."""
    asked = [request([1, 3, 4, 5], 8, prompt_id=i) for i in range(6)]
    tight = replace(BASE, draft_tokens=draft_tokens, stop_ids=(99,), plain_rounds=5)
    roomy = replace(tight, max_prompt_tokens=30, max_new_tokens=90)

    def drafter():
        return FixedDrafter(4, [1] * draft_tokens, pushy=True) if draft_tokens else NoDrafter(4)

    rollouts = generate(drafter(), asked, settings=tight)
    assert texts(rollouts) == texts(generate(drafter(), asked, settings=roomy))
    assert {len(rollout.tokens_N) for rollout in rollouts} == {8}


def test_siblings_differ_repeat_and_do_not_see_their_batch_mates():
    """B13: n = 3 and one seed give three texts, the same ones in any company; steps differ."""
    settings = replace(BASE, stop_ids=(99,), slots=3)
    asked = [request([3], 8, sibling=i) for i in range(3)]
    three = texts(generate(NoDrafter(3), asked, settings=settings, seed=42))
    assert len({tuple(text) for text in three}) == 3
    assert texts(generate(NoDrafter(3), asked, settings=settings, seed=42)) == three
    others = [request([5], 6, prompt_id=1, sibling=i) for i in range(20)]
    crowd = generate(NoDrafter(3), [*others, *asked], settings=settings, seed=42)
    assert texts(crowd)[20:] == three
    for change in ({"seed": 43}, {"seed": 42, "step": 1}):
        assert texts(generate(NoDrafter(3), asked, settings=settings, **change)) != three


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.5), Sampling(0.9, top_k=4)])
def test_every_committed_token_carries_its_own_log_probability(sampling):
    """B5, B30, B31, B32: of the drawn token, with temperature and filter, drafted or not."""
    settings = replace(BASE, sampling=sampling)
    asked = [request([1, 3], 8, prompt_id=i) for i in range(30)]
    plain = generate(NoDrafter(4), asked, settings=replace(settings, draft_tokens=0))
    future = {(r.prompt_id, r.sibling): r.tokens_N for r in plain}
    rollouts = generate(OracleDrafter(4, 3, future, wrong=0.2), asked, settings=settings)
    drafted = sum(int(rollout.drafted_N.sum()) for rollout in rollouts)
    assert drafted > 30
    for rollout in rollouts:
        context = [*rollout.prompt_P.tolist(), *rollout.tokens_N.tolist()]
        for n, logp in enumerate(rollout.logps_N):
            before, last, token = context[n : n + 3]
            logits_V = TABLE[before, last].astype(np.float64) / sampling.temperature
            if sampling.top_k:
                logits_V[logits_V < np.sort(logits_V)[-sampling.top_k]] = -np.inf
            assert logp == pytest.approx(log_softmax(logits_V)[token], abs=1e-5)


def test_the_highest_slot_drafts_as_well_as_the_first():
    """B25: the same requests in the opposite slots take the same rounds and accept the same."""
    settings = replace(BASE, slots=5, stop_ids=(99,))
    asked = [request([1, 3], 8, prompt_id=i) for i in range(5)]

    def second_step(asked):
        history = History(window=4)
        engine = RolloutEngine(TablePolicy(V), NgramDrafter(5, 3, history), settings)
        for step in (0, 0):  # the second time each row has its own text in the history
            rollouts, _ = engine.generate(
                jnp.asarray(TABLE), asked, seed=0, step=step, policy_version=0
            )
        return {r.prompt_id: (r.rounds, r.drafted_N.tolist()) for r in rollouts}

    taken = second_step(asked)
    assert second_step(asked[::-1]) == taken
    assert all(rounds <= 4 for rounds, _ in taken.values())  # 8 tokens: drafts were kept
