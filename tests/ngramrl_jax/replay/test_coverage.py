"""Coverage by earlier rollouts, against its rule spelt out."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ngramrl_jax.replay.coverage import LEAST_RUN, WINDOW, Coverage, shared_runs
from ngramrl_jax.trace.records import TracedStep
from tests.support.traces import random_step

TOKENS = st.lists(st.integers(0, 2), max_size=30)


def stands_in(run, sources):
    return any(
        source[at : at + len(run)] == run
        for source in sources
        for at in range(len(source) - len(run) + 1)
    )


def by_the_rule(text, sources):
    runs, at = [], 0
    while at < len(text):
        length = 0
        while at + length < len(text) and stands_in(text[at : at + length + 1], sources):
            length += 1
        if length >= LEAST_RUN:
            runs.append(length)
        at += length if length >= LEAST_RUN else 1
    return runs


@given(TOKENS.filter(len), st.lists(TOKENS.filter(len), min_size=1, max_size=3))
def test_runs_are_those_of_the_rule(text, sources):
    coverage = Coverage()
    coverage.add(np.array(text, np.int32), [np.array(source, np.int32) for source in sources])
    assert coverage.runs == by_the_rule(text, sources)
    assert coverage.covered == sum(coverage.runs) / len(text)


def test_a_run_does_not_reach_from_one_source_into_the_next():
    coverage = Coverage()
    half = np.arange(LEAST_RUN - 1, dtype=np.int32)
    coverage.add(np.concatenate([half, half + 9]), [half, half + 9])
    assert coverage.runs == []
    assert coverage.covered == 0.0


def test_a_text_is_covered_by_itself():
    text = np.arange(9, dtype=np.int32)
    assert shared_runs(text, text) == [9]


def step_of(number, *finishing):
    """Rollouts of one prompt that all say the same, with their (started, finished)."""
    one = random_step(0, prompts=1, group=1).rollouts[0]
    text = np.arange(8, dtype=np.int32)
    rollouts = [
        replace(one, tokens_N=text, sibling=i, started=started, finished=finished)
        for i, (started, finished) in enumerate(finishing)
    ]
    return TracedStep(number, rollouts, np.zeros(len(rollouts), np.float32))


def test_siblings_count_once_they_have_finished_and_earlier_steps_always():
    coverage = Coverage()
    assert coverage.covered is None
    coverage.read(step_of(0, (0, 5), (4, 9), (5, 7), (7, 8)))
    assert coverage.rollouts == 2  # the third and the fourth began after the first had ended
    assert coverage.covered == 1.0
    coverage.read(step_of(1, (0, 5)))
    assert coverage.rollouts == 3


def test_only_the_last_rollouts_of_the_window_count():
    coverage = Coverage()
    coverage.read(step_of(0, (0, 1)))
    strange = step_of(1, *[(0, 1)] * WINDOW)
    strange = replace(
        strange, rollouts=[replace(r, tokens_N=r.tokens_N + 50) for r in strange.rollouts]
    )
    coverage.read(strange)
    covered = sum(coverage.runs)
    coverage.read(step_of(2, (0, 1)))
    assert sum(coverage.runs) == covered
