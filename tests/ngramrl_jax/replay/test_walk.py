"""Replay repeats the engine round for round, and keeps to the drafters' contract elsewhere."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.ngram_trees import NgramTreeDrafter
from ngramrl_jax.replay.oracle import OracleChain
from ngramrl_jax.replay.walk import Schedule, walk_step
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.trace.records import TracedStep
from ngramrl_jax.trace.store import Trace, TraceWriter
from ngramrl_jax.types import RolloutRequest
from tests.support.drafters import RandomDrafter
from tests.support.table_policy import TablePolicy, random_table
from tests.support.traces import HEADER, random_step

V = 8
LONGEST = 24
STEPS = 4
TABLE = jnp.asarray(random_table(V, seed=0, spread=2.5))


class KeyedDrafter(RandomDrafter):
    """Drafts that hang on the rows' keys and on the best tokens that it has observed."""

    def __init__(self, rows, draft_tokens, vocab):
        super().__init__(rows, draft_tokens, vocab)
        self._words = np.zeros(rows, np.int64)
        self._seen = 0

    def start_row(self, row, prompt_id, prompt_P, key_W=None):
        self._words[row] = 0 if key_W is None else int(key_W[1])

    def observe(self, prompt_id, tokens_N, step, best=None):
        self._seen += int(best.ids_NR.sum()) + int(best.logps_NR[0, 0] < -1.0)

    def propose(self, limit_B):
        draft_B = (self._words + self._seen) % self._high
        draft_BK = np.repeat(draft_B[:, None], self._shape[1], axis=1).astype(np.int32)
        return draft_BK, limit_B.astype(np.int32)


MAKERS = {
    "ngram": lambda rows, k: NgramDrafter(rows, k, History(window=5)),
    "random": lambda rows, k: RandomDrafter(rows, k, V),
    "keyed": lambda rows, k: KeyedDrafter(rows, k, V),
}


def settings(slots: int, draft_tokens: int, **changes) -> EngineSettings:
    return EngineSettings(
        slots=slots,
        draft_tokens=draft_tokens,
        max_prompt_tokens=8,
        max_new_tokens=LONGEST,
        stop_ids=(0,),
        **changes,
    )


def requests(prompts: int, group: int) -> list[RolloutRequest]:
    rng = np.random.default_rng(1)
    prompts_NP = [rng.integers(1, V, 1 + p % 5, dtype=np.int32) for p in range(prompts)]
    return [
        RolloutRequest(p, s, prompts_NP[p], LONGEST) for p in range(prompts) for s in range(group)
    ]


def recorded(make, chosen: EngineSettings, *, expect=None):
    """Steps of the engine, and the counters of each."""
    engine = RolloutEngine(TablePolicy(V), make(chosen.slots, chosen.draft_tokens), chosen)
    steps, counters = [], []
    for step in range(STEPS):
        rollouts, cost = engine.generate(
            TABLE, requests(6, 5), seed=3, step=step, policy_version=step, expected_tokens=expect
        )
        steps.append(TracedStep(step, rollouts, np.zeros(len(rollouts), np.float32)))
        counters.append(cost)
    return steps, counters


def schedule(chosen: EngineSettings) -> Schedule:
    return Schedule(chosen.slots, chosen.draft_tokens, LONGEST, 3, chosen.shares_noise)


def assert_same_walk(drafter, steps, counters, planned: Schedule):
    for step, cost in zip(steps, counters, strict=True):
        tally = walk_step(drafter, step, planned)
        drafter.end_batch()
        assert tally.tokens == cost.committed_tokens
        assert tally.row_rounds == cost.row_rounds
        assert tally.lengths.sum() == cost.row_rounds
        assert tally.drafted_tokens == cost.drafted_tokens
        np.testing.assert_array_equal(tally.drafted_K, cost.drafted_K)
        np.testing.assert_array_equal(tally.kept_K, cost.kept_K)
        assert tally.tokens_per_forward == cost.tokens_per_forward


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "chosen",
    [
        settings(4, 4),
        settings(1, 3, wave=2),
        settings(7, 16, wave=3),
        settings(40, 4),
        settings(5, 4, verifier="rejection"),
    ],
    ids=["few", "one", "waves", "more slots than rollouts", "rejection"],
)
def test_the_runs_own_drafter_takes_the_runs_own_rounds(tmp_path, name, chosen):
    make = MAKERS[name]
    steps, counters = recorded(make, chosen, expect={1: 9.0, 3: 4.0})
    writer = TraceWriter(tmp_path, HEADER)
    for step in steps:
        writer.append(step)
    read = Trace(tmp_path).steps()
    assert_same_walk(make(chosen.slots, chosen.draft_tokens), read, counters, schedule(chosen))


def test_trees_take_the_runs_own_rounds():
    chosen = settings(5, 6, draft_shape="tree", wave=2)

    def make():
        return NgramTreeDrafter(chosen.slots, chosen.draft_tokens, History(window=5))

    steps, counters = recorded(lambda *_: make(), chosen)
    assert_same_walk(make(), steps, counters, schedule(chosen))
    chains, _ = recorded(MAKERS["ngram"], settings(5, 6, wave=2))
    for some, others in zip(steps, chains, strict=True):
        for one, other in zip(some.rollouts, others.rollouts, strict=True):
            np.testing.assert_array_equal(one.tokens_N, other.tokens_N)


def test_what_the_trace_says_of_the_schedule_matters():
    """The test above can fail: other slots, another order of rows or another K, and it would."""
    chosen = settings(4, 4)
    steps, counters = recorded(MAKERS["ngram"], chosen)
    backwards = [
        replace(step, rollouts=[replace(r, started=-r.started) for r in step.rollouts])
        for step in steps
    ]
    for walked, planted in (
        (backwards, schedule(chosen)),
        (steps, replace(schedule(chosen), slots=9)),
    ):
        with pytest.raises(AssertionError):
            assert_same_walk(MAKERS["ngram"](planted.slots, 4), walked, counters, planted)


def test_any_drafter_says_the_same_tokens_and_hears_each_of_them_once():
    step = random_step(0, prompts=5, group=6)
    drafter = RandomDrafter(4, 3, 50)
    tally = walk_step(drafter, step, Schedule(4, 3, 20))
    assert tally.tokens == step.tokens
    heard = sorted(
        (event[1], *event[2].tolist()) for event in drafter.events if event[0] == "observe"
    )
    assert heard == sorted((r.prompt_id, *r.tokens_N.tolist()) for r in step.rollouts)
    committed = sum(int(event[2].sum()) for event in drafter.events if event[0] == "commit")
    assert committed == step.tokens


def test_a_drafter_that_never_errs_says_k_plus_one_a_round():
    """The oracle of a policy that always said what it held most likely."""
    step = random_step(0, prompts=5, group=6)
    sure = []
    for rollout in step.rollouts:
        best = replace(rollout.best, ids_NR=rollout.tokens_N[:, None])
        sure.append(replace(rollout, best=best))
    for k in (1, 4, 16):
        tally = walk_step(OracleChain(4, k), replace(step, rollouts=sure), Schedule(4, k, 20))
        assert tally.row_rounds == sum(-(-len(r.tokens_N) // (k + 1)) for r in sure)
        assert tally.drafted_K.sum() == tally.kept_K.sum()


def test_an_oracle_without_best_tokens_is_refused_in_one_line():
    step = random_step(2, best=0)
    with pytest.raises(ValueError, match="oracle: found no best tokens in step 2"):
        walk_step(OracleChain(4, 2), step, Schedule(4, 2, 20))
