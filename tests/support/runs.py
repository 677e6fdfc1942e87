"""Whole runs in processes of their own, small enough to be killed many times."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from models import checkpoint
from models.config import ModelConfig
from models.policy import Qwen3Policy

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "data" / "checkpoints" / "tiny"
EVERY = 2  # steps between checkpoints
LOST = 2 * EVERY  # steps at most that a kill costs: a checkpoint is written beside the next ones
SETTINGS = (
    f"task={REPOSITORY}/tests/support/odd_task.py:OddTask",
    "train.prompts_per_step=2",
    "train.group=2",
    "train.micro_batch=4",
    f"train.checkpoint_every={EVERY}",
    "train.keep_best=0",
    "rollout.slots=4",
    "rollout.draft_tokens=3",
    "rollout.max_new_tokens=8",
    "rollout.prefix_entries=4",
    "rollout.top_k=2",  # so few that drafts are accepted
    "evaluation.slots=4",
    "optimizer.learning_rate=1e-3",
)
CLOCK = {
    "rollout_share",
    "rollout_tokens_per_s",
    "exposed_host_ms_per_round",
    "draft_length_ms",
}


def make_micro_policy(folder: Path) -> Path:
    """A random policy that compiles fast, with the tokenizer of the tiny one."""
    config = replace(
        ModelConfig.from_json(TINY / "config.json"),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    checkpoint.save(folder, config, Qwen3Policy(config).init_params(jax.random.key(0)), TINY)
    return folder


@dataclass(frozen=True)
class RunCommand:
    """`python train/train.py` on the micro policy.

    Attributes:
        policy: Its folder.
        out: Run folder.
        steps: Of the whole run.
        overrides: Further `key=value`.
    """

    policy: Path
    out: Path
    steps: int
    overrides: tuple[str, ...] = ()

    def start(self, **environment: str) -> subprocess.Popen:
        return subprocess.Popen(
            [
                sys.executable, "train/train.py", "configs/quickstart.yaml", *SETTINGS,
                f"model.checkpoint={self.policy}", f"out={self.out}", f"train.steps={self.steps}",
                *self.overrides,
            ],
            cwd=REPOSITORY,
            env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def finish(self, **environment: str) -> tuple[int, str, str]:
        """Runs it to its end: exit status, standard output, standard error."""
        return ended(self.start(**environment))


def ended(process: subprocess.Popen) -> tuple[int, str, str]:
    said, complained = process.communicate(timeout=1200)
    return process.returncode, said, complained


def kill(process: subprocess.Popen) -> None:
    """SIGKILL, and nothing of it left."""
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)


def wait_for(condition, process: subprocess.Popen, seconds: float = 900.0) -> bool:
    """Polls until the condition holds; False where the process ended first."""
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)
    return True


def handles_signals(process: subprocess.Popen) -> bool:
    """Whether the process has a handler for SIGTERM, as Linux tells."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def rows(out: Path) -> list[dict]:
    """The whole rows of `metrics.jsonl`, without what the clock says."""
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    parsed = [json.loads(line) for line in lines if line.endswith("\n")]
    return [
        {k: v for k, v in row.items() if k not in CLOCK and not k.startswith("time_")}
        for row in parsed
    ]


def committing(out: Path, since: float = 0.0) -> bool:
    """Whether a checkpoint is being written, or was when the process was killed.

    `since` (seconds of `time.time`) leaves out what an earlier kill has left behind.
    """
    for partial in (out / "checkpoints").glob(".*.partial*"):
        with suppress(FileNotFoundError):
            if partial.stat().st_ctime > since:
                return True
    return False


def saved_steps(out: Path) -> list[int]:
    return sorted(int(path.name) for path in (out / "checkpoints").glob("[0-9]*"))


def held(out: Path, step: int) -> dict:
    """State and history in a checkpoint, as they lie on disk."""
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        restored = checkpointer.restore(
            (out / "checkpoints" / str(step)).resolve(),
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(), history=ocp.args.StandardRestore()
            ),
        )
    return {"state": restored["state"], "history": restored["history"]}


def assert_equal_runs(one: Path, other: Path, steps: int) -> None:
    """Rows, policy, optimizer and history are equal to the last bit, whatever happened between."""
    assert [row["step"] for row in rows(one)] == list(range(steps))
    for a, b in zip(rows(one), rows(other), strict=True):
        assert a == b
    leaves = [jax.tree.leaves(held(out, steps)) for out in (one, other)]
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
