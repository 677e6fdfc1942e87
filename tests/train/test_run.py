"""Whole runs through the commands, in processes of their own, on the embedded default."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

SMALL = (
    "data.train_items=24",
    "data.heldout_items=4",
    "train.prompts_per_step=4",
    "train.group=4",
    "train.micro_batch=8",
    "train.checkpoint_every=3",
    "rollout.slots=4",
    "rollout.draft_tokens=4",
    "rollout.max_new_tokens=24",
    "evaluation.slots=4",
    "optimizer.learning_rate=1e-4",
)
CLOCK = {
    "rollout_share",
    "rollout_tokens_per_s",
    "exposed_host_ms_per_round",
    "draft_length_ms",
}


def command(repository, *arguments, cwd=None):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd or repository,
        capture_output=True,
        text=True,
        timeout=600,
        env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"},
    )


def train(repository, out, steps, *overrides):
    done = command(
        repository, "train/train.py", "configs/quickstart.yaml", *SMALL,
        f"out={out}", f"train.steps={steps}", *overrides,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def whole(repository, tmp_path_factory):
    """Six steps at once."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    return out, train(repository, out, 6)


def rows(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in row.items() if k not in CLOCK and not k.startswith("time_")}
        for row in lines
    ]


def checkpoint(out):
    with ocp.CheckpointManager((out / "checkpoints").resolve()) as manager:
        restored = manager.restore(
            6,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(), history=ocp.args.StandardRestore()
            ),
        )
    return {"state": restored["state"], "history": restored["history"]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sharding info not provided when restoring")
def test_six_steps_equal_three_a_fresh_process_and_three_more(repository, whole, tmp_path):
    out = tmp_path / "halves"
    train(repository, out, 3)
    said = train(repository, out, 6)
    assert "resuming at step 3 of 6" in said
    # Held-out accuracy stands in the row of a run's last step; the halves have two such steps.
    halves = [{k: v for k, v in row.items() if "heldout" not in k} for row in rows(out)[:-1]]
    at_once = [{k: v for k, v in row.items() if "heldout" not in k} for row in rows(whole[0])[:-1]]
    assert halves == at_once
    assert rows(out)[-1] == rows(whole[0])[-1]
    some, other = checkpoint(whole[0]), checkpoint(out)
    assert jax.tree.structure(some) == jax.tree.structure(other)
    for one, two in zip(jax.tree.leaves(some), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
    assert len(some["history"]["length_R"]) == 1 + 6 * 16  # a dummy, then all that was sampled


@pytest.mark.slow
def test_a_run_folder_holds_what_the_contract_names(whole):
    out, said = whole
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "report.html", "samples.json"):
        assert (out / name).stat().st_size > 0, name
    assert list((out / "tensorboard").glob("events*"))
    names = set(rows(out)[-1])
    assert names >= {
        "step", "epoch", "policy_version", "reward_mean", "reward_std", "frac_zero_std",
        "heldout_database_accuracy", "response_len_mean", "truncated_frac", "tokens_per_forward",
        "accepted_per_round", "drafted_per_round", "acceptance_rate", "acceptance_by_position",
        "draft_tokens_used", "rounds", "forwards", "loss", "entropy", "clip_frac", "grad_norm",
        "logp_gap_mean", "logp_gap_max", "history_tokens", "history_bytes", "compile_count",
    }  # fmt: skip
    summary = json.loads((out / "summary.json").read_text())
    assert {"warm", "cold", "device", "versions", "seed", "git_commit", "heldout"} <= set(summary)
    for row in rows(out):
        assert row["logp_gap_max"] < 1e-4
        assert row["gold_failed_frac"] == 0.0
        assert row["compile_count"] == rows(out)[0]["compile_count"]
    assert "tokens per forward" in said


@pytest.mark.slow
def test_a_finished_run_can_be_evaluated(repository, whole):
    done = command(repository, "train/evaluate.py", str(whole[0]))
    assert done.returncode == 0, done.stderr
    subject, legend, *lines = done.stdout.splitlines()
    assert subject.endswith("task text2sql, data data/text2sql (task and data.path of the run)")
    assert legend == "accuracy (Wilson's 95 % interval), items:"
    assert [line.split(":")[0] for line in lines] == ["database", "paraphrases", "questions"]
    last = rows(whole[0])[-1]
    for line in lines:
        name, figure = line.split(":")[0], float(line.split()[1])
        assert figure == pytest.approx(last[f"heldout_{name}_accuracy"], abs=5e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train/train.py", "train.epoch=2"], "nearest: train.epochs"),
        (["train/train.py", "configs/none.yaml"], "found no file configs/none.yaml"),
        (["train/train.py", "model.checkpoint=/nowhere", "out={tmp}/a"], "/nowhere"),
        (["train/train.py", "data.path=/nowhere", "out={tmp}/b"], "/nowhere"),
        (["train/train.py", "objective.name=ppo", "out={tmp}/c"], "grpo, dr_grpo, dapo"),
        (["train/train.py", "rollout.max_prompt_tokens=5", "out={tmp}/d"], "max_prompt_tokens"),
        (["train/evaluate.py", "/nowhere"], "/nowhere: found neither"),
        (["train/sft.py", "model.checkpoint=data"], "data exists, allowed: a new folder"),
    ],
)
def test_a_mistake_costs_one_line_and_status_2(repository, tmp_path, arguments, words):
    done = command(repository, *(word.format(tmp=tmp_path) for word in arguments))
    assert done.returncode == 2, done.stderr
    line = done.stderr.strip()
    assert line.startswith("error: ")
    assert words in line
    assert "\n" not in line


@pytest.mark.slow
def test_another_configuration_in_the_same_folder_is_refused(repository, whole):
    done = command(
        repository, "train/train.py", "configs/quickstart.yaml", *SMALL,
        f"out={whole[0]}", "train.steps=6", "seed=1",
    )  # fmt: skip
    assert done.returncode == 2
    assert "seed: 0 -> 1" in done.stderr


def test_the_command_works_from_another_folder(repository, tmp_path):
    done = command(repository, str(repository / "train" / "train.py"), "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "python train/train.py" in done.stdout
