"""Whatever befalls the drafter's thread, a batch goes on with equal tokens or ends with a word.

Faults are drawn at random: calls that are slow or never return, exceptions, a thread that is killed
in a call or from outside (in a kernel, at its queue, asleep), a `close` out of turn. And no row
ever gets a draft that was made for another.

Legend: B rows, F entries a row, K draft budget.
"""

import ctypes
import re
import threading
import time
from dataclasses import replace
from functools import cache, partial

import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.host.outcomes import Budget
from ngramrl_jax.host.prefetch import Worker
from ngramrl_jax.rollout import pipeline
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.rollout.table import choose
from ngramrl_jax.types import RolloutRequest
from tests.support.foresight import no_entries
from tests.support.table_policy import TablePolicy, random_table

V, STOP, LONGEST, K, SLOTS, ENTRIES = 6, 0, 16, 3, 3, 8
TABLE = jnp.asarray(random_table(V, seed=0))
PATIENCE_S = 0.8  # where somebody is bound to lose it
SOON_S = 30.0  # more than any deadline together, on a busy machine
CLEAR = r"^drafter: (its thread|found no|out of luck)"


@cache
def compiled(prefetch: str) -> RolloutEngine:
    settings = EngineSettings(
        slots=SLOTS,
        draft_tokens=K,
        max_prompt_tokens=4,
        max_new_tokens=LONGEST,
        stop_ids=(STOP,),
        prefetch=prefetch,
        prefetch_candidates=ENTRIES,
    )
    return RolloutEngine(TablePolicy(V), NoDrafter(SLOTS, K), settings)


def sample(prefetch: str, drafter) -> list[list[int]]:
    machine = compiled(prefetch)
    machine._drafter, machine.prefetch = drafter, prefetch
    prompts = [np.array([1 + i % (V - 1), 2], np.int32) for i in range(5)]
    asked = [RolloutRequest(i, s, p, LONGEST - i) for i, p in enumerate(prompts) for s in range(3)]
    rollouts, _ = machine.generate(TABLE, asked, seed=0, step=0, policy_version=0)
    return [rollout.tokens_N.tolist() for rollout in rollouts]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return sample("off", NoDrafter(SLOTS, K))


def signature(key_W, length: int, last: int) -> np.ndarray:
    """The draft of a row as it is: nobody else's, and not its own of another time."""
    return np.random.default_rng([*key_W.tolist(), length, last]).integers(0, V, K, np.int32)


