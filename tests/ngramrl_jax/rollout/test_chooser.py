"""A chosen draft length changes no token, compiles few programs and learns from shadow drafts."""

import time
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.host.draft_length import MOST_PROGRAMS
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.rollout.chooser import ChosenLength, Drafts, FixedLength, make_chooser, shadow_kept
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.rollout.wire import RoundResult
from ngramrl_jax.types import RolloutRequest
from tests.support.table_policy import TablePolicy, random_table

V, SLOTS, K, LONGEST = 6, 4, 8, 40
TABLE = jnp.asarray(random_table(V, seed=0, spread=6.0))
SETTINGS = EngineSettings(
    slots=SLOTS,
    draft_tokens=K,
    draft_length="auto",
    max_prompt_tokens=8,
    max_new_tokens=LONGEST,
    stop_ids=(0,),
)


def requests(prompts=8, group=3):
    rng = np.random.default_rng(1)
    texts = [rng.integers(1, V, 1 + p % 5, dtype=np.int32) for p in range(prompts)]
    return [
        RolloutRequest(p, s, texts[p], LONGEST - p) for p in range(prompts) for s in range(group)
    ]


def engine(settings=SETTINGS):
    drafter = NoDrafter(SLOTS)
    if settings.draft_tokens:
        drafter = NgramDrafter(SLOTS, settings.draft_tokens, History(8))
    return RolloutEngine(TablePolicy(V), drafter, settings)


def generate(machine, step=0):
    return machine.generate(TABLE, requests(), seed=0, step=step, policy_version=0)


class Costs:
    """Puts costs of our own in the place of what the clock says."""

    def __init__(self, machine, seconds_of):
        self.plans, self._inner, self._seconds_of = [], machine._chooser, seconds_of

    def trials(self):
        return self._inner.trials()

    def plan(self, slots, drafts):
        self.plans.append(self._inner.plan(slots, drafts))
        return self.plans[-1]

    def learn(self, plan, running_B, result, seconds):
        rounds = max(int(result.count_B.max()), 1) if plan.rung.draft_tokens == 0 else 1
        self._inner.learn(
            plan, running_B, result, rounds * self._seconds_of(plan.rung.draft_tokens)
        )


CHEAP = {0: 1.0, 3: 1.01, 8: 1.02}
DEAR = {0: 1.0, 3: 5.0, 8: 10.0}
BETWEEN = {0: 1.0, 3: 1.5, 8: 2.5}


@pytest.fixture(scope="module")
def plain():
    settings = replace(SETTINGS, draft_tokens=0)
    machine = engine(settings)
    return [generate(machine, step)[0] for step in range(3)]


@pytest.mark.parametrize("costs", [CHEAP, DEAR, BETWEEN])
def test_no_token_depends_on_the_lengths_chosen(plain, costs):
    machine = engine()
    machine._chooser = Costs(machine, costs.get)
    machine.warm_up(TABLE)
    compiled = dict(machine.programs.compiled)
    for step, expected in enumerate(plain):
        rollouts, counters = generate(machine, step)
        for one, other in zip(expected, rollouts, strict=True):
            np.testing.assert_array_equal(one.tokens_N, other.tokens_N)
            np.testing.assert_allclose(one.logps_N, other.logps_N, atol=1e-6)
            assert one.truncated == other.truncated
        assert counters.length_forwards.sum() == counters.forwards
        assert counters.length_seconds.sum() > 0
        assert set(np.flatnonzero(counters.length_forwards)) <= {0, 3, 8}
    assert dict(machine.programs.compiled) == compiled
    used = {plan.rung.draft_tokens for plan in machine._chooser.plans[-30:]}
    if costs is CHEAP:
        assert 8 in used
    if costs is DEAR:
        assert counters.length_forwards[0] > 0.95 * counters.forwards
        assert counters.drafted_tokens < 0.1 * counters.committed_tokens


def test_a_run_of_auto_compiles_each_program_once_and_few_of_them():
    machine = engine()
    machine.warm_up(TABLE)
    assert set(machine.programs.compiled.values()) == {1}
    rounds = [key for key in machine.programs.compiled if key[0] in ("plain", "speculative")]
    assert len(rounds) == 3


