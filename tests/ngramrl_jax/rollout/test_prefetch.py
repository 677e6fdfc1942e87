"""Prefetching changes no token, whatever is foreseen; the thread leaves nothing behind."""

import threading
import time
from collections.abc import Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.host.outcomes import Budget
from ngramrl_jax.host.peers import PEERS
from ngramrl_jax.host.prefetch import Worker
from ngramrl_jax.rollout import pipeline
from ngramrl_jax.rollout.counters import RolloutCounters
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.programs import Programs
from ngramrl_jax.rollout.round import DecodeRule
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.rollout.state import empty_state
from ngramrl_jax.rollout.table import fresh_table, pack_table
from ngramrl_jax.types import Rollout, RolloutRequest, Sampling
from tests.support.foresight import CopiedForesight, OracleForesight
from tests.support.table_policy import TablePolicy, random_table

V, STOP, LONGEST, K = 6, 0, 20, 4
EVERY_OUTCOME = V * (K + 1)
TABLE = jnp.asarray(random_table(V, seed=0))
WAYS = ("off", "host", "device")


def requests(prompts: int = 8, group: int = 3) -> list[RolloutRequest]:
    rng = np.random.default_rng(1)
    made = []
    for prompt_id in range(prompts):
        prompt_P = rng.integers(1, V, 1 + prompt_id % 5, dtype=np.int32)
        room = LONGEST - prompt_id % 3
        made += [RolloutRequest(prompt_id, s, prompt_P, room) for s in range(group)]
    return made


def engine(drafter, slots: int, prefetch: str, draft_tokens: int = K, **changes) -> RolloutEngine:
    """One a setting, compiled once; it gets the drafter, and whatever the last test left behind."""
    machine = compiled(slots, prefetch, draft_tokens, tuple(changes.items()))
    machine._drafter = drafter
    machine.prefetch = prefetch if draft_tokens and hasattr(drafter, "foresee") else "off"
    return machine


@cache
def compiled(slots: int, prefetch: str, draft_tokens: int, changes: tuple) -> RolloutEngine:
    settings = EngineSettings(
        slots=slots,
        draft_tokens=draft_tokens,
        max_prompt_tokens=8,
        max_new_tokens=LONGEST,
        stop_ids=(STOP,),
        prefetch=prefetch,
        prefetch_candidates=EVERY_OUTCOME,
        **dict(changes),
    )
    return RolloutEngine(TablePolicy(V), NoDrafter(slots, draft_tokens), settings)


def sample(machine: RolloutEngine, step: int = 0) -> tuple[list[Rollout], RolloutCounters]:
    return machine.generate(TABLE, requests(), seed=0, step=step, policy_version=0)


def assert_same(some: Sequence[Rollout], others: Sequence[Rollout]) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.identity == other.identity
        np.testing.assert_array_equal(one.tokens_N, other.tokens_N)
        np.testing.assert_allclose(one.logps_N, other.logps_N, atol=1e-6)
        assert one.truncated == other.truncated


@pytest.fixture(scope="module")
def plain() -> list[Rollout]:
    return sample(engine(NoDrafter(4), 4, "off", 0))[0]


@pytest.fixture(scope="module")
def future(plain):
    return {(r.prompt_id, r.sibling): r.tokens_N for r in plain}


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread for thread in left if thread.name == "drafter"]


@pytest.mark.parametrize("prefetch", ["host", "device"])
@pytest.mark.parametrize(
    ("slots", "share", "foresight"),
    [
        (1, 0.1, {"missing": 0.3, "wrong": 0.2}),
        (4, 0.0, {"missing": 0.3, "wrong": 0.2}),  # every miss calls a round off
        (4, 9.0, {"missing": 0.3, "wrong": 0.2}),  # none does
        (4, None, {"missing": 0.6}),
        (4, 0.3, {"missing": 1.0}),
        (16, 0.1, {"wrong": 0.5}),
        (4, 0.1, {"swapped": True, "wrong": 0.2}),
    ],
)
def test_foreseen_drafts_change_no_token(plain, future, prefetch, slots, share, foresight):
    drafter = OracleForesight(slots, K, future, **foresight)
    rollouts, counters = sample(engine(drafter, slots, prefetch, look_up_share=share))
    assert_same(plain, rollouts)
    assert counters.prefetch == prefetch
    if not foresight.get("swapped"):
        assert counters.hits == drafter.held
        assert counters.hits + counters.misses == drafter.wanted
    elif slots > 1:
        assert counters.misses > counters.hits
    if prefetch == "host" or share == 9.0:
        assert counters.skipped_rounds == 0
    elif share == 0.0:
        assert counters.skipped_rounds > 0


