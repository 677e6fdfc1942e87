"""The final number: where it stands, what equals what, and hostile answers."""

import sys
import threading
import time
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

from tests.support.clocks import thread_seconds
from train.rewards.numbers import (
    LONGEST_ANSWER,
    NumberJob,
    NumberReward,
    final_answer,
    plain_number,
)

ENDLESS = "9^{9^{9^{9}}}"


@pytest.fixture(scope="module")
def reward():
    with closing(NumberReward(workers=1)) as one:
        yield one


def _rewards(reward, gold, answers):
    scores = reward([NumberJob(Fraction(gold), f"#### {answer}") for answer in answers])
    return [score.reward for score in scores]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2 + 3 = 5\n#### 5", "5"),
        ("#### 4\nNo.\n####  1,234 apples \nand 7 more", "1,234 apples"),
        (r"so \boxed{3} or rather \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{5} and then\n#### 6", "6"),
        ("He has 3 boxes of 4, so -12.5 in all.", "-12.5"),
        ("It costs 12.", "12."),
        ("about 3/4 of them", "3/4"),
        ("x2 and y3", None),
        ("#### none", None),
        ("####", None),
        ("", None),
        ("#### " + "1" * (LONGEST_ANSWER + 1), None),
        (r"\boxed{7", "7"),
    ],
)
def test_where_the_final_answer_stands(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("+42.", 42),
        ("-3", -3),
        ("\N{MINUS SIGN}3", -3),
        ("1,234,567", 1234567),
        ("0042.50", "42.5"),
        (".5", "0.5"),
        ("-$0.50", "-0.5"),
        (r"\$18", 18),
        ("$18$", 18),
        ("**18**", 18),
        ("€1,450.00", 1450),
        ("3/4", "0.75"),
        ("-6 / 4 cups", "-1.5"),
        ("50%", 50),
        (r"50\%", 50),
        ("12 apples", 12),
        ("60 miles/hour.", 60),
        ("12,34", None),
        ("1,2345", None),
        ("3/0", None),
        ("1e5", None),
        ("9**9", None),
        ("1 2", None),
        ("18 or 19", None),
        ("--3", None),
        ("x", None),
        ("", None),
    ],
)
def test_plain_numbers(text, value):
    assert plain_number(text) == (None if value is None else Fraction(value))


def test_equal_numbers_match_and_others_do_not(reward):
    right = ["18", "18.0", "36/2", "$18", "(18)", r"\frac{36}{2}", r"\sqrt{324}", "x = 18"]
    wrong = ["19", "18.01", "-18", "1.8", "180", "18 or 19", "17 1", "18, 19", r"\frac{18}{2}"]
    assert _rewards(reward, 18, right) == [1.0] * len(right)
    assert _rewards(reward, 18, wrong) == [0.0] * len(wrong)
    assert _rewards(reward, "0.1", ["1/10", "0.10", "0.1000001"]) == [1.0, 1.0, 0.0]
    assert _rewards(reward, 10**6, ["1,000,000", "10^{6}"]) == [1.0, 1.0]


def test_parts_and_order(reward):
    texts = ["#### 5", "nothing", "#### 6", "5", "#### 5"]
    scores = reward([NumberJob(Fraction(5), text) for text in texts])
    assert [score.reward for score in scores] == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert [score.parts["answered"] for score in scores] == [1.0, 0.0, 1.0, 1.0, 1.0]
    assert all(score.parts["accuracy"] == score.reward for score in scores)
    assert reward([]) == []


def test_an_endless_answer_costs_itself_alone_from_a_thread_too():
    """CASES B82: 0 within the limit, the next one scored, the process that hung gone."""
    with closing(NumberReward(workers=1, cpu_seconds=0.5)) as reward:
        assert _rewards(reward, 2, [r"\frac{4}{2}"]) == [1.0]
        hung = reward._pool._workers[0]._process.pid
        scores = []
        jobs = [
            NumberJob(Fraction(2), text) for text in (f"#### {ENDLESS}", r"#### \sqrt{4}", "#### 2")
        ]
        thread = threading.Thread(target=lambda: scores.extend(reward(jobs)))
        start = time.monotonic()
        thread.start()
        thread.join(timeout=60)
        assert [score.reward for score in scores] == [0.0, 1.0, 1.0]
        assert [score.faults["killed"] for score in scores] == [1.0, 0.0, 0.0]
        assert time.monotonic() - start < 40.0  # in wall-clock time, on a busy machine
        assert not Path(f"/proc/{hung}").exists()
        assert _rewards(reward, 2, ["9**9**9**9", r"\sqrt{4}", "3!!!!"]) == [0.0, 1.0, 0.0]


def test_an_answer_is_never_run_as_code(reward, tmp_path, monkeypatch):
    """CASES B83."""
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "mark1"
    calls = [f"__import__('os').system('touch {mark}')", f"open('{mark}','w')", "exit(1)"]
    answers = [*calls, *(f"18 + {call}" for call in calls), rf"\text{{{calls[0]}}}"]
    assert _rewards(reward, 18, answers) == [0.0] * len(answers)
    assert not mark.exists()
    assert _rewards(reward, 18, ["(18)"]) == [1.0]


def test_garbage_is_wrong_and_not_an_error(reward):
    garbage = ["1" + sign * 60 for sign in "({[\\^_$&#%!/*-+.,|~"] + [
        "1\0",
        "1\ud800",
        r"1\frac{",
        "٣",
    ]
    assert _rewards(reward, 18, garbage) == [0.0] * len(garbage)


def test_plain_answers_start_no_process_and_are_fast():
    with closing(NumberReward()) as reward:
        jobs = [NumberJob(Fraction(i), f"{i} = {i}\n#### {i % 700}") for i in range(1000)]
        assert sum(score.reward for score in reward(jobs)) == 700
        assert thread_seconds(lambda: reward(jobs)) < 0.5  # it takes some 0.01 s
        assert reward._pool._workers == []


def test_a_missing_library_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ValueError, match=r"math-verify: found it missing, allowed: installed"):
        NumberReward()
