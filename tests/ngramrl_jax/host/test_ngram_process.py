"""The n-gram drafter in a process: other threads, compilation, and what it imports."""

import subprocess
import sys
import threading
import time
from itertools import pairwise

import numba
import numpy as np
import pytest

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter, warm_up
from tests.support.drafters import drafts

compiled = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="kernels are not compiled")


def test_a_history_may_be_observed_by_another_thread():
    """Rollouts come, move and are forgotten while rows are drafted; no draft is ever a stranger's.

    Within a rollout every token is one more than the one before it, so a torn read would show; and
    none ends within a draft, behind which matches are picked up elsewhere.
    """
    warm_up()  # no compilation within the seconds that this takes
    history = History(window=3, max_bytes=60_000)
    drafter = NgramDrafter(32, 16, history, threads=2)
    end = time.monotonic() + 1.5
    observed = [0]

    def observe():
        rng = np.random.default_rng(0)
        while time.monotonic() < end:
            prompt_id = int(rng.integers(8))
            begin = 1000 * prompt_id + int(rng.integers(2)) * 500
            history.observe(prompt_id, np.arange(begin, begin + rng.integers(20, 400)), 0)
            observed[0] += 1

    worker = threading.Thread(target=observe)
    worker.start()
    drafted = asked = 0
    while worker.is_alive():
        for row in range(drafter.rows):
            drafter.start_row(row, row % 8, np.array([9999]))
        for _ in range(4):
            for row, draft in enumerate(drafts(drafter, [16] * drafter.rows)):
                begins = [1000 * (row % 8), 1000 * (row % 8) + 500]
                assert not draft or draft[0] in begins
                for one, two in pairwise(draft):
                    assert two == one + 1
                drafted += len(draft)
            asked += 1
    worker.join()
    assert min(observed[0], asked, drafted) >= 10


def ticks_while_storing(tokens):
    """How often another thread got on in the middle of storing a long rollout."""
    history = History()
    rollout = np.random.default_rng(0).integers(0, 1000, tokens)
    times = []

    def insert():
        times.append(time.perf_counter())
        history.observe(0, rollout, 0)
        times.append(time.perf_counter())

    worker = threading.Thread(target=insert)
    worker.start()
    ticks = []
    while worker.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    begin, end = times
    share = [(tick - begin) / (end - begin) for tick in ticks]
    return sum(0.3 < at < 0.7 for at in share)


@compiled
def test_the_kernels_release_the_gil():
    """Another thread goes on while a long rollout is being stored.

    A kernel that kept the lock would let it through never. On a crowded machine it waits for a
    core as well: then another try has to do.
    """
    warm_up()
    assert any(ticks_while_storing(2_000_000) >= 3 for _ in range(10))


def test_the_host_core_loads_no_jax():
    code = "import sys, ngramrl_jax.host.ngram; print({'jax', 'flax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
