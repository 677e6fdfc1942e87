"""The benchmark of drafting's costs, in small: finite figures, and a bound that is kept."""

import math

import numpy as np
import pytest

from benchmarks.drafting import memory_bound
from benchmarks.drafting.cost import make_arms, measure, ratios, show, show_bound
from benchmarks.drafting.memory_bound import MEGABYTE, push_through
from benchmarks.drafting.synthetic_rollouts import PromptRollouts


def test_all_arms_learn_and_draft_at_finite_cost(capsys):
    rows, tokens = 2, 80
    arms = make_arms(rows, window=3)
    measure(arms, {"rows": rows, "rollouts": 3, "tokens": tokens, "repeats": 2})
    figures = {arm.name: arm.figures(rows, tokens) for arm in arms}
    for of in figures.values():
        assert all(math.isfinite(value) and value > 0 for value in of.values())
        assert of["drafted_per_row"] <= 16
        assert 1 <= of["committed_per_row"] <= 17
    same = [figures[name]["committed_per_row"] for name in ("ours, 1 core", "ours, 1 core, again")]
    assert same[0] == same[1]
    speed = ratios(arms, rows)
    assert [len(by_repeat) for by_repeat in speed.values()] == [2, 2]
    show(figures, speed, "small")
    assert "ours, 1 core" in capsys.readouterr().out


def test_nine_tenths_of_a_rollout_stand_in_earlier_ones():
    prompt = PromptRollouts(np.random.default_rng(0), 1000)
    earlier = [prompt.draw()[0] for _ in range(15)]
    known = {tuple(text[n : n + 4]) for text in earlier for n in range(997)}
    last, best = prompt.draw()
    covered = np.zeros(1000, bool)
    for n in range(997):
        if tuple(last[n : n + 4]) in known:
            covered[n : n + 4] = True
    assert 0.8 < covered.mean() < 0.96
    assert (best.ids_NR[:, 0] == last).all()
    assert np.exp(best.logps_NR).sum(1) == pytest.approx(1, abs=0.01)


def test_the_bound_is_kept_and_the_oldest_go_first(capsys):
    outcome = push_through(prompts=40, group=4, tokens=100, max_bytes=MEGABYTE // 4)
    assert outcome.pushed_tokens == 16_000
    assert outcome.most_mb <= 0.25
    assert 20 < outcome.kept_rollouts < 80  # some went, and the room is used
    assert outcome.kept_the_newest
    assert all(0 < us < math.inf for us in outcome.us_per_token)
    show_bound(outcome)
    assert "NO" not in capsys.readouterr().out


def test_a_history_that_forgets_the_wrong_rollout_would_be_seen(monkeypatch):
    class Careless(memory_bound.History):
        def observe(self, prompt_id, tokens_N, step, best=None):
            if (prompt_id, step) != (39, 3):  # the very last one
                super().observe(prompt_id, tokens_N, step, best)

    monkeypatch.setattr(memory_bound, "History", Careless)
    assert not push_through(40, 4, 100, MEGABYTE // 4).kept_the_newest
