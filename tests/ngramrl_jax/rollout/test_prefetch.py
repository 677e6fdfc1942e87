"""Prefetching changes no token, whatever is foreseen; the thread leaves nothing behind."""

import threading
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.host.peers import PEERS
from ngramrl_jax.rollout.counters import RolloutCounters
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
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
    settings = EngineSettings(
        slots=slots,
        draft_tokens=draft_tokens,
        max_prompt_tokens=8,
        max_new_tokens=LONGEST,
        stop_ids=(STOP,),
        prefetch=prefetch,
        prefetch_candidates=EVERY_OUTCOME,
        **changes,
    )
    return RolloutEngine(TablePolicy(V), drafter, settings)


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
    return sample(engine(NoDrafter(4), 4, "off", draft_tokens=0))[0]


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
