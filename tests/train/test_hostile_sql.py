"""Many hostile responses leak nothing, and a busy machine changes no score.

The short version of `make hostile`, which runs ten thousand.
"""

import os
import signal
import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict

from benchmarks.rewards.hostile_queries import COUNT, HOSTILE
from benchmarks.rewards.hostile_sql import (
    DATA,
    busy_machine,
    cases,
    fingerprint,
    footprint,
    measure,
)
from train.rewards.sandbox import Limits
from train.rewards.sql import SqlJob, SqlReward


def test_a_thousand_calls_leak_neither_process_memory_nor_descriptor():
    mixed = cases(1_200, hostile_per_mille=40)
    assert sum(case.job.text in HOSTILE.values() for case in mixed) == 48
    before, files = footprint(), fingerprint(DATA)
    outcome = measure(mixed, workers=2)
    after = footprint()
    assert outcome.wrong == 0
    assert outcome.killed >= 1  # workers have died and were replaced
    assert outcome.most.processes == 2
    assert outcome.most.descriptors - before.descriptors <= 2 * 2
    assert outcome.most.worker_descriptors < 60  # 32 open databases and a few more
    assert outcome.grown_mb < 16
    assert outcome.most.worker_peak_mb < 250  # 128 MB of SQLite, a result, an interpreter
    assert (after.processes, after.descriptors) == (before.processes, before.descriptors)
    assert fingerprint(DATA) == files


def test_a_leak_would_be_seen():
    """The comparison has power: a held descriptor and a process not waited for are counted."""
    before = footprint()
    with busy_machine(1), open(os.devnull) as _:
        during = footprint()
    grown = {name: value - asdict(before)[name] for name, value in asdict(during).items()}
    assert (grown["processes"], grown["descriptors"]) == (1, 1)


# Some 9 of 12 million instructions: as heavy as an honest query may be.
HEAVY = f"SELECT COUNT(*) FROM ({COUNT} SELECT x FROM c LIMIT 450000)"
JUST_TOO_HEAVY = f"SELECT COUNT(*) FROM ({COUNT} SELECT x FROM c LIMIT 900000)"


def test_the_heavy_query_ends_by_its_instructions_not_by_its_time(database):
    limits = Limits(cpu_seconds=1e9)
    with closing(SqlReward(workers=1, limits=limits, cpu_seconds=60)) as reward:
        assert [_score(reward, database, q) for q in (HEAVY, JUST_TOO_HEAVY)] == [1.0, 0.0]


@contextmanager
def _a_tenth_of_the_processor(pid):
    """Lets a process run a tenth of the time, as on a machine with ten times its load."""
    done = threading.Event()

    def throttle():
        with suppress(ProcessLookupError):  # it was killed for being slow
            while not done.wait(0.01):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.09)
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _score(reward, database, query):
    gold = query.replace("COUNT(*)", "450000", 1).partition(" FROM")[0]
    (score,) = reward([SqlJob(database, gold, query)])
    return score.reward


def test_a_tenth_of_the_processor_changes_no_score(database):
    with closing(SqlReward(workers=1)) as reward:
        assert _score(reward, database, "SELECT 450000") == 1.0
        with _a_tenth_of_the_processor(reward._pool._workers[0]._process.pid):
            start = time.monotonic()
            assert _score(reward, database, HEAVY) == 1.0
            assert _score(reward, database, JUST_TOO_HEAVY) == 0.0
            assert time.monotonic() - start > 1.0  # the throttle did hold it back


def test_a_limit_by_the_clock_would_have_changed_it(database):
    """The throttle has power: with the clock alone the same query is lost."""
    with closing(SqlReward(workers=1, seconds=0.4)) as reward:
        assert _score(reward, database, "SELECT 450000") == 1.0
        with _a_tenth_of_the_processor(reward._pool._workers[0]._process.pid):
            assert _score(reward, database, HEAVY) == 0.0
