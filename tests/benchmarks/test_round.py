"""The benchmark of rounds in small: it runs what an engine runs, and its figures are finite."""

import math
from dataclasses import replace

import pytest

from benchmarks import round as rounds
from models.config import preset

SMALL = replace(
    preset("tiny"),
    vocab_size=64,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
)


def test_every_arm_runs(capsys):
    of = rounds.measure(SMALL, rows=2, options={"repeats": 1, "draft": 3})
    assert all(math.isfinite(figure) and figure > 0 for figure in of.values())
    assert of["plain_ratio"] == pytest.approx(of["plain_ms"] / of["forward_ms"])
    rounds.show({"small": of}, {"repeats": 1, "draft": 3})
    assert "ms a round" in capsys.readouterr().out


def test_an_unknown_shape_is_named():
    assert set(rounds.chosen("tiny,135M")) == {"tiny", "135M"}
    with pytest.raises(ValueError, match="shapes: found huge, allowed: tiny, 135M"):
        rounds.chosen("huge")
