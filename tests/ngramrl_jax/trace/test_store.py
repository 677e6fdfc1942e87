"""A trace gives back what was put in: whole steps, within its bound, whatever is killed or lost."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from ngramrl_jax.trace.block import block_folders, bytes_of
from ngramrl_jax.trace.records import TracedStep, TraceHeader
from ngramrl_jax.trace.store import HEADER as HEADER_FILE
from ngramrl_jax.trace.store import Trace, TraceWriter
from tests.support.traces import HEADER, assert_same_step, random_step


def write(folder, steps, **changes):
    writer = TraceWriter(folder, HEADER, **changes)
    for step in steps:
        writer.append(random_step(step))
    return writer


def read(folder):
    return list(Trace(folder).steps())


def test_what_is_read_is_what_was_written_and_so_is_the_header(tmp_path):
    write(tmp_path, range(5))
    assert Trace(tmp_path).header == HEADER
    for found, step in zip(read(tmp_path), range(5), strict=True):
        assert_same_step(found, random_step(step))


def test_a_run_folder_stands_for_the_trace_in_it(tmp_path):
    write(tmp_path / "traces", [0])
    assert Trace(tmp_path).step_numbers() == [0]


@pytest.mark.parametrize(
    "step",
    [
        TracedStep(3, [], np.zeros(0, np.float32)),
        random_step(3, best=0),
        random_step(3, prompts=1, group=1, longest=1),
        random_step(3, prompts=40, group=16, longest=60),  # more tokens than a chunk holds
    ],
)
def test_steps_of_all_sizes(tmp_path, step):
    writer = TraceWriter(tmp_path, HEADER)
    writer.append(step)
    writer.append(random_step(4))
    found = read(tmp_path)
    assert_same_step(found[0], step)
    assert_same_step(found[1], random_step(4))


def test_siblings_share_one_prompt_on_disk(tmp_path):
    sizes = []
    for group in (2, 16):
        rng = np.random.default_rng(0)
        step = random_step(0, prompts=1, group=group)
        prompt_P = rng.integers(0, 2**31, 4000, dtype=np.int32)
        rollouts = [type(r)(**(vars(r) | {"prompt_P": prompt_P})) for r in step.rollouts]
        folder = tmp_path / str(group)
        TraceWriter(folder, HEADER).append(TracedStep(0, rollouts, step.reward_N))
        sizes.append(bytes_of(folder))
    assert sizes[1] < 1.5 * sizes[0]


def test_steps_that_differ_in_the_width_of_their_best_tokens_are_refused(tmp_path):
    mixed = [*random_step(0, best=2).rollouts, *random_step(0, best=3).rollouts]
    with pytest.raises(ValueError, match="one width"):
        TraceWriter(tmp_path, HEADER).append(TracedStep(0, mixed, np.zeros(24, np.float32)))


def test_the_bound_holds_after_every_step_and_the_oldest_go_first(tmp_path):
    bound = 2**16
    writer = TraceWriter(tmp_path, HEADER, max_bytes=bound)
    for step in range(60):
        writer.append(random_step(step))
        assert bytes_of(tmp_path) <= bound + 1000  # the header
        numbers = Trace(tmp_path).step_numbers()
        assert numbers == list(range(numbers[0], step + 1))
    assert numbers[0] > 0
    assert len(numbers) > 5
    assert bytes_of(tmp_path) > 0.7 * bound
    for found in read(tmp_path):
        assert_same_step(found, random_step(found.step))


def test_the_bound_counts_what_an_earlier_process_has_left(tmp_path):
    bound = 2**16
    for step in range(0, 60, 3):
        writer = TraceWriter(tmp_path, HEADER, max_bytes=bound, first_step=step)
        for number in range(step, step + 3):
            writer.append(random_step(number))
        assert bytes_of(tmp_path) <= bound + 1000


def test_a_step_larger_than_the_bound_is_not_kept(tmp_path):
    writer = TraceWriter(tmp_path, HEADER, max_bytes=2**16)
    writer.append(random_step(0))
    writer.append(random_step(1, prompts=50, group=16, longest=60, vocab=2**30))
    assert Trace(tmp_path).step_numbers() == []
    writer.append(random_step(2))
    assert Trace(tmp_path).step_numbers() == [2]


@pytest.mark.parametrize("first", [0, 1, 4, 7, 8])
def test_resuming_cuts_the_trace_back_and_goes_on(tmp_path, first):
    write(tmp_path, range(3))
    write(tmp_path, range(3, 8), first_step=3)
    writer = TraceWriter(tmp_path, HEADER, first_step=first)
    assert Trace(tmp_path).step_numbers() == list(range(first))
    for step in range(first, 10):
        writer.append(random_step(step))
    for found, step in zip(read(tmp_path), range(10), strict=True):
        assert_same_step(found, random_step(step))


def test_what_a_killed_writer_left_behind_its_last_whole_step_is_ignored(tmp_path):
    writer = write(tmp_path, range(3))
    block = block_folders(tmp_path)[0]
    index = (block / "index.json").read_bytes()
    writer.append(random_step(3))
    (block / "index.json").write_bytes(index)  # as if the commit had not been reached
    (tmp_path / "000000009").mkdir()  # a block that was only just begun
    assert [found.step for found in read(tmp_path)] == [0, 1, 2]
    write(tmp_path, range(3, 5), first_step=3)
    assert [found.step for found in read(tmp_path)] == [0, 1, 2, 3, 4]
    assert not (tmp_path / "000000009").exists()


def test_a_reader_sees_a_growing_trace_step_by_step(tmp_path):
    writer = TraceWriter(tmp_path, HEADER)
    trace = Trace(tmp_path)  # opened once
    for step in range(4):
        writer.append(random_step(step))
        for found in trace.steps():
            assert_same_step(found, random_step(found.step))
        assert trace.step_numbers() == list(range(step + 1))


def test_a_block_that_goes_while_it_is_read_is_passed_over(tmp_path, monkeypatch):
    from ngramrl_jax.trace import store

    write(tmp_path, [0])
    write(tmp_path, [1], first_step=1)
    oldest = block_folders(tmp_path)[0]
    real = store.read_block

    def gone(block, index):
        if block == oldest:
            store.delete_block(block)
        return real(block, index)

    monkeypatch.setattr(store, "read_block", gone)
    assert [found.step for found in read(tmp_path)] == [1]


WRITER = """
import sys
from pathlib import Path
from ngramrl_jax.trace.store import TraceWriter
from tests.support.traces import HEADER, random_step
writer = TraceWriter(Path(sys.argv[1]), HEADER, first_step=int(sys.argv[2]))
for step in range(int(sys.argv[2]), 10_000):
    writer.append(random_step(step))
