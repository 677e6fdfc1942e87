"""The worker keeps its contract: order, capacity, deadlines, failure and closing."""

import ctypes
import threading
import time

import numpy as np
import pytest

from ngramrl_jax.host.prefetch import Worker

SOON = 10.0  # seconds; nothing here takes that long unless it hangs


@pytest.fixture
def worker():
    made = Worker(capacity=4, patience_s=SOON, close_s=SOON)
    yield made
    made.close()
    assert not made.alive


def in_thread(call) -> tuple[threading.Thread, list]:
    """Runs the call in a thread; what it raises or returns is in the list."""
    came = []

    def run():
        try:
            came.append(call())
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, came


def test_calls_are_made_in_order_and_one_at_a_time(worker):
    rng, seen = np.random.default_rng(0), []

    def call(n, seconds):
        seen.append(("in", n))
        time.sleep(seconds)
        seen.append(("out", n))
        return n * n

    tickets = [worker.ask(call, n, rng.uniform(0, 2e-3)) for n in range(30)]
    assert [worker.result(ticket) for ticket in tickets] == [n * n for n in range(30)]
    assert seen == [(way, n) for n in range(30) for way in ("in", "out")]
    assert all(ticket.begun < ticket.ended for ticket in tickets)
    assert worker.busy_s >= sum(ticket.ended - ticket.begun for ticket in tickets) * 0.99


def test_capacity_makes_the_caller_wait_until_there_is_room(worker):
    gate = threading.Event()
    worker.tell(gate.wait, SOON)
    while worker._waiting:  # the worker has taken it up
        time.sleep(1e-3)
    for _ in range(4):
        worker.tell(int)
    thread, came = in_thread(lambda: worker.tell(int))
    thread.join(0.1)
    assert thread.is_alive()
    gate.set()
    thread.join(SOON)
    assert came == [None]
    worker.flush()


def test_who_waits_may_do_something_meanwhile(worker):
    looks = []
    assert worker.result(worker.ask(time.sleep, 0.05), lambda: looks.append(1), 0.005) is None
    assert len(looks) >= 3


def test_an_exception_reaches_whoever_waits_and_whoever_comes_later(worker):
    def fails():
        raise OSError("disk on fire")

    never = []
    ticket = worker.ask(fails)
    for _ in range(2):
        with pytest.raises(OSError, match="disk on fire"):
            worker.result(ticket)
    for late in (lambda: worker.tell(never.append, 1), worker.flush):
        with pytest.raises(OSError, match="disk on fire"):
            late()
    assert not never


def test_a_deadline_ends_the_wait_for_an_answer_for_room_and_for_the_end():
    gate = threading.Event()
    worker = Worker(capacity=1, patience_s=0.05, close_s=0.05)
    with pytest.raises(TimeoutError, match=r"drafter: found no answer to wait within 0.05 s"):
        worker.result(worker.ask(gate.wait, SOON))
    worker.tell(int)
    with pytest.raises(TimeoutError, match="drafter: found no room for int within"):
        worker.tell(int)
    with pytest.raises(TimeoutError, match="still busy"):
        worker.close()
    gate.set()
    worker.close()
    assert not worker.alive


@pytest.mark.parametrize("blocked", ["in an answer", "in room"])
def test_close_wakes_a_caller_that_is_blocked(blocked):
    gate = threading.Event()
    worker = Worker(capacity=1, patience_s=SOON, close_s=SOON)
    ticket = worker.ask(gate.wait, SOON)
    while worker._waiting:
        time.sleep(1e-3)
    worker.tell(int)
    wait = worker.flush if blocked == "in room" else lambda: worker.result(ticket)
    thread, came = in_thread(wait)
    time.sleep(0.05)
    closer, _ = in_thread(worker.close)
    thread.join(SOON)  # the caller is free before the call has returned
    assert [str(error) for error in came] == ["drafter: its thread was closed"]
    gate.set()
    closer.join(SOON)
    assert not worker.alive


def test_close_drops_what_waits_and_may_be_repeated():
    made = []
    worker = Worker()
    worker.tell(time.sleep, 0.05)
    for n in range(50):
        worker.tell(made.append, n)
    worker.close()
    worker.close()
    assert not worker.alive
    assert len(made) < 50
    with pytest.raises(RuntimeError, match="closed"):
        worker.tell(made.append, 1)


@pytest.mark.parametrize("where", ["idle", "in a call"])
def test_a_thread_killed_from_outside_is_noticed(worker, where):
    """By an exception that another thread raises in it, wherever it is."""
    stop = threading.Event()

    def turns():
        while not stop.is_set():
            time.sleep(1e-3)

    ticket = worker.ask(turns if where == "in a call" else int)
    if where == "idle":
        worker.result(ticket)
    kill = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert kill(ctypes.c_ulong(worker._thread.ident), ctypes.py_object(SystemExit)) == 1
    time.sleep(0.05 if where == "idle" else 0.0)
    with pytest.raises(RuntimeError, match="its thread was ended by SystemExit"):
        worker.flush()
    stop.set()
