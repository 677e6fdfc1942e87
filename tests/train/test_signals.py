"""Ctrl-C and SIGTERM: the first ends well, the second at once, and none is lost."""

import signal
import subprocess
import sys
import time

import pytest

from train.interrupt import Interrupted, deferred, handled

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)

BUSY = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"  # minutes inside C
SLEEP = "time.sleep(60)"


def signalled(body, *numbers):
    """Runs the body as a command and sends it signals, half a second apart."""
    script = (
        "import gc, hashlib, sys, time\nfrom train.ending import fail_in_one_line\n"
        "from train.interrupt import deferred\n"
        f"with fail_in_one_line():\n    print('ready', flush=True)\n    {body}"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1.0)  # into the body
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.5)
    said, complained = process.communicate(timeout=30)
    return process.returncode, said, complained


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_well_and_the_second_at_once(number):
    assert signalled(SLEEP, number)[:2] == (
        0,
        "stopped: nothing had to be saved; the same command starts anew\n",
    )
    for body in (BUSY, f"\n    with deferred(): {SLEEP}"):
        status, said, complained = signalled(body, number, number)
        assert (status, said) == (128 + number, "")
        assert complained == "stopping; a second signal ends at once\n"


def test_a_deferred_block_runs_to_its_end():
    body = (
        "\n    with deferred(): time.sleep(3.0); print('saved', flush=True)\n    print('not here')"
    )
    status, said, _ = signalled(body, signal.SIGTERM)
    assert status == 0
    assert said.splitlines()[0] == "saved"
    assert "not here" not in said


@pytest.mark.parametrize(
    "slow",
    [
        "gc.callbacks.append(lambda *_: time.sleep(3.0))\n    gc.collect()",
        "def __del__(self): time.sleep(3.0)\n    type('Slow', (), {'__del__': __del__})()",
        "sys.path.insert(0, SLOW)\n    import slow_module",
    ],
)
def test_a_signal_is_not_lost_where_python_swallows_exceptions(tmp_path, slow):
    text = "import time\ntry:\n    time.sleep(3.0)\nexcept BaseException:\n    raise ImportError\n"
    (tmp_path / "slow_module.py").write_text(text)
    body = slow.replace("SLOW", repr(str(tmp_path))) + "\n    print('on')\n    time.sleep(60)"
    status, said, complained = signalled(body, signal.SIGTERM)
    assert (status, complained) == (0, "stopping; a second signal ends at once\n")
    assert "stopped: nothing had to be saved" in said


def test_handlers_are_restored():
    before = [signal.getsignal(number) for number in NUMBERS]
    with pytest.raises(Interrupted), handled(), handled(), deferred():
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in NUMBERS] == before
    with handled(), deferred():
        pass  # nothing of the signal is left for the next command