@pytest.mark.parametrize(("longest", "draft_tokens"), [(100, 16), (32_000, 16), (1_000_000, 64)])
def test_however_long_the_responses_the_programs_are_few(longest, draft_tokens):
    settings = replace(SETTINGS, max_new_tokens=longest, draft_tokens=draft_tokens)
    plans = list(ChosenLength(settings).trials())
    programs = {(plan.rung.draft_tokens, plan.live) for plan in plans}
    assert 2 <= len(programs) <= MOST_PROGRAMS
    assert max(plan.live for plan in plans) == settings.capacity


def test_nothing_is_chosen_where_the_length_is_fixed():
    assert isinstance(make_chooser(replace(SETTINGS, draft_length="fixed")), FixedLength)
    assert isinstance(make_chooser(replace(SETTINGS, draft_tokens=0)), FixedLength)
    assert isinstance(make_chooser(SETTINGS), ChosenLength)
    _, counters = generate(engine(replace(SETTINGS, draft_length="fixed")))
    assert np.flatnonzero(counters.length_forwards).tolist() == [K]
    assert not counters.promised_rounds.any()


def test_another_word_for_the_length_is_refused():
    with pytest.raises(ValueError, match="draft_length: found long, allowed: auto, fixed"):
        replace(SETTINGS, draft_length="long")


def result(tokens, count):
    tokens_BT, count_B = np.asarray(tokens, np.int32), np.asarray(count, np.int32)
    zero_BT = np.zeros(tokens_BT.shape, np.float32)
    none = np.zeros((*tokens_BT.shape, 0))
    return RoundResult(
        count_B, 0 * count_B, count_B > 99, tokens_BT, zero_BT, none.astype(np.int32), none
    )


def test_a_shadow_draft_is_held_against_what_was_said():
    draft_BK = np.array([[1, 2, 3, 4], [1, 2, 3, 4], [9, 2, 3, 4], [1, 2, 0, 0], [1, 2, 3, 4]])
    drafts = Drafts(
        draft_BK.astype(np.int32), np.array([4, 4, 4, 2, 4], np.int32), np.zeros(5, np.int32)
    )
    said = result([[1, 2, 3, 4, 5, 6]] * 5, [6, 2, 6, 6, 0])
    assert shadow_kept(drafts, said).tolist() == [4, 2, 0, 2, 0]


def first_tokens(costs):
    """Kept and tried first tokens of drafts by class of match."""
    machine = engine()
    machine._chooser = Costs(machine, costs.get)
    machine.warm_up(TABLE)
    for step in range(10):
        generate(machine, step)
    survival = machine._chooser._inner._length.survival
    return survival._kept_MK[:, 0], survival._tried_MK[:, 0]


@pytest.mark.stat
def test_what_shadow_drafts_tell_is_the_acceptance_of_real_ones():
    """Given the match; some 250 drafts each, fixed seeds: three standard errors are 0.08.

    Plain dispatches begin anywhere, drafted rounds mostly behind a token that nobody foresaw. An
    estimate that does not look at the match takes the one for the other, and must be seen.
    """
    (kept_M, tried_M), (real_kept_M, real_tried_M) = first_tokens(DEAR), first_tokens(CHEAP)
    both_M = (tried_M > 0) & (real_tried_M > 0)
    share_M = kept_M[both_M] / tried_M[both_M]
    real = real_kept_M[both_M].sum() / real_tried_M[both_M].sum()
    foretold = (share_M * real_tried_M[both_M]).sum() / real_tried_M[both_M].sum()
    assert foretold == pytest.approx(real, abs=0.08)
    assert 0.2 < real < 0.98
    assert kept_M.sum() / tried_M.sum() > real + 0.1


def test_what_prompts_and_admissions_take_is_no_cost_of_a_round(monkeypatch):
    """A slow prompt is not charged to the round behind it; a slow round, the fault, is."""
    machine, taken = engine(), {"settle": [], "read": []}
    device, learn = machine._device, machine._chooser.learn
    for where, seconds in taken.items():
        slow = getattr(device, where)
        with monkeypatch.context() as patch:
            patch.setattr(device, where, lambda *of, slow=slow: (time.sleep(0.2), slow(*of))[1])
            patch.setattr(
                machine._chooser,
                "learn",
                lambda *told, seconds=seconds: (seconds.append(told[3]), learn(*told)),
            )
            machine.generate(TABLE, requests(1, 2), seed=0, step=0, policy_version=0)
    assert min(taken["settle"]) < 0.2 <= min(taken["read"])