def test_slots_do_not_idle_where_ends_are_foreseen(plain, future):
    """Where a look-up is cheap the device waits for ends, and needs the rounds that the host does;
    where it is dear, each end costs its slot a round."""
    rounds = {}
    for prefetch, share in (("host", 0.1), ("device", 0.1), ("device", 9.0)):
        machine = engine(OracleForesight(4, K, future), 4, prefetch, look_up_share=share)
        rollouts, counters = sample(machine)
        assert_same(plain, rollouts)
        rounds[prefetch, share] = counters.dispatches
    assert rounds["device", 0.1] == rounds["host", 0.1] < rounds["device", 9.0]


def look_up(slots: int) -> object:
    return PEERS["prompt_lookup_hf"](slots, K)


def test_all_ways_make_the_same_rounds_where_every_outcome_is_foreseen():
    """One request a slot, so that no row waits for another: then rounds are the same one by one."""
    slots = 4
    asked = requests(slots, 1)
    rounds = {}
    for prefetch in WAYS:
        drafter = CopiedForesight(look_up(slots), EVERY_OUTCOME, V)
        machine = engine(drafter, slots, prefetch)
        rollouts, counters = machine.generate(TABLE, asked, seed=0, step=0, policy_version=0)
        rounds[prefetch] = [(r.rounds, r.drafted_N.tolist()) for r in rollouts]
        if prefetch != "off":
            assert counters.coverage == 1.0
            assert counters.hits > 0
        assert counters.drafted_K.sum() == counters.drafted_tokens > 0
        assert counters.kept_K.sum() == counters.kept_tokens
        assert counters.row_rounds == sum(r.rounds for r in rollouts)
        assert counters.committed_tokens == sum(len(r.tokens_N) for r in rollouts)
    assert rounds["off"] == rounds["host"] == rounds["device"]


@pytest.mark.parametrize("prefetch", WAYS)
@pytest.mark.parametrize("entries", [1, 8])
def test_a_drafter_by_trial_changes_no_token(plain, prefetch, entries):
    drafter = CopiedForesight(look_up(3), entries, V)
    rollouts, counters = sample(engine(drafter, 3, prefetch, wave=2))
    assert_same(plain, rollouts)
    assert counters.coverage is None if prefetch == "off" else 0 < counters.coverage < 1


@pytest.mark.parametrize("prefetch", WAYS)
def test_the_drafter_of_training_changes_no_token(plain, prefetch):
    history = History(8)
    budget = Budget(EVERY_OUTCOME)
    drafter = NgramDrafter(3, K, history, budget=budget, stop_ids=(STOP,))
    machine = engine(drafter, 3, prefetch)
    assert_same(plain, sample(machine)[0])
    rollouts, counters = sample(machine)  # the same step again: drafts are as good as can be
    assert_same(plain, rollouts)
    assert counters.tokens_per_forward > 2.5
    assert counters.coverage is None if prefetch == "off" else counters.coverage > 0.9
    assert counters.mean_draft_tokens == K


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.7, top_k=3), Sampling(1.3, 0, 0.8)])
def test_sampling_settings_keep_the_property(sampling):
    base, _ = sample(engine(NoDrafter(4), 4, "off", 0, sampling=sampling))
    future = {(r.prompt_id, r.sibling): r.tokens_N for r in base}
    drafter = OracleForesight(4, K, future, wrong=0.2, missing=0.2)
    assert_same(base, sample(engine(drafter, 4, "device", sampling=sampling))[0])


