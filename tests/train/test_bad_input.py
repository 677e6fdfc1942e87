"""What a user can get wrong, for every command: one line, status 2, and nothing made or changed.

The commands run inside this process, as scripts, so that JAX is loaded once.
"""

import json
import runpy
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from train.config_file import load_config
from train.tasks.registry import open_task
from train.warm_start import make_checkpoint
from train.workbench import open_workbench

TRAIN, EVALUATE, SFT = "train/train.py", "train/evaluate.py", "train/sft.py"
BENCH, CHECK = "benchmarks/rollout/speed.py", "train/check.py"
TASKS = Path(__file__).parents[1] / "support" / "mistaken_tasks.py"
RAISES = TASKS.read_text().splitlines().index("        return 1 // item.index") + 1


@pytest.fixture(scope="module")
def template(repository, tmp_path_factory):
    """A data folder, a checkpoint and a task file that are in order."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "data" / "databases").mkdir(parents=True)
    with closing(sqlite3.connect(folder / "data" / "databases" / "zoo.sqlite")) as database:
        database.execute("CREATE TABLE animal (name TEXT, age INTEGER)")
        database.commit()
    examples = [
        {"database": "zoo", "question": f"How many{' very' * n} old?", "query": "SELECT 1"}
        for n in range(4)
    ]
    for name in ("train", "test"):
        write_lines(folder / "data" / f"{name}.jsonl", examples)
    shutil.copytree(repository / "data" / "checkpoints" / "tiny", folder / "tiny")
    shutil.copy(TASKS, folder / "own.py")
    return folder


@pytest.fixture
def folder(template, tmp_path):
    """A copy of the template to spoil."""
    return shutil.copytree(template, tmp_path / "copy")


@pytest.fixture
def fails(repository, monkeypatch, capsys):
    """Runs a command that must fail as a user's mistake does, and returns its one line."""
    monkeypatch.chdir(repository)
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def run(folder, command, *arguments):
        before = listing(folder)
        monkeypatch.setattr(sys, "argv", [command, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(repository / command), run_name="__main__")
        said = capsys.readouterr()
        assert ended.value.code == 2, said
        assert said.err.startswith("error: "), said
        assert said.err.count("\n") == 1, said
        assert listing(folder) == before, "something was left behind"
        return said.err

    return run


def listing(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} | {
        path: 0 for path in folder.rglob("*") if path.is_dir()
    }


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def given(folder, *more):
    """Overrides that are in order, then `more`."""
    return (
        f"out={folder}/run",
        f"data.path={folder}/data",
        f"model.checkpoint={folder}/tiny",
        "train.prompts_per_step=2",
        *more,
    )


OVERRIDES = [
    ("train.epoch=2", "nearest: train.epochs"),
    ("train.epochs=many", "train.epochs"),
    ("epochs", "allowed: key=value"),
    ("model.dtype=float61", "found float61, allowed: float32, bfloat16"),
    ("data.path=/nowhere", "/nowhere: found no such folder"),
    ("data.path={folder}", "found a folder without them"),
    ("data.train_items=-1", "data.train_items: found -1"),
    ("data.reward_workers=0", "reward_workers: found 0"),
    ("task=text2sqll", "found text2sqll"),
    ("task={folder}/own.py:Yours", "found no 'Yours'"),
    (
        "task={folder}/own.py:Raising",
        "/own.py:Raising.prompt, item 0: found ZeroDivisionError: integer division or modulo by "
        f"zero (own.py, line {RAISES}), allowed: a text",
    ),
    ("rollout.max_prompt_tokens=3", "no prompt is that short"),
]
FOR_TRAINING = [
    ("model.checkpoint=/nowhere", "/nowhere: not found"),
    ("model.checkpoint=Qwen/Qwen3-0.6B", "becomes one by train/import_checkpoint.py"),
    ("model.checkpoint={folder}", "config.json"),
    ("objective.name=ppo", "allowed: grpo, dr_grpo, dapo"),
    ("objective.clip_low=-1", "clip_low"),
    ("optimizer.learning_rate=-1", "learning_rate"),
    ("train.prompts_per_step=5", "allowed: at most 4; you have 4 training prompts"),
    ("train.prompts_per_step=0", "prompts_per_step: found 0"),
    ("train.group=0", "group: found 0"),
    ("train.group=1", "group: found 1"),
    ("train.micro_batch=0", "micro_batch: found 0"),
    ("train.epochs=0", "train.epochs: found 0"),
    ("train.steps=-1", "train.steps: found -1"),
    ("train.updates_per_step=0", "updates_per_step: found 0"),
    ("train.checkpoint_every=0", "checkpoint_every: found 0"),
    ("train.keep_checkpoints=0", "keep_checkpoints: found 0"),
    ("train.logprob_chunk=0", "logprob_chunk: found 0"),
    ("rollout.slots=0", "slots: found 0"),
    ("rollout.draft_tokens=-1", "draft_tokens: found -1"),
    ("rollout.max_new_tokens=0", "max_new_tokens: found 0"),
    ("rollout.temperature=-1", "temperature: found -1"),
    ("rollout.top_p=0", "top_p: found 0"),
    ("rollout.verifier=hope", "allowed: coupled, rejection"),
    ("rollout.window=-1", "window: found -1"),
    ("rollout.history_mb=0", "rollout.history_mb: found 0"),
    ("evaluation.slots=0", "slots: found 0"),
    ("evaluation.temperature=-1", "temperature: found -1"),
    ("evaluation.every=-1", "evaluation.every: found -1"),
    ("seed=-1", "seed: found -1"),
    ("seed=4294967296", "seed: found 4294967296"),
    ("out={folder}/own.py/run", "own.py"),
]


@pytest.mark.parametrize(("override", "words"), OVERRIDES + FOR_TRAINING)
def test_train(folder, fails, override, words):
    assert words in fails(folder, TRAIN, *given(folder, override.format(folder=folder)))


@pytest.mark.parametrize(("override", "words"), OVERRIDES)
def test_evaluate(folder, fails, override, words):
    overrides = given(folder, override.format(folder=folder))
    assert words in fails(folder, EVALUATE, f"{folder}/tiny", *overrides)


def test_check(folder, fails):
    """The task is opened as by the other commands; `test_check.py` has the rest."""
    override, words = next(case for case in OVERRIDES if "Raising" in case[0])
    assert words in fails(folder, CHECK, f"{folder}/tiny", override.format(folder=folder))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        *OVERRIDES,
        ("model.checkpoint={folder}/tiny", "tiny exists, allowed: a new folder"),
        ("model.checkpoint={folder}/own.py/new", "own.py"),
        ("warm_start.preset=huge", "preset: found 'huge'"),
        ("warm_start.tokenizer=/nowhere", "/nowhere/tokenizer.json"),
        ("warm_start.batch=0", "warm_start.batch: found 0"),
        ("warm_start.epochs=0", "warm_start.epochs: found 0"),
        ("warm_start.probe_items=0", "warm_start.probe_items: found 0"),
        ("warm_start.learning_rate=0", "learning_rate"),
        ("warm_start.vocab_size=0", "warm_start.vocab_size: found 0"),
        ("evaluation.slots=0", "slots: found 0"),
        ("task={folder}/own.py:Mine", "no response to item 0"),
    ],
)
def test_sft(folder, fails, override, words):
    overrides = given(folder, f"model.checkpoint={folder}/new", override.format(folder=folder))
    assert words in fails(folder, SFT, *overrides)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("row=4", "allowed: shape, dtype, rows, phases, arms, trace"),
        ("rows", "found ''"),
        ("rows=0", "rows: found '0'"),
        ("shape=giant", "shape: found giant"),
        ("phases=hot", "phases: found hot"),
        ("repeats=-1", "repeats: found '-1'"),
        ("json=/nowhere/table.json", "/nowhere"),
    ],
)
def test_rollout_benchmark(folder, fails, option, words):
    assert words in fails(folder, BENCH, option)


