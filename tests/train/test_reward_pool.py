"""The worker pool's contract: order, time limit, kill and restart, errors that are not scores."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from train.rewards.pool import LOST, WorkerPool

WORKER = '''
"""What the workers of these tests run."""

import os
import sys
import time


def make(log="", fail=False):
    if fail:
        raise ValueError("planted in the factory")

    def run(item):
        kind, value = item
        if log:
            with open(log, "a") as file:
                file.write(f"{os.getpid()} {value}\\n")
        if kind == "sleep":
            time.sleep(value)
        if kind == "work":
            until = time.process_time() + value
            while time.process_time() < until:
                pass
        if kind == "die":
            os._exit(3)
        if kind == "die once" and not os.path.exists(value):
            open(value, "w").close()
            os._exit(3)
        if kind == "raise":
            raise ValueError("planted in the function")
        if kind == "loaded":
            return [name for name in value if name in sys.modules]
        return value, os.getpid()

    return run
'''


@pytest.fixture
def pool(tmp_path, monkeypatch):
    (tmp_path / "pool_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pools = []

    def make(seconds=10.0, cpu_seconds=None, workers=2, batch=4, **settings):
        limits = {"seconds": seconds, "cpu_seconds": cpu_seconds, "batch": batch}
        pools.append(WorkerPool("pool_worker:make", settings, workers=workers, **limits))
        return pools[-1]

    yield make
    for one in pools:
        one.close()


def _values(results):
    return [LOST if result is LOST else result[0] for result in results]


def test_keeps_the_order_and_reuses_its_workers(pool):
    pool = pool()
    items = [("sleep", 0.002 * (i % 5)) for i in range(40)]
    first, second = pool.map(items), pool.map(items)
    assert _values(first) == _values(second) == [value for _, value in items]
    assert {pid for _, pid in first} == {pid for _, pid in second}
    assert len({pid for _, pid in first}) == 2
    assert pool.map([]) == []


def test_a_hung_item_is_lost_in_time_and_its_neighbours_are_not(pool, tmp_path):
    log = tmp_path / "log"
    pool = pool(seconds=0.4, workers=1, log=str(log))
    pool.map([("echo", "warm")])
    start = time.monotonic()
    results = pool.map([("echo", 0), ("sleep", 60), *[("echo", i) for i in range(2, 9)]])
    assert time.monotonic() - start < 20.0  # not the 60 it asked for, on a machine that stalls too
    assert _values(results) == [0, LOST, *range(2, 9)]
    assert pool.lost == 1
    runs = [line.split()[1] for line in log.read_text().split("\n") if line]
    assert sorted(runs) == sorted(["warm", "0", "60", *map(str, range(2, 9))])


def test_the_time_limit_is_per_item_not_per_batch(pool):
    results = pool(seconds=0.5, workers=1, batch=8).map([("sleep", 0.15)] * 8)
    assert LOST not in results


def test_work_is_limited_by_processor_time_and_waiting_by_the_clock(pool, tmp_path):
    log = tmp_path / "log"
    pool = pool(seconds=300.0, cpu_seconds=0.3, workers=1, log=str(log))
    items = [("work", 0.1), ("work", 60), ("sleep", 0.6), *[("work", 0.15)] * 4]
    start = time.monotonic()
    assert _values(pool.map(items)) == [0.1, LOST, 0.6, *[0.15] * 4]
    assert time.monotonic() - start < 200.0  # long before the clock's limit
    assert pool.lost == 1
    runs = [line.split()[1] for line in log.read_text().split("\n") if line]
    assert runs.count("60") == 1, "an item that used up its time must not be tried again"


def test_the_limit_of_processor_time_holds_where_the_parent_ignores_its_signal(pool):
    before = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        assert pool(seconds=300.0, cpu_seconds=0.1, workers=1).map([("work", 60)]) == [LOST]
    finally:
        signal.signal(signal.SIGPROF, before)


def test_every_item_may_be_lost(pool):
    pool = pool(workers=2)
    assert pool.map([("die", 0)] * 3) == [LOST] * 3
    assert pool.lost == 3
    assert _values(pool.map([("echo", 1)])) == [1]


def test_an_item_whose_worker_died_is_tried_again(pool, tmp_path):
    pool = pool(workers=1)
    marker = str(tmp_path / "marker")
    assert _values(pool.map([("die once", marker), ("echo", 1)])) == [marker, 1]
    assert pool.lost == 0


def test_a_worker_killed_from_outside_costs_no_item(pool):
    pool = pool(workers=1)
    ((_, pid),) = pool.map([("echo", 0)])
    os.kill(pid, signal.SIGKILL)
    time.sleep(0.1)
    assert _values(pool.map([("echo", i) for i in range(9)])) == list(range(9))

    ((_, pid),) = pool.map([("echo", 0)])
    threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()
    assert _values(pool.map([("sleep", 0.3), ("echo", 1)])) == [0.3, 1]
    assert pool.lost == 0


def test_a_stopped_worker_is_replaced(pool):
    pool = pool(workers=1, seconds=0.3)
    ((_, pid),) = pool.map([("echo", 0)])
    os.kill(pid, signal.SIGSTOP)
    assert _values(pool.map([("echo", 1), ("echo", 2)])) == [LOST, 2]


def test_an_exception_is_an_error_with_its_traceback_and_leaves_the_pool_usable(pool):
    pool = pool()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="planted in the function"):
            pool.map([("echo", 0), ("raise", 0), *[("sleep", 0.05)] * 20])
    assert _values(pool.map([("echo", i) for i in range(20)])) == list(range(20))


def test_a_worker_that_cannot_start_is_an_error_every_time(pool):
    pool = pool(fail=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="planted in the factory"):
            pool.map([("echo", 0)])


def test_a_hang_in_a_pool_used_from_a_thread_costs_itself_alone(pool):
    """CASES B82: from a thread no signal helps, and an error there must not read as a score."""
    pool = pool(seconds=300.0, cpu_seconds=0.2, workers=1)
    ((_, first),) = pool.map([("echo", 0)])
    results, errors = [], []

    def score():
        results.extend(pool.map([("work", 60), ("echo", 1)]))
        try:
            pool.map([("raise", 0)])
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=score)
    thread.start()
    thread.join(timeout=30)
    assert _values(results) == [LOST, 1]
    assert "planted in the function" in str(errors)
    assert not Path(f"/proc/{first}").exists()


def test_closing_leaves_no_process_and_no_descriptor(pool):
    open_before = len(os.listdir("/proc/self/fd"))
    with pool(seconds=0.3) as one:
        pids = {pid for _, pid in one.map([("sleep", 0.01)] * 20)}
        one.map([("sleep", 60)])
    one.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert len(os.listdir("/proc/self/fd")) == open_before
    with pytest.raises(RuntimeError, match="closed"):
        one.map([("echo", 0)])


def test_workers_load_neither_jax_nor_the_main_script(pool, tmp_path):
    """The main script of the parent would be imported by multiprocessing's own workers."""
    heavy = ("jax", "numpy", "flax", "main_script")
    script = tmp_path / "main_script.py"
    script.write_text(
        "import jax\n"
        "from train.rewards.pool import WorkerPool\n"
        "jax.numpy.zeros(3).block_until_ready()\n"
        "with WorkerPool('pool_worker:make', {}, workers=1) as pool:\n"
        f"    print(pool.map([('loaded', {heavy})]))\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-W", "error", script], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "[[]]\n", done.stderr


def test_workers_end_with_their_parent(pool, tmp_path):
    script = (
        "from train.rewards.pool import WorkerPool; import os, signal\n"
        "pool = WorkerPool('pool_worker:make', {}, workers=1)\n"
        "print(pool.map([('echo', 0)])[0][1], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    worker = Path(f"/proc/{int(done.stdout)}/stat")
    deadline = time.monotonic() + 5
    while worker.exists() and worker.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "bad", [{"workers": 0}, {"seconds": 0.0}, {"batch": 0}, {"cpu_seconds": 0.0}]
)
def test_bad_numbers_are_refused(bad):
    with pytest.raises(ValueError, match="allowed"):
        WorkerPool("a:b", {}, **bad)
