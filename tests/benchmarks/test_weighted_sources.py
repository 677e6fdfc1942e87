"""Weighted sources: alike they are the default drafter, else the heavier one leads."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.drafting.weighted_sources import WeightedSources, scores
from ngramrl_jax.host.history import History
from ngramrl_jax.replay.registry import factories
from ngramrl_jax.replay.source import Source
from ngramrl_jax.trace.records import TracedStep
from ngramrl_jax.types import Rollout
from tests.support.traces import HEADER, random_step

K = 4


def rollout(sibling: int, tokens, step: int = 0) -> Rollout:
    size = len(tokens)
    return Rollout(
        prompt_id=0,
        sibling=sibling,
        prompt_P=np.array([9, 8], np.int32),
        tokens_N=np.array(tokens, np.int32),
        logps_N=np.zeros(size, np.float32),
        drafted_N=np.zeros(size, bool),
        truncated=True,
        policy_version=step,
        step=step,
        rounds=size,
        slot=sibling,
    )


def rounds(steps, make, slots: int) -> int:
    source = Source(Path("made"), replace(HEADER, slots=slots, shares_noise=False), read=steps)
    replayed = source.replay(make, K)
    return sum(replayed.walk(step).row_rounds for step in steps)


def weighted(steps, **settings):
    scored = scores(steps)
    return lambda rows, k: WeightedSources(rows, k, History(8), scored=scored, **settings)


def test_sources_that_count_alike_are_the_default():
    steps = [random_step(0, vocab=4, group=6), replace(random_step(0, vocab=4, group=6), step=1)]
    steps = [replace(s, rollouts=[replace(r, step=s.step) for r in s.rollouts]) for s in steps]
    default = factories(replace(HEADER, window=8))["ngram"]
    assert rounds(steps, weighted(steps), 4) == rounds(steps, default, 4)


def test_an_advantage_is_over_the_siblings_of_the_step():
    steps = [TracedStep(0, [rollout(0, [1]), rollout(1, [2])], np.array([1, 0], np.float32))]
    assert scores(steps) == {(0, (0, 0, 0)): (1.0, 0.5), (0, (0, 1, 0)): (0.0, -0.5)}


def test_the_rewarded_source_leads_where_it_counts_for_more():
    """Two of three sources go on with 2s, the rewarded one with 3s, as the last rollout does."""
    said = [[1, 2, 2, 2], [1, 2, 2, 2], [1, 3, 3, 3], [1, 3, 3, 3]]
    reward_N = np.array([0, 0, 1, 1], np.float32)
    steps = [TracedStep(0, [rollout(s, text) for s, text in enumerate(said)], reward_N)]
    alike = rounds(steps, weighted(steps), 1)
    assert rounds(steps, weighted(steps, weigh=lambda source: 8.0**source.reward), 1) < alike
    assert rounds(steps, weighted(steps, weigh=lambda source: 8.0**-source.reward), 1) == alike


def test_a_sibling_in_flight_is_searched_where_it_has_gone_ahead():
    """The first row has said five tokens, the second only the first of them."""
    text = [1, 2, 3, 4, 5, 6, 7]
    first, second = rollout(0, text), rollout(1, text)
    scored = scores([TracedStep(0, [first, second], np.zeros(2, np.float32))])
    found = []
    for in_flight in (False, True):
        drafter = WeightedSources(2, K, History(8), scored=scored, in_flight=in_flight)
        for row, each in enumerate((first, second)):
            drafter.start_row(row, 0, each.prompt_P)
            drafter.reveal(row, each)
        tokens_BT = np.array([text, text], np.int32)
        drafter.commit(tokens_BT, np.array([5, 1], np.int32))
        found.append(drafter.propose(np.array([K, K], np.int32))[1].tolist())
    assert found == [[0, 0], [0, 4]]