def test_configuration_files(folder, fails):
    cases = {
        "none.yaml": (None, "found no file"),
        "list.yaml": (b"- 1\n", "allowed: key: value"),
        "open.yaml": (b"a: [", "not YAML"),
        "bytes.yaml": (b"\xff\xfe\x00", "not YAML"),
        "key.yaml": (b"train: {epoch: 2}\n", "nearest: train.epochs"),
        "section.yaml": (b"train: 3\n", "train"),
    }
    for name, (content, words) in cases.items():
        if content is not None:
            (folder / name).write_bytes(content)
        for command in (TRAIN, SFT):
            assert words in fails(folder, command, str(folder / name)), name


def test_evaluate_needs_a_run_or_a_checkpoint(folder, fails):
    words = "/nowhere: found neither config.yaml nor config.json, allowed: a run folder"
    assert words in fails(folder, EVALUATE, "/nowhere")
    assert "found neither" in fails(folder, EVALUATE, f"{folder}/data")
    own = (f"task={folder}/own.py:Mine",)
    assert "found no held-out prompts" in fails(folder, EVALUATE, f"{folder}/tiny", *own)
    (folder / "run").mkdir()
    (folder / "run" / "config.yaml").write_text(
        f"out: {folder}/run\ndata: {{path: {folder}/data}}\nmodel: {{checkpoint: {folder}/tiny}}\n"
    )
    assert "found no checkpoint" in fails(folder, EVALUATE, f"{folder}/run")


