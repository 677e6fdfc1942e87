"""The rollout benchmarks in small: every arm says what was recorded, and figures are finite."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.rollout import costs, exact, lengths, shapes, speed
from benchmarks.rollout.workload import open_workload
from ngramrl_jax.evidence.subject import Effort

ARMS = "plain,again,lookup,fixed,auto,k2,auto+no_such_setting=1,fixed+plain_rounds=4"
SMALL = speed.DEFAULTS | {
    "trace": "synthetic",
    "rows": "4",
    "k": 4,
    "prompts": "2",
    "repeats": 1,
    "arms": ARMS,
}


@pytest.fixture(autouse=True)
def small_shape(monkeypatch):
    small = replace(
        shapes.SHAPES["tiny"],
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    monkeypatch.setitem(shapes.SHAPES, "tiny", small)


def test_every_arm_says_the_same_and_what_it_took(capsys):
    records = speed.benchmark(SMALL)
    assert [(cell["rows"], cell["phase"]) for cell in records] == [(4, "cold"), (4, "warm")]
    for cell in records:
        arms = cell["arms"]
        assert list(arms) == [
            "plain", "again", "lookup", "fixed", "auto", "k2", "fixed+plain_rounds=4",
        ]  # fmt: skip
        for of in arms.values():
            assert all(math.isfinite(of[name]) for name in ("tokens_per_s", "speed_vs_plain"))
            assert of["tokens_per_forward"] >= 1.0
            assert sum(of["draft_length_share"].values()) == pytest.approx(1.0)
        assert arms["plain"]["tokens_per_forward"] == 1.0
        assert arms["k2"]["draft_length_share"] == {"2": 1.0}
        one, other = arms["fixed"], arms["fixed+plain_rounds=4"]
        assert one["tokens_per_forward"] == other["tokens_per_forward"]
        rate = [of["tokens_per_s"] * sum(of["seconds"]) for of in arms.values()]
        assert rate == pytest.approx(rate[:1] * len(rate))  # the same tokens
    cold, warm = (cell["arms"]["fixed"]["tokens_per_forward"] for cell in records)
    assert warm > 1.2 * cold
    said = capsys.readouterr().out
    assert "auto+no_such_setting=1: left out" in said
    assert "A against A" in said


def test_warm_steps_begin_with_all_that_came_before():
    workload = open_workload("synthetic", 64)
    steps, history = workload.phase("warm", steps=2, prompts=3)
    assert [step.number for step in steps] == [6, 7]
    assert len(history) == 6 * 16 * 8
    assert {len(step.requests) for step in steps} == {3 * 8}
    steps, history = workload.phase("cold", steps=1, prompts=3)
    assert (steps[0].number, history) == (0, [])


def test_the_table_of_costs_is_one_line_a_length(capsys):
    options = costs.DEFAULTS | {"rows": "2", "live": 64, "k": 8, "repeats": 1}
    cells = costs.benchmark(options)
    assert [(cell["rows"], cell["k"]) for cell in cells] == [(2, 0), (2, 3), (2, 8)]
    assert all(np.isfinite(cell["ms"]) and cell["ms"] > 0 for cell in cells)
    assert cells[0]["vs_plain"] == 1.0
    costs.show(cells, "small")
    assert "vs plain" in capsys.readouterr().out


def test_the_study_of_draft_length_is_one_line_a_length(capsys):
    options = lengths.DEFAULTS | {"lengths": "1,3", "rows": "2", "prompts": "1", "repeats": 1}
    options["trace"] = "synthetic"
    (cell,) = lengths.study(options)
    assert list(cell["arms"]) == ["plain", "again", "k1", "k3"]
    one, three = cell["arms"]["k1"], cell["arms"]["k3"]
    assert one["tokens_per_forward"] <= min(2.0, three["tokens_per_forward"])
    capsys.readouterr()
    lengths.show([cell], "small")
    assert "accepted" in capsys.readouterr().out
    with pytest.raises(ValueError, match="lengths: found '0,3'"):
        lengths.study(options | {"lengths": "0,3"})


def test_no_setting_changes_a_token(capsys):
    findings = exact.examine(exact.subject(6), Effort(prompts=6, group=4))
    assert {"draft_length = fixed", "draft_length = auto"} <= findings.keys()
    assert all(finding.outcome != "fails" for finding in findings.values())
    assert "draft_length = auto" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arms": "fixed,plain"}, "arms: found fixed first"),
        ({"arms": "plain,swift"}, "arm: found swift"),
        ({"dtype": "float8"}, "dtype: found float8"),
        ({"trace": "/nowhere"}, "/nowhere"),
    ],
)
def test_a_mistake_is_named(change, words):
    with pytest.raises(ValueError, match=words):
        speed.benchmark(SMALL | change)