class SignedDrafter:
    """Drafts signatures, and foresees outcomes at random."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._key_BW = np.zeros((SLOTS, 2), np.uint32)
        self._length_B, self._last_B = np.zeros((2, SLOTS), np.int32)

    def start_row(self, row, prompt_id, prompt_P, key_W=None):
        self._key_BW[row], self._length_B[row], self._last_B[row] = key_W, len(prompt_P), 2

    def commit(self, tokens_BT, count_B):
        for row in np.flatnonzero(count_B):
            self._last_B[row] = tokens_BT[row, count_B[row] - 1]
        self._length_B += count_B

    def propose(self, limit_B):
        draft_BK = np.zeros((SLOTS, K), np.int32)
        for row, limit in enumerate(limit_B.tolist()):
            draft_BK[row, :limit] = self._draft(row, self._length_B[row], self._last_B[row])[:limit]
        return draft_BK, limit_B.copy()

    def foresee(self, flight_BK, flown_B, room_B):
        fan = no_entries(SLOTS, ENTRIES, K)
        for row in np.flatnonzero(room_B):
            for f in range(ENTRIES):
                kept, emitted = int(self._random.integers(0, flown_B[row] + 1)), f % V
                limit = min(room_B[row] - kept - 2, K)
                if limit > 0:
                    length = self._length_B[row] + kept + 1
                    fan.length_BF[row, f], fan.last_BF[row, f] = length, emitted
                    fan.draft_BFK[row, f, :limit] = self._draft(row, length, emitted)[:limit]
                    fan.drafted_BF[row, f] = limit
        return fan

    def _draft(self, row: int, length: int, last: int) -> np.ndarray:
        return signature(self._key_BW[row], int(length), int(last))

    def finish_row(self, row):
        pass

    def end_batch(self):
        pass

    def observe(self, prompt_id, tokens_N, step, best=None):
        pass


class Troubled:
    """A drafter in whose every call something may happen; calls are numbered."""

    def __init__(self, drafter, trouble) -> None:
        self._drafter, self.trouble, self.calls = drafter, trouble, 0

    def __getattr__(self, name):
        call = getattr(self._drafter, name)

        def troubled(*arguments):
            self.calls += 1
            self.trouble(self.calls)
            return call(*arguments)

        return troubled

    def foresee(self, flight_BK, flown_B, room_B):  # the engine looks whether there is one
        return self.__getattr__("foresee")(flight_BK, flown_B, room_B)


def make_drafter(seed: int):
    if seed % 2:
        return NgramDrafter(SLOTS, K, History(8), budget=Budget(ENTRIES), stop_ids=(STOP,))
    return SignedDrafter(seed)


@pytest.fixture
def watched(monkeypatch):
    """The drafts of signed rows are compared with their signatures before each round."""
    look_ahead, seen = pipeline._Threaded._look_ahead, []

    def checked(self, flew_B, draft_BK, drafted_B):
        slots, drafter = self._batch.slots, getattr(self._drafter, "_drafter", self._drafter)
        if isinstance(drafter, SignedDrafter):
            for row in np.flatnonzero(flew_B & (drafted_B > 0)):
                own = signature(slots.key_BW[row], int(slots.length_B[row]), int(slots.last_B[row]))
                seen.append(np.array_equal(draft_BK[row, : drafted_B[row]], own[: drafted_B[row]]))
        look_ahead(self, flew_B, draft_BK, drafted_B)

    monkeypatch.setattr(pipeline._Threaded, "_look_ahead", checked)
    return seen


def kill(thread: threading.Thread) -> None:
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))


def meddle(prefetch: str, seconds: float, what) -> threading.Timer:
    """Does something to the worker of the batch, some time from now."""

    def act():
        if (drafting := compiled(prefetch)._unclosed) is not None:
            what(drafting._worker)

    timer = threading.Timer(seconds, act)
    timer.start()
    return timer


FAULTS = ("slow", "late", "blocked", "raises", "killed inside", "killed outside", "closed")
HARMLESS = ("slow", "late")


def trouble_of(fault: str, random, gate: threading.Event):
    """What happens in the drafter's calls, whose numbers it is told."""
    first = int(random.integers(1, 120))

    def trouble(n: int) -> None:
        if fault == "slow" and n % 4 == 0:
            time.sleep(random.uniform(0, 2e-3))
        elif fault == "late" and n == first:
            time.sleep(0.1)
        elif fault == "blocked" and n >= first:
            gate.wait(SOON_S)
        elif fault == "raises" and n >= first:
            raise ValueError("drafter: out of luck")
        elif fault == "killed inside" and n >= first:
            raise SystemExit

    return trouble


MEDDLING = {"killed outside": lambda worker: kill(worker._thread), "closed": Worker.close}


@pytest.mark.parametrize("prefetch", ["host", "device"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", range(2))
def test_a_batch_goes_on_or_ends_with_a_clear_error(
    plain, watched, monkeypatch, prefetch, fault, seed
):
    if fault == "blocked":
        impatient = partial(Worker, patience_s=PATIENCE_S, close_s=PATIENCE_S)
        monkeypatch.setattr(pipeline, "Worker", impatient)
    random, gate = np.random.default_rng([seed, FAULTS.index(fault)]), threading.Event()
    drafter = Troubled(make_drafter(seed), trouble_of(fault, random, gate))
    what = MEDDLING.get(fault, lambda worker: None)
    timer = meddle(prefetch, random.uniform(0, 0.1), what)
    begun, error = time.monotonic(), None
    try:
        assert sample(prefetch, drafter) == plain
    except (ValueError, RuntimeError, TimeoutError) as raised:
        error = raised
    assert time.monotonic() - begun < SOON_S
    assert error is None or (fault not in HARMLESS and re.match(CLEAR, str(error)))
    gate.set()
    monkeypatch.setattr(pipeline, "Worker", Worker)
    timer.join(SOON_S)
    assert sample(prefetch, make_drafter(seed)) == plain  # and the engine is as good as new
    assert all(watched)
    assert watched or seed % 2
    for thread in threading.enumerate():
        if thread.name == "drafter":
            thread.join(SOON_S)
            assert not thread.is_alive()


def test_the_draft_of_another_row_would_be_seen(plain, watched, monkeypatch):
    """The planted fault: tables that are a row off, and read without their keys."""

    def careless(table, length_B, last_B, room_B, key_BW, xp):
        entries = {name: np.roll(array, 1, axis=0) for name, array in vars(table).items()}
        off = replace(table, **entries | {"key_BW": key_BW})
        return choose(off, length_B, last_B, room_B, key_BW, xp)

    monkeypatch.setattr(pipeline, "choose", careless)
    assert sample("host", SignedDrafter(0)) == plain
    assert not all(watched)
