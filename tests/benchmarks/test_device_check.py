"""The device check as a script: its commands are ones that exist, and nothing can hold it up.

A stand-in for Python writes down how it was called, so that no model is run.
"""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.options import parse_options
from benchmarks.rollout import costs, exact, shapes, speed
from benchmarks.rollout.arms import make_arm
from benchmarks.rollout.workload import open_workload
from ngramrl_jax.check import Parser

STAND_IN = """#!/usr/bin/env bash
(IFS=$'\\x1f'; echo "$*") >> "$CALLS"
if [ -n "${FAULT:-}" ] && [[ "$1" == *"${FAULT%:*}"* ]]; then
  [ "${FAULT#*:}" = hang ] && exec sleep 60
  exit 3
fi
"""
STEPS = ["device", "exact", "check", "costs", "speed_small", "speed_large"]


@pytest.fixture
def check(tmp_path, repository):
    """Runs the script; gives its status, the calls that it made and how its steps ended."""
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)

    def run(**environment: str):
        calls = tmp_path / "calls"
        calls.write_text("")
        given = os.environ | {"PYTHON": str(python), "CALLS": str(calls), "TRACE": "none"}
        script = repository / "benchmarks" / "device_check.sh"
        done = subprocess.run(
            ["bash", script, tmp_path / "out"],
            env=given | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        lines = [line.split("\x1f") for line in calls.read_text().splitlines()]
        ends = (tmp_path / "out" / "steps.txt").read_text().splitlines()
        return done.returncode, lines, ends

    return run


@pytest.mark.parametrize("size", [{}, {"SMALL": "1"}], ids=["full", "small"])
def test_every_command_is_one_that_its_program_takes(check, size):
    status, calls, ends = check(**size)
    assert status == 0
    assert [end.split()[1].rstrip(":") for end in ends] == STEPS
    assert all(": done after" in end for end in ends)
    by_program = {Path(call[0] if call[0] != "-m" else call[1]).name: call for call in calls[1:]}
    programs = {"exact.py": exact, "costs.py": costs, "speed.py": speed}
    assert by_program.keys() == {*programs, "ngramrl_jax.check"}
    for program, *arguments in calls:
        module = programs.get(Path(program).name)
        if module:
            options = parse_options(arguments, module.DEFAULTS)
            assert options.get("shape", "tiny") in shapes.SHAPES
            assert options.get("dtype", "float32") in shapes.DTYPES
    Parser().parse_args(by_program["ngramrl_jax.check"][2:])
    assert parse_options(by_program["speed.py"][1:], speed.DEFAULTS)["trace"] == "synthetic"


def test_its_arms_are_ones_that_the_engine_takes(check, monkeypatch):
    _, calls, _ = check()
    options = parse_options(calls[-1][1:], speed.DEFAULTS)
    policy, _ = shapes.random_model("tiny", "float32")
    workload = open_workload("synthetic", policy.vocab_size)
    for name in options["arms"].split(","):
        assert make_arm(name, policy, workload, 1, 4) is not None


@pytest.mark.parametrize(("fault", "words"), [("exact:fail", "failed with status 3")])
def test_a_step_that_fails_is_told_and_the_rest_goes_on(check, fault, words):
    status, calls, ends = check(FAULT=fault)
    assert status == 1
    assert words in ends[STEPS.index("exact")]
    assert [": done after" in end for end in ends] == [name != "exact" for name in STEPS]
    assert len(calls) == len(STEPS)


def test_a_step_that_hangs_is_ended_and_so_is_everything_at_the_end_of_its_time(check):
    status, calls, ends = check(FAULT="costs:hang", BUDGET="4")
    assert status == 1
    assert "timed out" in ends[STEPS.index("costs")]
    assert all("not run, no time left" in end for end in ends[STEPS.index("costs") + 1 :])
    assert len(calls) == 4
