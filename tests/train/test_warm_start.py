"""A warm start learns, stops where it is told to, and leaves a checkpoint that trains on."""

import json
import shutil
import sqlite3
from contextlib import closing

import pytest

from models import checkpoint
from train.config import DataConfig
from train.config_file import load_config
from train.loop import run
from train.tasks.registry import open_task
from train.workbench import load_policy


@pytest.fixture
def folder(tmp_path):
    """Four questions to one database, a task that a policy learns by heart in a few updates."""
    data = tmp_path / "data"
    (data / "databases").mkdir(parents=True)
    with closing(sqlite3.connect(data / "databases" / "zoo.sqlite")) as database:
        database.execute("CREATE TABLE animal (name TEXT, age INTEGER)")
        database.executemany("INSERT INTO animal VALUES (?, ?)", [("Ada", 3), ("Bo", 5)])
        database.commit()
    questions = {
        "How many animals?": "SELECT COUNT(*) FROM animal",
        "Names?": "SELECT name FROM animal",
        "Oldest age?": "SELECT MAX(age) FROM animal",
        "Ages in order?": "SELECT age FROM animal ORDER BY age",
    }
    lines = [
        json.dumps({"database": "zoo", "question": question, "query": query})
        for question, query in questions.items()
    ]
    (data / "train.jsonl").write_text("\n".join(lines))
    (data / "test.jsonl").write_text(lines[0])
    return tmp_path


def settings(folder, *more):
    return load_config(
        None,
        [
            f"out={folder}/run",
            f"data.path={folder}/data",
            f"model.checkpoint={folder}/checkpoint",
            "warm_start.enabled=true",
            "warm_start.vocab_size=300",
            "warm_start.batch=4",
            "warm_start.epochs=60",
            "warm_start.stop_accuracy=0.75",
            "warm_start.learning_rate=3e-3",
            "rollout.slots=4",
            "rollout.draft_tokens=4",
            "rollout.max_new_tokens=24",
            "train.prompts_per_step=4",
            "train.group=2",
            "train.micro_batch=8",
            "train.steps=1",
            "evaluation.slots=4",
            *more,
        ],
    )


@pytest.mark.slow
def test_a_run_warm_starts_once_and_then_finds_its_checkpoint(folder, capsys):
    summary = run(settings(folder))
    said = capsys.readouterr().out
    assert "warm start, " in said
    accuracy = float(said.split("right when sampled ")[-1].split(",")[0])
    assert accuracy >= 0.75
    assert summary["steps"] == 1
    _, _, codec = load_policy(settings(folder).model, DataConfig())
    assert codec.vocab_size <= 300  # a tokenizer of its own
    shutil.rmtree(folder / "run")
    run(settings(folder))
    assert "warm start" not in capsys.readouterr().out


def test_without_permission_a_missing_checkpoint_is_an_error(folder):
    with pytest.raises(ValueError, match="checkpoint"):
        run(settings(folder, "warm_start.enabled=false"))


def test_an_unknown_preset_is_named(folder):
    with pytest.raises(ValueError, match="qwen3_0_6b"):
        run(settings(folder, "warm_start.preset=huge"))


def test_the_embedded_checkpoint_is_the_tiny_preset_and_small(repository):
    path = repository / "data" / "checkpoints" / "tiny"
    assert sum(file.stat().st_size for file in path.rglob("*")) < 12e6
    config, params = checkpoint.load(path)
    assert 2e6 < sum(leaf.size for leaf in params_leaves(params)) < 6e6
    assert (config.vocab_size, config.tie_word_embeddings) == (2048, True)


def params_leaves(params):
    for value in params.values():
        yield from params_leaves(value) if isinstance(value, dict) else [value]


def test_the_task_closes_its_workers(folder):
    task = open_task(settings(folder))
    task.close()
    task.close()