"""


def test_whole_steps_survive_kill_nine_and_are_read_meanwhile(tmp_path, repository):
    trace, first = tmp_path / "trace", 0
    for wanted in (4, 9, 17):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(trace), str(first)],
            cwd=repository,
            stdin=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 60
            while not (trace / HEADER_FILE).exists() or first < wanted:
                assert time.monotonic() < deadline
                assert process.poll() is None
                if (trace / HEADER_FILE).exists():
                    first = len(read(trace))
                time.sleep(0.003)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        found = read(trace)
        assert len(found) >= wanted
        for number, step in enumerate(found):
            assert_same_step(step, random_step(number))
        first = len(found) - 1  # as if the last checkpoint were a step older


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("column", ["tokens", "drafted", "rollouts", "best_logps", "prompts"])
@pytest.mark.parametrize("damage", [_flip, os.remove])
def test_damage_is_an_error_of_one_line_and_never_wrong_tokens(tmp_path, column, damage):
    write(tmp_path, range(2))
    block = block_folders(tmp_path)[0]
    chunk = next(path for path in (block / column / "c").rglob("*") if path.is_file())
    damage(chunk)
    with pytest.raises(ValueError, match="damaged block") as error:
        read(tmp_path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"best": 2}', '{"best": 2, "steps": [1], "ends": []}']
)
def test_a_damaged_index_is_an_error_of_one_line(tmp_path, text):
    write(tmp_path, [0])
    (block_folders(tmp_path)[0] / "index.json").write_text(text)
    for use in (read, lambda folder: TraceWriter(folder, HEADER)):
        with pytest.raises(ValueError, match=r"index\.json: found"):
            use(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: "[]",
        lambda text: json.dumps(json.loads(text) | {"format": 99}),
        lambda text: json.dumps(json.loads(text) | {"slots": "four"}),
        lambda text: json.dumps(json.loads(text) | {"more": 1}),
    ],
)
def test_a_damaged_header_is_an_error_of_one_line(tmp_path, change):
    write(tmp_path, [0])
    header = tmp_path / HEADER_FILE
    header.write_text(change(header.read_text()))
    with pytest.raises(ValueError, match=r"trace\.json") as error:
        Trace(tmp_path)
    assert "\n" not in str(error.value)


def test_no_trace_is_said_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="found no trace, allowed"):
        Trace(tmp_path)


def test_a_bound_too_small_for_anything_is_refused(tmp_path):
    with pytest.raises(ValueError, match="max_bytes: found 5, allowed: 65536 or more"):
        TraceWriter(tmp_path, HEADER, max_bytes=5)


def test_a_header_survives_its_text():
    other = TraceHeader(8, 0, 30, seed=3, steps_per_epoch=7, window=2, history_bytes=9)
    assert TraceHeader.from_json(other.to_json()) == other
