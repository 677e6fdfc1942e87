"""What the comparison with peers makes of their answers; the peers themselves are not run."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from benchmarks.peers.compare import figures, measure, same_model
from benchmarks.peers.serving import Job, until_stop

JOB = Job("", [[5, 6]], 2, 8, (0,), 0.4, 0)
SERVER = """
import sys
from dataclasses import replace
sys.path.insert(0, {folder!r})
from benchmarks.peers.serving import serve
def arm(job):
    print("noise of a library")
    return [list(job.prompts[0]) + [job.number]] * job.group
serve({{"copies": arm}})
"""


class Fake:
    """A peer that answers at once, and remembers its jobs."""

    def __init__(self, name: str, arms: list[str], greedy: list[int], seconds: float) -> None:
        self.name, self.arms, self.jobs = name, arms, []
        self._greedy, self._seconds = greedy, seconds

    def run(self, job: Job) -> dict:
        self.jobs.append(job)
        return {"seconds": self._seconds, "tokens": 12, "first": self._greedy}


def peers(*greedy: list[int]) -> list:
    names = [("ours", ["ours, plain", "ours, drafting"], 1.0), ("other", ["other"], 3.0)]
    return [Fake(n, arms, said, s) for (n, arms, s), said in zip(names, greedy, strict=True)]


def test_a_response_ends_with_its_first_stop_token():
    assert until_stop([4, 5, 0, 7, 0], (0,)) == [4, 5, 0]
    assert until_stop([4, 5], (0,)) == [4, 5]
    assert until_stop([], (0,)) == []


def test_another_model_is_found_out():
    said = list(range(20, 40))
    assert same_model(peers(said, [*said[:12], 1]), JOB) == {"ours": 20, "other": 12}
    with pytest.raises(ValueError, match="other: found 3 equal greedy tokens"):
        same_model(peers(said, [*said[:3], 1]), JOB)


def test_arms_take_turns_after_a_start_and_only_drafting_learns():
    two = peers([1], [1])
    measured = measure(two, JOB, {"epochs": 3, "repeats": 2})
    order = [job.arm for job in two[0].jobs]
    assert order == ["ours, plain"] + 3 * ["ours, drafting"] + 2 * two[0].arms
    assert [job.number for job in two[1].jobs] == [0, 3, 4]
    table = figures(measured)
    assert table["other"]["speed"] == pytest.approx(1 / 3)
    assert table["ours, plain"]["tokens_per_s"] == 12.0


def test_a_worker_keeps_its_answers_apart_from_what_libraries_print(repository):
    code = SERVER.format(folder=str(repository))
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=replace(JOB, arm="copies").to_line() + "\n",
        capture_output=True,
        text=True,
    )
    hello, answer = map(json.loads, done.stdout.splitlines())
    assert hello == {"arms": ["copies"]}
    assert (answer["tokens"], answer["first"]) == (6, [5, 6, 0])
    assert "noise of a library" in done.stderr
