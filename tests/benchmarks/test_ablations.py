"""Variants in replay: the default is the drafter, drawn drafts keep what they must, trees hold.

The one statistical statement, how often drawn drafts are kept, has its error rate beside it.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.drafting.ablations import ablate, gain, means
from benchmarks.drafting.drawn_drafts import DrawnDrafts
from benchmarks.drafting.tree_drafts import TreeDrafts
from benchmarks.drafting.variants import CEILING, DEFAULT, ORACLE
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import DEFAULT_RULE, NgramDrafter
from ngramrl_jax.replay.registry import factories
from ngramrl_jax.replay.source import Source
from ngramrl_jax.trace.records import TracedStep, TraceHeader
from ngramrl_jax.types import BestTokens, Rollout

K = 4
V = 6
HEADER = TraceHeader(
    slots=3, draft_tokens=K, max_new_tokens=24, seed=5, steps_per_epoch=2, shares_noise=True
)
UNKEYED = DEFAULT_RULE._replace(noise=False)
RULES = {"with noise": DEFAULT_RULE, "without": UNKEYED}


def rollout(prompt_id: int, sibling: int, step: int, rng, *, favoured: float) -> Rollout:
    """20 tokens of a chain in which the token after t is t + 1 with probability `favoured`.

    Else it is t + 2. The tokens are drawn with `rng`, so they know nothing of a row's key.
    """
    tokens_N = np.zeros(20, np.int32)
    best, logps_N = [], []
    before = prompt_id
    for n in range(tokens_N.size):
        likely, other = 1 + before % V, 1 + (before + 1) % V
        right = rng.random() < favoured
        tokens_N[n] = before = likely if right else other
        best.append((likely, other))
        logps_N.append(np.log(favoured if right else 1 - favoured))
    law_NR = np.tile(np.log([[favoured, max(1 - favoured, 1e-30)]]), (20, 1)).astype(np.float32)
    return Rollout(
        prompt_id=prompt_id,
        sibling=sibling,
        prompt_P=np.array([7, 8 + prompt_id], np.int32),
        tokens_N=tokens_N,
        logps_N=np.array(logps_N, np.float32),
        drafted_N=np.zeros(20, bool),
        truncated=False,
        policy_version=step,
        step=step,
        rounds=20,
        best=BestTokens(np.array(best, np.int32), law_NR),
        slot=sibling,
    )


def made(steps: int, *, favoured: float = 0.8, group: int = 4, **changes) -> Source:
    rng = np.random.default_rng(1)
    traced = [
        TracedStep(
            step,
            [rollout(p, s, step, rng, favoured=favoured) for p in range(3) for s in range(group)],
            np.zeros(3 * group, np.float32),
        )
        for step in range(steps)
    ]
    return Source(Path("made"), replace(HEADER, **changes), read=traced)


def rounds(source: Source, make, draft_tokens: int = K) -> list[int]:
    replayed = source.replay(make, draft_tokens)
    return [replayed.walk(step).row_rounds for step in source.steps()]


def ours(kind=NgramDrafter, **settings):
    return lambda rows, k: kind(rows, k, History(HEADER.window), **settings)


def test_the_default_is_replays_ngram():
    source = made(5)
    result = ablate(source, K)
    recorded, found = result["recorded"], result["variants"]
    expected = rounds(source, factories(source.header)["ngram"])
    tokens = sum(step.tokens for step in source.steps())
    assert found[DEFAULT]["all"]["tokens_per_forward"] == tokens / sum(expected)
    assert found[DEFAULT]["cold"]["tokens_per_forward"] == 2 / 5 * tokens / sum(expected[:2])
    assert found[DEFAULT]["warm"]["gain"] == (0.0, 0.0)
    assert recorded["holds"] == ("best", "logps", "keys")
    assert (recorded["tokens"], recorded["mean_length"], recorded["best"]) == (tokens, 20, 2)
    assert recorded["known"] == 1.0
    assert recorded["max_prob"] == pytest.approx(0.8)
    assert found[CEILING]["all"]["tokens_per_forward"] == K + 1  # 20 tokens in 4 rounds of 5
    assert found[ORACLE]["all"]["tokens_per_forward"] < K + 1
    assert means([result, result])[DEFAULT]["all"]["tokens_per_forward"] == pytest.approx(
        found[DEFAULT]["all"]["tokens_per_forward"]
    )


@pytest.mark.parametrize("name", RULES)
def test_a_tree_without_branches_is_the_chain(name):
    source, rule = made(5), RULES[name]
    chain = rounds(source, ours(rule=rule))
    assert rounds(source, ours(TreeDrafts, rule=rule, branches=1)) == chain
    assert sum(rounds(source, ours(TreeDrafts, rule=rule), 4 * K)) < sum(
        rounds(source, ours(rule=rule), 4 * K)
    )


def warmed(kind, favoured: float, **settings):
    """A drafter with a row, whose history holds the exact law at every position that comes up."""
    rng = np.random.default_rng(2)
    drafter = kind(1, K, History(), **settings)
    said = rollout(0, 0, 0, rng, favoured=favoured)
    for _ in range(8):
        drafter.observe(0, said.tokens_N, 0, said.best)
    return drafter, said


def test_drawn_drafts_of_the_true_law_are_always_kept():
    drafter, said = warmed(DrawnDrafts, 0.8)
    for _ in range(50):
        drafter.start_row(0, 0, said.prompt_P)
        drafter.reveal(0, said)
        assert drafter.propose(np.array([K], np.int32))[1] == [K]


@pytest.mark.parametrize(("true", "assumed"), [(0.6, 0.3), (0.4, 0.8)])
def test_drawn_drafts_are_kept_as_often_as_the_laws_overlap(true, assumed):
    """4000 first tokens; the bound of 4 standard errors fails a right drafter once in 15,000."""
    drafter, said = warmed(DrawnDrafts, assumed)
    assert said.best is not None
    rng = np.random.default_rng(3)
    kept, draws = 0, 4000
    for _ in range(draws):
        right = rng.random() < true
        token, prob = (said.best.ids_NR[0, 0 if right else 1], true if right else 1 - true)
        drafter.start_row(0, 0, said.prompt_P)
        drafter.reveal(
            0,
            replace(
                said,
                tokens_N=np.array([token], np.int32),
                logps_N=np.log(np.array([prob], np.float32)),
            ),
        )
        kept += int(drafter.propose(np.array([1], np.int32))[1][0])
    overlap = min(true, assumed) + min(1 - true, 1 - assumed)
    error = 4 * np.sqrt(overlap * (1 - overlap) / draws)
    assert abs(kept / draws - overlap) < error
    wrong = true * assumed + (1 - true) * (1 - assumed)  # planted: a draw compared with the token
    assert abs(wrong - overlap) > 2 * error


def test_what_a_trace_has_not_recorded_is_left_out():
    source = made(2, shares_noise=False)
    plain = [
        replace(
            step,
            rollouts=[replace(r, best=None, logps_N=np.nan * r.logps_N) for r in step.rollouts],
        )
        for step in source.steps()
    ]
    found = ablate(replace(source, read=plain), K)["variants"]
    assert not {"drawn drafts", f"tree of {K}", "without laws", ORACLE} & set(found)
    assert {DEFAULT, f"tree of {K}, without noise", "without own text"} <= set(found)


def test_gain_is_the_quotient_with_its_jackknife_error():
    assert gain([10, 10, 10], [12, 12, 12]) == (pytest.approx(20.0), pytest.approx(0.0))
    assert gain([10], [15]) == (pytest.approx(50.0), None)
    percent, half = gain([10, 10], [10, 14])
    assert percent == pytest.approx(20.0)
    assert half == pytest.approx(1.96 * 20.0)  # leaving one out: 40 % and 0 %


def test_a_tree_counts_how_often_each_guess_was_right():
    drafter, said = warmed(TreeDrafts, 0.8, rule=UNKEYED)
    before = drafter.chance_MZ.copy()
    drafter.start_row(0, 0, said.prompt_P)
    drafter.reveal(0, said)
    drafter.propose(np.array([K], np.int32))
    np.testing.assert_array_equal(drafter.chance_MZ, before)  # not in the midst of a step
    drafter.end_batch()
    assert (drafter.chance_MZ != before).any()