@pytest.mark.parametrize(
    ("given_keys", "whence"),
    [
        ((), "(task and data.path by default: a checkpoint names none)"),
        (("task",), "(data.path by default: a checkpoint names none)"),
        (("task", "data.path"), "(as given)"),
    ],
)
def test_evaluate_says_what_it_evaluates_and_whether_that_was_asked_for(
    folder, repository, monkeypatch, capsys, given_keys, whence
):
    values = {"task": "text2sql", "data.path": f"{folder}/data"}
    overrides = [f"{key}={values[key]}" for key in given_keys]
    monkeypatch.chdir(repository)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(
        sys, "argv", [EVALUATE, f"{folder}/tiny", "rollout.max_prompt_tokens=3", *overrides]
    )
    with pytest.raises(SystemExit):
        runpy.run_path(str(repository / EVALUATE), run_name="__main__")
    data = values["data.path"] if "data.path" in given_keys else "data/text2sql"
    said = capsys.readouterr().out
    assert said == f"evaluating {folder}/tiny on task text2sql, data {data} {whence}\n"


def _drop(name):
    return lambda tiny: (tiny / name).unlink()


def _write(name, text):
    return lambda tiny: (tiny / name).write_text(text)


def _change(name, **values):
    def spoil(tiny):
        settings = json.loads((tiny / name).read_text())
        (tiny / name).write_text(json.dumps(settings | values))

    return spoil


def _more_tokens(tiny):
    tokenizer = json.loads((tiny / "tokenizer.json").read_text())
    added = {**tokenizer["added_tokens"][0], "content": "<|far|>", "id": 5000}
    tokenizer["added_tokens"].append(added)
    tokenizer["model"]["vocab"]["<|far|>"] = 5000
    (tiny / "tokenizer.json").write_text(json.dumps(tokenizer))


