"""The library's command: what it prints, what it writes, how it ends."""

import json
import sys

import pytest

from ngramrl_jax import check
from ngramrl_jax.evidence import report
from ngramrl_jax.evidence.rounding import Rounding
from ngramrl_jax.evidence.subject import Finding
from ngramrl_jax.evidence.verdict import Caught, Verdict


def ends_with(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["check", *arguments])
    return check.main()


def verdict(outcome="holds", caught=True) -> Verdict:
    finding = Finding("same law", outcome, "9 of 9", "Holm", {"tests": 9})
    planted = () if outcome == "fails" else (Caught("bad residual", "same law", caught, "seen"),)
    return Verdict(
        "mine", "float32", "cpu", Rounding(1e-4, 1e-4), (finding,), planted, ("a note",), 1.0
    )


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (verdict(), 0, "Verdict: lossless."),
        (verdict("fails"), 1, "Verdict: NOT lossless. Failed: same law."),
        (verdict("no power"), 1, "Verdict: no power."),
        (verdict(caught=False), 1, "same law (missed: bad residual)"),
    ],
)
def test_a_verdict_is_printed_written_and_returned(
    monkeypatch, capsys, tmp_path, found, status, words
):
    monkeypatch.setattr(check, "examine", lambda subject, effort, say: found)
    path = tmp_path / "figures.json"
    assert ends_with(monkeypatch, "--json", str(path), "--draws", "50") == status
    printed = " ".join(capsys.readouterr().out.split())
    assert words in printed
    assert "a note" in printed
    figures = json.loads(path.read_text())
    assert (figures["status"], figures["effort"]["draws"]) == (status, 50)
    assert len(figures["subjects"]) == 3
    assert figures["subjects"][0]["conclusion"] == found.conclusion
    assert figures["subjects"][0]["findings"][0]["numbers"] == {"tests": 9}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--draws", "3"], "draws: found 3, allowed: 10 or more"),
        (["--group", "5"], "group: found 5, allowed: an even number"),
        (["--alpha", "2"], "alpha: found 2.0"),
        (["--drows", "3"], "--drows"),
        (["--json", "/nowhere/figures.json"], "--json: /nowhere/figures.json: No such file"),
    ],
)
def test_a_mistake_costs_one_line_and_status_2(monkeypatch, capsys, arguments, words):
    assert ends_with(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert words in said
    assert "\n" not in said


def test_the_built_in_policies_are_of_both_kinds_and_both_dtypes():
    subjects = check.built_in(seed=3)
    assert [(one.name, one.dtype) for one in subjects] == [
        ("table policy", "float32"),
        ("random transformer", "float32"),
        ("random transformer", "bfloat16"),
    ]


def test_colour_codes_never_swallow_words(capsys):
    report.show(verdict(), report.Console(width=120))
    assert "[" not in capsys.readouterr().out