@pytest.mark.parametrize("prefetch", ["host", "device"])
def test_a_run_repeats_however_slow_the_drafter_is(prefetch):
    """Rounds, drafts, log-probabilities and calls are the same to the last bit."""
    runs = []
    for seconds in (0.0, 0.002, 0.0005):
        drafter = Troubled(look_up(4), lambda n, s=seconds: time.sleep(s * (n % 3)))
        rollouts, counters = sample(engine(drafter, 4, prefetch))
        said = [(r.identity, r.rounds, r.started, r.finished, r.slot) for r in rollouts]
        bits = [
            (r.tokens_N.tobytes(), r.logps_N.tobytes(), r.drafted_N.tobytes()) for r in rollouts
        ]
        sums = counters.hits, counters.misses, counters.skipped_rounds, counters.dispatches
        runs.append((said, bits, sums, drafter.calls))
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][2][2] > 0 or prefetch == "host"  # rounds were called off, too


class Troubled(CopiedForesight):
    """Something happens in the worker's thread at every call, of which it is told the number."""

    def __init__(self, drafter, trouble, entries=6):
        super().__init__(drafter, entries, V)
        self._trouble = trouble

    def commit(self, tokens_BT, count_B):
        self._trouble(len(self.calls))
        super().commit(tokens_BT, count_B)

    def foresee(self, flight_BK, flown_B, room_B):
        self._trouble(len(self.calls))
        return super().foresee(flight_BK, flown_B, room_B)

    def propose(self, limit_B):
        self._trouble(len(self.calls))
        return super().propose(limit_B)


def fail_at(number: int, error: BaseException):
    def trouble(n):
        if n >= number:
            raise error

    return trouble


@pytest.mark.parametrize("prefetch", ["host", "device"])
@pytest.mark.parametrize("number", [0, 3, 40, 121])
def test_what_the_drafter_raises_reaches_the_caller(plain, prefetch, number):
    drafter = Troubled(look_up(3), fail_at(number, ValueError("drafter: out of luck")))
    machine = engine(drafter, 3, prefetch)
    with pytest.raises(ValueError, match="out of luck"):
        sample(machine)
    drafter._trouble = lambda n: None
    assert_same(plain, sample(machine)[0])  # and the engine is as good as new


@pytest.mark.parametrize("prefetch", ["host", "device"])
def test_a_killed_thread_ends_the_batch_with_a_clear_error(prefetch):
    drafter = Troubled(look_up(3), fail_at(30, SystemExit(1)))
    with pytest.raises(RuntimeError, match="drafter: its thread was ended by SystemExit"):
        sample(engine(drafter, 3, prefetch))