def _exchange_two_tokens(tiny):
    tokenizer = json.loads((tiny / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    one, other = list(vocab)[300:302]
    vocab[one], vocab[other] = vocab[other], vocab[one]
    (tiny / "tokenizer.json").write_text(json.dumps(tokenizer))


def _truncate(tiny):
    largest = max(
        (p for p in (tiny / "params").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size
    )
    largest.write_bytes(largest.read_bytes()[:1000])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_exchange_two_tokens, "tokenizer: found another"),
        (_drop("config.json"), "config.json"),
        (_drop("tokenizer.json"), "tokenizer.json"),
        (_drop("tokenizer_config.json"), "tokenizer_config.json"),
        (_drop("files.json"), "files.json"),
        (_write("config.json", "{"), "config.json"),
        (_write("config.json", "{}"), "config.json"),
        (_change("config.json", hidden_size=64), "allowed by its configuration"),
        (_change("config.json", vocab_size=100), "allowed by its configuration"),
        (_change("config.json", num_attention_heads="8"), "num_attention_heads"),
        (_write("tokenizer.json", "{"), "tokenizer.json"),
        (_write("tokenizer.json", "{}"), "tokenizer.json is damaged"),
        (_write("tokenizer_config.json", "["), "tokenizer_config.json is damaged"),
        (
            _write("tokenizer_config.json", "[]"),
            "tokenizer_config.json is damaged, allowed: a JSON object",
        ),
        (_write("tokenizer_config.json", "{}"), "eos_token None"),
        (_change("tokenizer_config.json", eos_token="<|no|>"), "eos_token '<|no|>'"),
        (_more_tokens, "allowed: at most the model's"),
        (_truncate, "damaged"),
    ],
)
def test_checkpoints(folder, fails, spoil, words):
    spoil(folder / "tiny")
    assert words in fails(folder, TRAIN, *given(folder))


@pytest.mark.parametrize(
    ("name", "words"),
    [("Silent", "found ''"), ("Number", "found 3"), ("Half", "found 'half a pair")],
)
def test_a_task_whose_prompts_are_no_text(folder, fails, name, words):
    said = fails(folder, TRAIN, *given(folder, f"task={folder}/own.py:{name}"))
    assert "prompt of item 0" in said
    assert words in said


def test_data_folders(folder, fails):
    data = folder / "data"
    whole = (data / "train.jsonl").read_text()
    cases = [
        (lambda: (data / "train.jsonl").write_text(whole + "{"), "train.jsonl, line 5"),
        (lambda: (data / "train.jsonl").write_text('{"database": "zoo"}'), "found no question"),
        (lambda: (data / "train.jsonl").write_text(""), "found no items"),
        (lambda: (data / "train.jsonl").write_bytes(b"\xff"), "UTF-8"),
        (lambda: (data / "databases" / "zoo.sqlite").write_text("no"), "found no SQLite file"),
        (lambda: (data / "databases" / "zoo.sqlite").unlink(), "found no file"),
    ]
    for spoil, words in cases:
        spoil()
        said = fails(folder, TRAIN, *given(folder))
        assert words in said
        if words not in ("found no SQLite file", "found no file"):
            (data / "train.jsonl").write_text(whole)


def test_prompts_longer_than_the_cache_are_left_out_and_counted(folder):
    config = load_config(None, given(folder))
    with closing(open_task(config)) as task:
        lengths = sorted(len(prompt.tokens_P) for prompt in open_workbench(config, task).train)
        shorter = load_config(None, given(folder, f"rollout.max_prompt_tokens={lengths[1]}"))
        bench = open_workbench(shorter, task)
    assert lengths[1] < lengths[2]
    assert [len(bench.train), len(bench.heldout["test"]), bench.left_out] == [2, 2, 4]


def test_a_stop_token_may_be_written_as_an_object(folder):
    _change("tokenizer_config.json", eos_token={"content": "<|end|>"})(folder / "tiny")
    config = load_config(None, given(folder))
    with closing(open_task(config)) as task:
        assert open_workbench(config, task).codec.stop_ids == (0,)


def test_a_mistake_that_is_mended_leaves_no_trace_in_the_run_folder(folder, fails):
    """The run folder is not made before the configuration is known to be good."""
    fails(folder, TRAIN, *given(folder, "model.checkpoint=/nowhere"))
    fails(folder, TRAIN, *given(folder, "warm_start.enabled=true", f"model.checkpoint={folder}/w",
                                f"task={folder}/own.py:Mine"))  # fmt: skip
    assert not (folder / "run").exists()
    assert not (folder / "w").exists()


def test_a_warm_start_without_responses_is_refused(folder):
    config = load_config(
        None, given(folder, f"task={folder}/own.py:Mine", f"model.checkpoint={folder}/w")
    )
    with (
        closing(open_task(config)) as task,
        pytest.raises(ValueError, match="found no response to item 0"),
    ):
        make_checkpoint(config, task)
