"""A forced engine says what was recorded, in the rounds of replay, whatever its model would say."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.evidence.random_policy import RandomPolicy
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.replay.walk import Schedule, walk_step
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.forced import forced_requests, forced_settings
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.trace.records import TracedStep
from ngramrl_jax.types import RolloutRequest
from ngramrl_jax.verify.coupled import verify_coupled
from ngramrl_jax.verify.forced import verify_forced
from tests.support.table_policy import TablePolicy, random_table

V, SLOTS, K, LONGEST, SEED = 6, 3, 6, 24, 5
SETTINGS = EngineSettings(
    slots=SLOTS, draft_tokens=K, max_prompt_tokens=8, max_new_tokens=LONGEST, stop_ids=(0,)
)
STRANGER = RandomPolicy(vocab_size=11, width=16, layers=1)  # who would say other things
PARAMS = STRANGER.init_params(jax.random.key(0))


def drafter():
    return NgramDrafter(SLOTS, K, History(8))


@pytest.fixture(scope="module")
def recorded():
    """Three steps of a policy, and the counters of each."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, V, 1 + p % 4, dtype=np.int32) for p in range(5)]
    asked = [
        RolloutRequest(p, s, texts[p], LONGEST - 8 * (p % 2)) for p in range(5) for s in (0, 1)
    ]
    machine = RolloutEngine(TablePolicy(V), drafter(), SETTINGS)
    table = jnp.asarray(random_table(V, seed=0, spread=4.0))
    return [
        machine.generate(table, asked, seed=SEED, step=step, policy_version=0) for step in range(3)
    ]


def forced(recorded, **changes):
    settings = forced_settings(replace(SETTINGS, **changes))
    machine = RolloutEngine(STRANGER, drafter(), settings)
    for step, (rollouts, _) in enumerate(recorded):
        asked = forced_requests(rollouts, LONGEST)
        said, counters = machine.generate(PARAMS, asked, seed=SEED, step=step, policy_version=0)
        yield {rollout.identity: rollout for rollout in said}, counters


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"draft_tokens": 0},
        {"draft_length": "auto"},
        {"prefetch": "host"},
        {"prefetch": "device"},
    ],
)
def test_every_recorded_token_is_said_again(recorded, changes):
    for (rollouts, _), (said, counters) in zip(recorded, forced(recorded, **changes), strict=True):
        for rollout in rollouts:
            again = said[rollout.identity]
            np.testing.assert_array_equal(again.tokens_N, rollout.tokens_N)
            assert again.truncated == rollout.truncated
            assert np.isfinite(again.logps_N).all()
        assert counters.committed_tokens == sum(len(rollout.tokens_N) for rollout in rollouts)
        assert counters.prefetch == changes.get("prefetch", "off")


def test_the_rounds_are_those_of_the_run_and_of_replay(recorded):
    schedule = Schedule(SLOTS, K, LONGEST, SEED, shares_noise=True)
    replayed = drafter()
    for step, ((rollouts, ran), (said, counters)) in enumerate(
        zip(recorded, forced(recorded), strict=True)
    ):
        tally = walk_step(replayed, TracedStep(step, rollouts, np.zeros(len(rollouts))), schedule)
        assert counters.row_rounds == tally.row_rounds == ran.row_rounds
        assert counters.tokens_per_forward == tally.tokens_per_forward
        np.testing.assert_array_equal(counters.kept_K, tally.kept_K)
        np.testing.assert_array_equal(counters.drafted_K, tally.drafted_K)
        assert [said[r.identity].rounds for r in rollouts] == [r.rounds for r in rollouts]
    assert counters.tokens_per_forward > 1.3


def test_sampling_is_still_computed():
    """The compiled verifier draws the noise and takes the arg-max, whatever is recorded."""
    rng = np.random.default_rng(0)
    logp_BTV = jax.nn.log_softmax(jnp.asarray(rng.normal(size=(4, 3, 7)), jnp.float32))
    noise_BTV = jnp.asarray(rng.gumbel(size=(4, 3, 7)), jnp.float32)
    draft_BK = jnp.asarray(rng.integers(0, 7, (4, 2)), jnp.int32)
    length_B = jnp.asarray([2, 2, 1, 0], jnp.int32)
    nothing = verify_forced(logp_BTV, draft_BK, length_B, noise_BTV, jnp.full((4, 3), -1))
    sampled = verify_coupled(logp_BTV, draft_BK, length_B, noise_BTV)
    for one, other in zip(nothing, sampled, strict=True):
        np.testing.assert_array_equal(one, other)
    said_BT = jnp.concatenate([draft_BK, jnp.full((4, 1), 6, jnp.int32)], axis=1)
    forced_verdict = verify_forced(logp_BTV, draft_BK, length_B, noise_BTV, said_BT)
    assert forced_verdict.accepted_B.tolist() == [2, 2, 1, 0]
    np.testing.assert_array_equal(forced_verdict.tokens_BT, said_BT)
    lowered = jax.jit(verify_forced).lower(logp_BTV, draft_BK, length_B, noise_BTV, said_BT)
    inputs = jax.tree.leaves(lowered.compile().input_shardings[0])
    assert len(inputs) == 5  # an unused argument would have been dropped, noise among them


@pytest.mark.parametrize(
    ("forced_N", "word"),
    [
        (None, "found none, allowed: recorded ids"),
        (np.zeros(0, np.int32), "found none"),
        (np.array([3, 11], np.int32), "found ids 3 to 11, allowed: 0 to 10"),
    ],
)
def test_what_cannot_be_replayed_is_refused(forced_N, word):
    machine = RolloutEngine(STRANGER, drafter(), forced_settings(SETTINGS))
    asked = [RolloutRequest(0, 0, np.ones(2, np.int32), 4, forced_N=forced_N)]
    with pytest.raises(ValueError, match=word):
        machine.generate(PARAMS, asked, seed=0, step=0, policy_version=0)
