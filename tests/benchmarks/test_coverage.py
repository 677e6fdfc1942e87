"""What is scored as covered is what happened, and intervals cover what they should."""

import numpy as np
import pytest

from benchmarks.prefetch.coverage import difference, figures
from benchmarks.prefetch.recorded import record_groups
from benchmarks.prefetch.scoring import ENTRIES, score
from ngramrl_jax.host.draft import Rule
from ngramrl_jax.replay.source import Source
from ngramrl_jax.trace.records import TracedStep, TraceHeader
from ngramrl_jax.types import Rollout

STOP = 9


def group(prompt_id, texts):
    rollouts = [
        Rollout(
            prompt_id=prompt_id,
            sibling=sibling,
            prompt_P=np.array([7, 8], np.int32),
            tokens_N=np.array(text, np.int32),
            logps_N=np.zeros(len(text), np.float32),
            drafted_N=np.zeros(len(text), bool),
            truncated=False,
            policy_version=0,
            step=prompt_id,
            rounds=len(text),
        )
        for sibling, text in enumerate(texts)
    ]
    return TracedStep(prompt_id, rollouts, np.zeros(len(texts), np.float32))


def source(steps, tmp_path):
    header = TraceHeader(slots=1, draft_tokens=0, max_new_tokens=64)
    return Source(tmp_path, header, leave_one_out=True, read=steps)


def test_rounds_and_their_outcomes_are_those_of_the_rollouts(tmp_path):
    """Two ways of saying it, and one row that says a third: known words are covered."""
    known = [[1, 2, 3, 4, 5, 6, STOP], [1, 2, 3, 4, 7, 6, STOP]]
    steps = [group(0, [*known, [1, 2, 30, 4, 5, 6, STOP]]), group(1, [*known, *known])]
    recordings = record_groups(source(steps, tmp_path), draft_tokens=16, stop_ids=(STOP,))
    assert len(recordings) == 7
    scored = score(recordings, Rule())
    tokens = sum(j + 1 for j in scored.accepted)
    assert tokens == 7 * 7
    assert sum(scored.ends) == 7
    covered_N, ends_N = scored.covered("causal", 32), np.array(scored.ends)
    second = np.array(scored.step) == 1
    assert covered_N[second & ~ends_N].all()
    new = np.flatnonzero(~covered_N & ~ends_N)
    assert 1 <= len(new) <= 3  # 30, and what nobody has said behind it
    found = figures(scored, [0])
    assert found["coverage"]["causal"][32] == 1.0
    assert sorted(found["coverage"]["causal"].values()) == list(
        found["coverage"]["causal"].values()
    )
    assert set(found["coverage"]["causal"]) == set(ENTRIES)


def test_the_interval_of_a_paired_difference():
    """200 fair experiments: the 95 % interval misses 0 in 3 to 24 of them (1 in 1000 otherwise)."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(200):
        first_N, second_N = rng.random((2, 1000)) < 0.5
        mean, half = difference(first_N, second_N)
        missed += abs(mean) > half
    assert 3 <= missed <= 24
    mean, half = difference(first_N, first_N & (rng.random(1000) < 0.8))
    assert mean > half
    assert mean == pytest.approx(0.1, abs=0.03)