@pytest.mark.parametrize("prefetch", ["host", "device"])
def test_an_interrupted_batch_leaves_no_thread_and_no_rows(plain, prefetch, monkeypatch):
    machine = engine(CopiedForesight(look_up(4), 8, V), 4, prefetch)
    get, reads = jax.device_get, []

    def interrupted(packed):
        reads.append(1)
        if len(reads) == 6:
            raise KeyboardInterrupt
        return get(packed)

    monkeypatch.setattr(jax, "device_get", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sample(machine)
    assert_same(plain, sample(machine)[0])


@pytest.mark.parametrize("prefetch", ["host", "device"])
def test_a_drafter_that_never_answers_ends_the_batch_in_time(plain, prefetch, monkeypatch):
    gate = threading.Event()
    impatient = partial(Worker, patience_s=0.2, close_s=0.2)
    monkeypatch.setattr(pipeline, "Worker", impatient)
    drafter = Troubled(look_up(3), lambda n: n > 50 and gate.wait(60))
    machine = engine(drafter, 3, prefetch)
    machine.warm_up(TABLE)
    for _ in range(2):  # and nobody shares the drafter with the thread that is stuck in it
        with pytest.raises(TimeoutError, match=r"its thread is still busy after 0\.2 s"):
            sample(machine)
    gate.set()
    drafter._trouble = lambda n: None
    monkeypatch.setattr(pipeline, "Worker", Worker)
    assert_same(plain, sample(machine)[0])


def test_a_drafter_that_foresees_too_much_is_refused(future):
    drafter = OracleForesight(2, K, future, decoys=EVERY_OUTCOME)
    with pytest.raises(ValueError, match="foresee: found 31 entries a row, allowed: at most 30"):
        sample(engine(drafter, 2, "device"))


@pytest.mark.parametrize("prefetch", ["host", "device"])
@pytest.mark.parametrize("draft_tokens", [K, 0])
def test_who_cannot_foresee_or_does_not_draft_runs_as_off(plain, prefetch, draft_tokens):
    settings = compiled(3, prefetch, draft_tokens, ()).settings
    drafter = CopiedForesight(look_up(3), 8, V) if draft_tokens == 0 else look_up(3)
    machine = RolloutEngine(TablePolicy(V), drafter, settings)
    rollouts, counters = sample(machine)
    assert_same(plain, rollouts)
    assert (machine.prefetch, counters.prefetch, counters.coverage) == ("off", "off", None)


def test_each_program_is_compiled_once_whatever_happens(future):
    drafter = OracleForesight(4, K, future, wrong=0.2, missing=0.4)
    compiled.cache_clear()
    machine = engine(drafter, 4, "device")
    machine.warm_up(TABLE)
    programs = dict(machine.programs.compiled)
    assert set(programs.values()) == {1}
    assert {name for name, *_ in programs} == {"prefill", "admit", "foreseen"}
    _, counters = sample(machine)
    assert counters.skipped_rounds > 0
    assert dict(machine.programs.compiled) == programs


@pytest.mark.parametrize("prefetch", WAYS)
def test_a_device_that_waits_for_the_drafter_is_seen_to(prefetch):
    """A look-up of 10 ms, in rounds that take far less, leaves the device idle for about that."""
    drafter = Troubled(look_up(4), lambda n: time.sleep(0.01), entries=1)
    machine = engine(drafter, 4, prefetch)
    machine.warm_up(TABLE)
    _, counters = sample(machine)
    exposed_ms = 1e3 * counters.exposed_seconds / counters.dispatches
    assert exposed_ms > 8
    times = list(counters.timeline)
    assert 0 < len(times) <= 256
    assert all(round_.dispatched <= round_.known for round_ in times)
    assert all(round_.drafting < round_.drafted for round_ in times if round_.drafting)
    assert any(round_.drafting for round_ in times)


@pytest.mark.parametrize(
    "change", [{"prefetch": "gpu"}, {"prefetch_candidates": 0}, {"look_up_share": -1.0}]
)
def test_settings_outside_their_range_are_refused(change):
    good = dict(slots=1, draft_tokens=1, max_prompt_tokens=1, max_new_tokens=1, stop_ids=(0,))
    with pytest.raises(ValueError, match=f"{next(iter(change))}: found"):
        EngineSettings(**(good | change))


@pytest.mark.parametrize("prefetch", ["host", "device"])
def test_the_length_is_chosen_only_where_drafts_are_known_in_time(prefetch):
    with pytest.raises(ValueError, match=f"found auto with prefetch {prefetch}, allowed: fixed"):
        compiled(1, prefetch, K, (("draft_length", "auto"),))


def test_a_round_that_may_be_called_off_does_not_copy_the_cache():
    """`lax.cond` would: then a round takes longer the larger the capacity is (75 ms for 71 MB)."""
    policy, rows, capacity = TablePolicy(V), 2, 100_000
    programs = Programs(policy, DecodeRule(Sampling(), (STOP,)), plain_rounds=1, draft_tokens=K)
    state = empty_state(policy, rows, capacity)
    table = fresh_table(None, np.zeros((rows, 2), np.uint32), np.zeros(rows, np.int32), 3, K)
    lowered = programs.foreseen.lower(TABLE, state=state, table_BX=pack_table(table), live=64)
    memory = lowered.compile().memory_analysis()
    assert memory.alias_size_in_bytes >= state.cache.nbytes
    assert memory.temp_size_in_bytes < state.cache.nbytes / 10
