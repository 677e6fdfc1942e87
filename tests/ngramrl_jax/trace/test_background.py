"""The background writer's contract: order, capacity, errors, close."""

import threading

import pytest

from ngramrl_jax.trace.background import BackgroundWriter
from tests.support.traces import random_step

STEPS = [random_step(step, prompts=1, group=1) for step in range(6)]


def test_steps_are_written_in_order_by_another_thread():
    seen = []
    writer = BackgroundWriter(lambda step: seen.append((step.step, threading.get_ident())))
    for step in STEPS:
        writer.put(step)
    writer.close()
    writer.close()
    assert [step for step, _ in seen] == list(range(6))
    assert {thread for _, thread in seen} != {threading.get_ident()}


def test_put_does_not_wait_for_the_disk_until_as_many_as_allowed_wait():
    gate, seen = threading.Event(), []
    writer = BackgroundWriter(lambda step: gate.wait(10) and seen.append(step.step), ahead=2)
    writer.put(STEPS[0])
    writer.put(STEPS[1])
    assert seen == []
    third = threading.Thread(target=writer.put, args=(STEPS[2],))
    third.start()
    third.join(0.1)
    assert third.is_alive()
    gate.set()
    third.join(10)
    assert not third.is_alive()
    writer.close()
    assert seen == [0, 1, 2]


def test_flush_returns_when_all_is_written():
    seen = []
    writer = BackgroundWriter(lambda step: seen.append(step.step))
    for step in STEPS[:2]:
        writer.put(step)
    writer.flush()
    assert seen == [0, 1]
    writer.close()


@pytest.mark.parametrize("how", ["put", "flush", "close"])
def test_an_error_comes_out_of_the_next_call_once_and_drops_the_rest(how):
    gate, seen = threading.Event(), []

    def append(step):
        gate.wait(10)
        if step.step == 0:
            raise OSError(28, "No space left on device")
        seen.append(step.step)

    writer = BackgroundWriter(append, ahead=1)
    writer.put(STEPS[0])
    gate.set()
    use = {"put": lambda: writer.put(STEPS[1]), "flush": writer.flush, "close": writer.close}[how]
    with pytest.raises(OSError, match="No space"):
        use()
    writer.close()
    assert seen == []


def test_close_ends_the_thread_also_after_an_error():
    def append(step):
        raise OSError(28, "No space left on device")

    before = threading.active_count()
    writer = BackgroundWriter(append)
    writer.put(STEPS[0])
    with pytest.raises(OSError, match="No space"):
        writer.close()
    assert threading.active_count() == before
