"""`python -m ngramrl_jax.replay`: its figures, its two kinds of trace, and its mistakes."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from ngramrl_jax.replay import __main__ as command
from ngramrl_jax.replay.registry import factories
from ngramrl_jax.replay.report import compare
from ngramrl_jax.trace.block import block_folders
from ngramrl_jax.trace.records import TracedStep
from ngramrl_jax.trace.store import TraceWriter
from tests.support.traces import HEADER, random_step

GROUP = [[5, 6, 7, 8, 9, 0], [5, 6, 7, 8, 9, 0], [1, 2, 0]]


@pytest.fixture
def run_trace(tmp_path):
    writer = TraceWriter(tmp_path / "traces", HEADER)
    for step in range(10):
        said = random_step(step % 3)  # an epoch of three steps, and every one says the same
        writer.append(type(said)(step, said.rollouts, said.reward_N))
    return tmp_path


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"prompt_ids": [3], "rollouts": GROUP, "rewards": [1, 1, 0]}) + "\n")
    return path


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["replay", *map(str, arguments)])
    status = command.main()
    said = capsys.readouterr()
    return status, said.out, said.err


def report(monkeypatch, capsys, *arguments):
    status, said, _ = run(monkeypatch, capsys, "--json", *arguments)
    assert status == 0
    return json.loads(said)


def test_all_figures_of_a_run(monkeypatch, capsys, run_trace):
    found = report(monkeypatch, capsys, run_trace, "--draft-tokens", 4)
    about, drafters = found["traces"][0]["trace"], found["traces"][0]["drafters"]
    steps = [random_step(step % 3) for step in range(10)]
    tokens = sum(step.tokens for step in steps)
    assert about["step_numbers"] == list(range(10))
    assert about["cold_steps"] == [0, 1, 2]
    assert about["warm_steps"] == [7, 8, 9]
    assert (about["tokens"], about["rollouts"]) == (tokens, 120)
    surprise = -sum(r.logps_N.sum(dtype=np.float64) for s in steps for r in s.rollouts)
    assert about["entropy"] == pytest.approx(surprise / tokens)
    assert {"ngram", "none", "oracle"} <= set(drafters)
    assert drafters["none"]["tokens_per_forward"] == {"all": 1.0, "cold": 1.0, "warm": 1.0}
    ngram = drafters["ngram"]
    assert ngram["tokens_per_forward"]["cold"] < 1.2  # random tokens
    assert ngram["tokens_per_forward"]["warm"] > 2.0  # that were said before
    assert sum(ngram["draft_lengths"]) == ngram["rounds"]
    kept = ngram["accepted_per_round"] * ngram["rounds"]
    assert ngram["rounds"] + kept == pytest.approx(tokens, abs=120)  # stops may be drafted
    assert ngram["bytes_per_token"] > 4
    assert ngram["us_per_proposal"] > 0
    over = found["comparison"]["over"]["none"]
    low, high = over["interval"]
    assert low < over["ratio"] < high
    assert found["comparison"]["of"] == "ngram"


def test_every_rollout_of_a_group_is_replayed_with_the_others_alone(monkeypatch, capsys, lines):
    found = report(monkeypatch, capsys, lines, "--drafters", "ngram,none")["traces"][0]
    ngram = found["drafters"]["ngram"]
    # The twins know all of each other but their first token may be drafted wrong; the third one
    # finds nobody who begins as it does.
    assert ngram["rounds"] <= 2 + 2 + 3
    assert found["drafters"]["none"]["rounds"] == 15
    assert found["trace"]["coverage"]["covered"] == pytest.approx(12 / 15)
    assert found["trace"]["coverage"]["run_mean"] == 6.0
    assert found["trace"]["entropy"] is None
    assert ngram["tokens_per_forward"]["warm"] is None


def test_tables_name_every_drafter(monkeypatch, capsys, run_trace, lines):
    status, said, _ = run(monkeypatch, capsys, run_trace, lines, "--drafters", "ngram,none")
    assert status == 0
    for words in ("ngram over none", "of 2 traces", "cover", "nats a token", "µs/proposal"):
        assert words in said


def test_rounds_that_were_sent_ahead_are_told(monkeypatch, capsys, run_trace, tmp_path):
    """A new row idles through the round that is under way when it is admitted."""
    said = random_step(0)
    late = [replace(r, finished=r.started + r.rounds + r.sibling % 2) for r in said.rollouts]
    TraceWriter(tmp_path / "late" / "traces", HEADER).append(TracedStep(0, late, said.reward_N))
    found = report(monkeypatch, capsys, tmp_path / "late", run_trace, "--drafters", "none")
    assert [each["trace"]["idle_rounds"] for each in found["traces"]] == [6, 0]
    _, words, _ = run(monkeypatch, capsys, tmp_path / "late", run_trace, "--drafters", "ngram,none")
    assert words.count("rows idled 6 rounds") == words.count("sent ahead") == 1


def test_a_single_pair_has_no_interval(monkeypatch, capsys, lines):
    status, said, _ = run(monkeypatch, capsys, lines, "--drafters", "ngram,none")
    assert status == 0
    assert "no interval" in said
    assert "95 %" not in said


def test_help_explains_every_drafter(capsys):
    with pytest.raises(SystemExit):
        command.run(["--help"])
    said = capsys.readouterr().out
    for name in factories(HEADER):
        assert f"\n  {name} " in said, name


def test_a_trace_without_best_tokens_has_no_oracle(monkeypatch, capsys, tmp_path):
    TraceWriter(tmp_path, HEADER).append(random_step(0, best=0))
    assert "oracle" not in report(monkeypatch, capsys, tmp_path)["traces"][0]["drafters"]
    status, _, said = run(monkeypatch, capsys, tmp_path, "--drafters", "oracle")
    assert status == 2
    assert "oracle: found no best tokens" in said


def test_a_picture_is_drawn(monkeypatch, capsys, run_trace, tmp_path):
    picture = tmp_path / "p.png"
    status, _, _ = run(monkeypatch, capsys, run_trace, "--drafters", "none", "--plot", picture)
    assert status == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_picture_is_refused_in_one_line(
    monkeypatch, capsys, run_trace, tmp_path
):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    arguments = (run_trace, "--drafters", "none", "--plot", tmp_path / "p.png")
    status, _, said = run(monkeypatch, capsys, *arguments)
    assert status == 2
    assert "found no matplotlib" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere"], "/nowhere: found no trace"),
        (
            ["{lines}", "--drafters", "ngrams"],
            "drafter: found ngrams, allowed: ngram, ngram_tree, ngram_blind, none",
        ),
        (["{lines}", "--drafters", "ngrams"], "nearest: ngram"),
        (["{lines}", "--draft-tokens", "0"], "--draft-tokens: found 0, allowed: 1 or more"),
        (["{lines}", "--draft-tokens", "x"], "invalid int value"),
        (["{lines}", "--plot", "/nowhere/p.png"], "--plot: found /nowhere/p.png"),
        (["{lines}", "--plot", "p.pdf"], "--plot: found p.pdf, allowed: a file .png, .svg"),
        ([], "required: TRACE"),
    ],
)
def test_a_mistake_costs_one_line_and_status_2(monkeypatch, capsys, lines, arguments, words):
    status, _, said = run(monkeypatch, capsys, *(a.format(lines=lines) for a in arguments))
    assert status == 2
    assert said.startswith("error: ")
    assert words in said
    assert "\n" not in said.strip()


def test_damage_costs_one_line_and_status_2(monkeypatch, capsys, run_trace):
    block = block_folders(run_trace / "traces")[0]
    chunk = next(path for path in (block / "tokens" / "c").rglob("*") if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[:-9])
    status, _, said = run(monkeypatch, capsys, run_trace, "--drafters", "none")
    assert status == 2
    assert "damaged block" in said
    assert "\n" not in said.strip()


def test_an_empty_trace_is_said(monkeypatch, capsys, tmp_path):
    TraceWriter(tmp_path, HEADER)
    status, _, said = run(monkeypatch, capsys, tmp_path)
    assert status == 2
    assert "found no whole step yet" in said


@pytest.mark.stat
def test_the_interval_covers_the_true_quotient():
    """Steps whose rounds scatter around twice as many, 300 times: the 95 % interval misses at most
    8 % of them (p < 0.01 for a right one); one of half the width would miss a third.
    """
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(300):
        ours = rng.integers(80, 120, 40)
        theirs = 2 * ours + rng.integers(-20, 21, 40)
        drafters = {
            name: {"rounds_by_step": dict(enumerate(rounds.tolist()))}
            for name, rounds in (("a", ours), ("b", theirs))
        }
        one = {"trace": {"warm_steps": list(range(40))}, "drafters": drafters}
        low, high = compare([one])["over"]["b"]["interval"]
        missed += not low <= 2.0 <= high
    assert missed <= 24


def test_replay_starts_without_jax(repository, lines):
    program = (
        "import sys; sys.argv = ['replay', sys.argv[1], '--drafters', 'ngram'];"
        "from ngramrl_jax.replay.__main__ import main; status = main();"
        "sys.exit(status or 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(lines)], cwd=repository, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "ngram" in done.stdout
