"""Several processes of one command on this machine: `python train/launch.py --processes N -- ...`.

    python train/launch.py --processes 2 [--devices 4] -- train/train.py CONFIG [key=value ...]

Every process gets the entries `distributed.*` that say where the others are, and with `--devices D`
GPUs of its own, D each. Ctrl-C and SIGTERM go to all of them, which then agree on a step to save
and stop at. Where one dies the others cannot go on, so they are ended; the same command, on as many
processes and devices as there are then, goes on from the last checkpoint. The exit status is 0, or
that of the first process that failed, 1 where a signal ended it.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

ORDERLY = (0, 1, 2)  # statuses with which a command ends by itself, see train/ending.py
POLL_SECONDS = 0.1
GRACE_SECONDS = 20.0


def main(arguments: Sequence[str]) -> int:
    """Runs the processes to their end; the exit status."""
    parser = argparse.ArgumentParser(prog="launch.py", usage=str(__doc__))
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--devices", type=int, default=0)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    if options.processes < 1:
        print(f"error: --processes: found {options.processes}, allowed: 1 or more", file=sys.stderr)
        return 2
    coordinator = f"127.0.0.1:{_free_port()}"
    running = [
        _start(options.command, coordinator, options.processes, index, options.devices)
        for index in range(options.processes)
    ]

    def forward(number: int, frame: FrameType | None) -> None:
        del frame
        for process in running:
            if process.poll() is None:
                process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    return _watch(running)


def _start(
    command: Sequence[str], coordinator: str, processes: int, index: int, devices: int
) -> subprocess.Popen:
    own = ",".join(str(index * devices + i) for i in range(devices))
    return subprocess.Popen(
        [
            sys.executable,
            *command,
            "distributed.enabled=true",
            f"distributed.coordinator={coordinator}",
            f"distributed.processes={processes}",
            f"distributed.process={index}",
        ],
        env=os.environ | ({"JAX_LOCAL_DEVICE_IDS": own} if own else {}),
        start_new_session=True,  # a terminal's Ctrl-C comes through here, once
    )


def _watch(running: Sequence[subprocess.Popen]) -> int:
    """Waits for all; ends the others where one has failed, at once where it did not say why."""
    failed = None
    while failed is None:
        time.sleep(POLL_SECONDS)
        statuses = [process.poll() for process in running]
        failed = next((i for i, status in enumerate(statuses) if status), None)
        if not any(status is None or status for status in statuses):
            return 0
    status = running[failed].returncode
    if status in ORDERLY:
        _wait(running, GRACE_SECONDS)
    for process in running:
        if process.poll() is None:
            process.kill()
    _wait(running, GRACE_SECONDS)
    if status in ORDERLY:
        return status
    how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    print(
        f"error: process {failed} of {len(running)} ended {how} and the others were stopped; "
        "the same command goes on from the last checkpoint",
        file=sys.stderr,
    )
    return 1


def _wait(running: Sequence[subprocess.Popen], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in running):
        time.sleep(POLL_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
