"""`make faults`: one run killed with SIGKILL thirty times, some of them inside a checkpoint commit.

Every process but the last is killed at a moment drawn at random: while it starts, some time after
it has written a row, or some time after the temporary folder of a checkpoint has appeared. After
each kill the next process must lose at most the steps since the last checkpoint but one, as the
last may not have been written yet, and the run that
all of them make together must be equal, to the last bit, to one that nobody killed.
"""

import random
import re
import time
from functools import partial

from tests.support.runs import (
    LOST,
    RunCommand,
    assert_equal_runs,
    committing,
    kill,
    make_micro_policy,
    rows,
    saved_steps,
    wait_for,
)

KILLS = 30
STEPS = 200
FEW = 4  # steps in a process that is killed as it starts: on a quick machine all would end too soon
BEGUN = {
    "start": lambda out, rows_before, until: (
        time.time() > until or len(rows(out)) >= rows_before + FEW
    ),
    "step": lambda out, rows_before, _: len(rows(out)) > rows_before,
    "commit": lambda out, _, since: committing(out, since),
}


def test_thirty_kills_change_nothing(tmp_path):
    policy = make_micro_policy(tmp_path / "policy")
    whole = RunCommand(policy, tmp_path / "whole", STEPS)
    assert whole.finish()[0] == 0
    killed = RunCommand(policy, tmp_path / "killed", STEPS)
    draw = random.Random(0)
    lost, inside = [], 0
    for number in range(KILLS):
        since = time.time()
        process = killed.start()
        moment = ("start", "step", "commit")[number % 3 if number else 1]
        at = since + draw.uniform(0.0, 8.0) if moment == "start" else since
        begun = partial(BEGUN[moment], killed.out, len(rows(killed.out)), at)
        assert wait_for(begun, process), "ended before all kills"
        if moment != "start":
            time.sleep(draw.uniform(0.0, 0.3))
        kill(process)
        inside += committing(killed.out, since)
        reached = len(rows(killed.out))
        newest = max(saved_steps(killed.out), default=0)
        lost.append(reached - newest)
        print(f"kill {number + 1} ({moment}): {reached} steps done, {newest} saved", flush=True)
    status, said, complained = killed.finish()
    assert status == 0, complained
    assert "passed over" not in complained
    resumed = re.search(r"resuming at step (\d+)", said)
    assert resumed
    assert int(resumed[1]) == newest
    assert max(lost) <= LOST
    assert_equal_runs(whole.out, killed.out, STEPS)
    print(f"{KILLS} kills, {inside} inside a commit, at most {max(lost)} steps lost, ended equal")
