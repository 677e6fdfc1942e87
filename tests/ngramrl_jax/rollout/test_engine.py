"""The engine samples what the keys say, whatever the drafter, K, slots, queue or neighbours."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.host.noise import row_key
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import Rollout, RolloutRequest, Sampling
from tests.support.drafters import OracleDrafter, RandomDrafter
from tests.support.table_policy import TablePolicy, random_table

V = 6
STOP = 0
LONGEST = 20
TABLE = jnp.asarray(random_table(V, seed=0))


def requests(prompts: int = 10, group: int = 3) -> list[RolloutRequest]:
    rng = np.random.default_rng(1)
    made = []
    for prompt_id in range(prompts):
        prompt_P = rng.integers(1, V, 1 + prompt_id % 5, dtype=np.int32)
        room = LONGEST - prompt_id % 3
        made += [RolloutRequest(prompt_id, s, prompt_P, room) for s in range(group)]
    return made


def engine(drafter, slots: int, draft_tokens: int, **changes) -> RolloutEngine:
    settings = EngineSettings(
        slots=slots,
        draft_tokens=draft_tokens,
        max_prompt_tokens=8,
        max_new_tokens=LONGEST,
        stop_ids=(STOP,),
        **changes,
    )
    return RolloutEngine(TablePolicy(V), drafter, settings)


def sample(
    drafter, slots: int, draft_tokens: int, *, asked=None, step: int = 0, **changes
) -> list[Rollout]:
    rollouts, _ = engine(drafter, slots, draft_tokens, **changes).generate(
        TABLE, asked or requests(), seed=0, step=step, policy_version=7
    )
    return rollouts


def assert_same(some: Sequence[Rollout], others: Sequence[Rollout]) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.identity == other.identity
        np.testing.assert_array_equal(one.tokens_N, other.tokens_N)
        np.testing.assert_allclose(one.logps_N, other.logps_N, atol=1e-6)
        assert one.truncated == other.truncated


def ngram(slots: int, draft_tokens: int, window: int = 8) -> NgramDrafter:
    return NgramDrafter(slots, draft_tokens, History(window))


@pytest.fixture(scope="module")
def plain() -> list[Rollout]:
    return sample(NoDrafter(4), slots=4, draft_tokens=0)


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_the_best_tokens_are_the_most_likely_of_each_position(draft_tokens):
    logp_VVV = np.asarray(jax.nn.log_softmax(TABLE))
    for rollout in sample(ngram(4, draft_tokens), 4, draft_tokens, best_tokens=3):
        text = np.concatenate([[0], rollout.prompt_P, rollout.tokens_N])
        start = len(rollout.prompt_P)
        logp_NV = logp_VVV[text[start - 1 : -2], text[start:-1]]
        best_NR = np.argsort(-logp_NV, axis=1)[:, :3]
        np.testing.assert_array_equal(rollout.best.ids_NR, best_NR)
        expected_NR = np.take_along_axis(logp_NV, best_NR, axis=1)
        np.testing.assert_allclose(rollout.best.logps_NR, expected_NR, atol=1e-5)


def test_no_best_tokens_where_none_are_asked_for():
    assert sample(ngram(4, 3), 4, 3, best_tokens=0)[0].best is None


class KeyedDrafter(RandomDrafter):
    """Notes the key that every row was started with."""

    def start_row(self, row, prompt_id, prompt_P, key_W=None):
        self.events.append(key_W)


def test_a_drafter_knows_the_noise_where_it_may():
    drafter = KeyedDrafter(2, 3, V)
    sample(drafter, 2, 3, step=5)
    keys = [event for event in drafter.events if isinstance(event, np.ndarray)]
    expected = {tuple(row_key(0, 5, *request.identity)) for request in requests()}
    assert {tuple(key_W) for key_W in keys} == expected
    for changes in ({"verifier": "rejection"}, {"sampling": Sampling(temperature=0.0)}):
        drafter = KeyedDrafter(2, 3, V)
        sample(drafter, 2, 3, **changes)
        assert None in drafter.events
        assert not any(isinstance(event, np.ndarray) for event in drafter.events)


def test_every_row_ends_at_its_first_stop_or_at_its_room(plain):
    for rollout, request in zip(plain, requests(), strict=True):
        stops = np.flatnonzero(rollout.tokens_N == STOP)
        assert rollout.truncated == (len(stops) == 0)
        if rollout.truncated:
            assert len(rollout.tokens_N) == request.max_new_tokens
        else:
            assert stops.tolist() == [len(rollout.tokens_N) - 1]
        assert rollout.rounds == len(rollout.tokens_N)
        assert rollout.policy_version == 7
        assert not rollout.drafted_N.any()
    assert {rollout.truncated for rollout in plain} == {True, False}


@pytest.mark.parametrize(
    ("slots", "draft_tokens", "changes"),
    [
        (1, 4, {}),
        (3, 1, {"wave": 2}),
        (16, 16, {"prefix_entries": 40}),
        (7, 4, {"wave": 3}),
    ],
)
def test_drafting_changes_no_token(plain, slots, draft_tokens, changes):
    future = {(r.prompt_id, r.sibling): r.tokens_N for r in plain}
    for drafter in (
        RandomDrafter(slots, draft_tokens, V, hostile=True),
        OracleDrafter(slots, draft_tokens, future, wrong=0.2),
        ngram(slots, draft_tokens),
        ngram(slots, draft_tokens, window=0),
    ):
        assert_same(plain, sample(drafter, slots, draft_tokens, **changes))


@pytest.mark.parametrize("slots", [1, 5, 32])
@pytest.mark.parametrize(("plain_rounds", "refill_slots"), [(1, 1), (7, 3), (64, 1), (64, 99)])
def test_plain_dispatch_length_and_slots_change_no_token(plain, slots, plain_rounds, refill_slots):
    again = sample(NoDrafter(slots), slots, 0, plain_rounds=plain_rounds, refill_slots=refill_slots)
    assert_same(plain, again)


def test_order_of_requests_changes_no_token(plain):
    order = np.random.default_rng(3).permutation(len(plain))
    asked = requests()
    shuffled = sample(ngram(5, 4), 5, 4, asked=[asked[i] for i in order])
    assert_same([plain[i] for i in order], shuffled)


@pytest.mark.parametrize(
    "sampling", [Sampling(0.0), Sampling(0.7, top_k=3), Sampling(1.3, top_p=0.8)]
)
def test_sampling_settings_keep_the_property(sampling):
    base = sample(NoDrafter(4), 4, 0, sampling=sampling)
    drafter = RandomDrafter(3, 4, V, hostile=True)
    assert_same(base, sample(drafter, 3, 4, sampling=sampling))


def test_one_engine_serves_many_calls_without_leftovers(plain):
    machine = engine(ngram(4, 4), 4, 4)
    for _ in range(3):
        rollouts, counters = machine.generate(TABLE, requests(), seed=0, step=0, policy_version=7)
        assert_same(plain, rollouts)
    # The third time every rollout is known from the history but for its random choices.
    assert counters.tokens_per_forward > 1.5


def test_caches_that_were_given_back_come_again_and_nothing_is_compiled_anew(plain):
    machine = engine(ngram(4, 4), 4, 4)
    machine.generate(TABLE, requests(), seed=0, step=0, policy_version=0)
    device, compiled = machine._device, dict(machine.programs.compiled)
    machine.release()
    assert device._state is None
    assert device._held_prefixes is None
    rollouts, _ = machine.generate(TABLE, requests(), seed=0, step=0, policy_version=0)
    assert_same(rollouts, plain)
    assert dict(machine.programs.compiled) == compiled


def test_new_parameters_never_meet_an_old_prefix_cache():
    """CASES B37: after an update the first step equals a cold run."""
    machine = engine(NoDrafter(4), 4, 0)
    other = jnp.asarray(random_table(V, seed=5))
    for table in (TABLE, other):
        warm, _ = machine.generate(table, requests(), seed=0, step=1, policy_version=0)
    cold, _ = engine(NoDrafter(4), 4, 0).generate(
        other, requests(), seed=0, step=1, policy_version=0
    )
    assert_same(cold, warm)


def test_steps_seeds_siblings_and_attempts_have_noise_of_their_own(plain):
    def texts(rollouts):
        return [tuple(r.tokens_N.tolist()) for r in rollouts]

    first = texts(plain)
    assert texts(sample(NoDrafter(4), 4, 0, step=1)) != first
    again = [
        RolloutRequest(r.prompt_id, r.sibling, r.prompt_P, r.max_new_tokens, 1) for r in requests()
    ]
    assert texts(sample(NoDrafter(4), 4, 0, asked=again)) != first
    siblings = [first[i : i + 3] for i in range(0, len(first), 3)]
    assert all(len(set(group)) > 1 for group in siblings)


def test_an_accepted_draft_is_marked_and_counted(plain):
    future = {(r.prompt_id, r.sibling): r.tokens_N for r in plain}
    machine = engine(OracleDrafter(4, 4, future), 4, 4, prefix_entries=10)
    rollouts, counters = machine.generate(TABLE, requests(), seed=0, step=0, policy_version=0)
    tokens = sum(len(r.tokens_N) for r in rollouts)
    assert counters.committed_tokens == tokens
    assert counters.kept_tokens == sum(int(r.drafted_N.sum()) for r in rollouts)
    assert counters.kept_K.sum() == counters.kept_tokens
    assert counters.drafted_K.sum() == counters.drafted_tokens
    assert counters.row_rounds == sum(r.rounds for r in rollouts)
    # A right draft of four and the emitted token: five a round until the response ends.
    assert all(r.rounds == -(-len(r.tokens_N) // 5) for r in rollouts)
    assert counters.prefills == 10


def test_the_drafter_hears_all_that_was_committed_and_nothing_else():
    drafter = RandomDrafter(3, 4, V)
    rollouts = sample(drafter, 3, 4)
    heard: dict[int, list[int]] = {}
    prompt_in: dict[int, int] = {}
    finished = []
    for name, *event in drafter.events:
        if name == "start":
            row, prompt_in[event[0]] = event[0], event[1]
            heard[row] = []
        elif name == "commit":
            tokens_BT, count_B = event
            for row, count in enumerate(count_B):
                if count:
                    heard[row] += tokens_BT[row, :count].tolist()
        elif name == "finish":
            finished.append((prompt_in[event[0]], tuple(heard.pop(event[0]))))
        elif name == "observe":
            prompt_id, tokens_N, step = event
            assert finished[-1] == (prompt_id, tuple(tokens_N.tolist()))
            assert step == 0
    assert drafter.events[-1] == ("end",)
    assert sorted(finished) == sorted((r.prompt_id, tuple(r.tokens_N.tolist())) for r in rollouts)


def test_a_run_of_mixed_lengths_compiles_each_program_once():
    machine = engine(ngram(4, 4), 4, 4)
    machine.warm_up(TABLE)
    compiled = dict(machine.programs.compiled)
    assert set(compiled.values()) == {1}
    for step in range(3):
        machine.generate(TABLE, requests()[step:], seed=0, step=step, policy_version=step)
    assert dict(machine.programs.compiled) == compiled


def test_one_copy_from_the_device_a_round(monkeypatch):
    fetched = []
    get = jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda x: fetched.append(x) or get(x))
    machine = engine(ngram(4, 4), 4, 4)
    with jax.transfer_guard_device_to_host("disallow"):  # explicit copies only
        _, counters = machine.generate(TABLE, requests(), seed=0, step=0, policy_version=0)
    assert len(fetched) == counters.dispatches
    assert all(isinstance(x, jax.Array) for x in fetched)


def test_results_do_not_alias_the_donated_state():
    machine = engine(NoDrafter(2), 2, 0)
    before = machine._device.state.cache
    machine.generate(TABLE, requests(2), seed=0, step=0, policy_version=0)
    assert before.is_deleted()


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (RolloutRequest(0, 0, np.ones(9, np.int32), 4), "prompt tokens: found 9, allowed: 1 to 8"),
        (RolloutRequest(0, 0, np.ones(0, np.int32), 4), "prompt tokens: found 0"),
        (RolloutRequest(0, 0, np.ones(2, np.int32), LONGEST + 1), "max_new_tokens: found 21"),
        (RolloutRequest(0, 0, np.ones(2, np.int32), 0), "max_new_tokens: found 0"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(request_, word):
    with pytest.raises(ValueError, match=word):
        sample(NoDrafter(1), 1, 0, asked=[request_])


def test_two_requests_for_the_same_rollout_are_refused():
    with pytest.raises(ValueError, match="two of the same prompt id, sibling and attempt"):
        sample(NoDrafter(1), 1, 0, asked=requests(1) + requests(1))


@pytest.mark.parametrize(
    "change", [{"slots": 0}, {"draft_tokens": -1}, {"plain_rounds": 0}, {"verifier": "argmax"}]
)
def test_settings_outside_their_range_are_refused(change):
    good = {
        "slots": 1,
        "draft_tokens": 1,
        "max_prompt_tokens": 1,
        "max_new_tokens": 1,
        "stop_ids": (0,),
    }
    with pytest.raises(ValueError, match=next(iter(change))):
        EngineSettings(**(good | change))
