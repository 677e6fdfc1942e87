"""The task over small files of our own in BFCL's format, and over BFCL itself where it lies."""

import json
import re
import shutil
import zipfile

import pytest

from train.config_file import load_config
from train.tasks.base import checked_scores
from train.tasks.function_calling import FunctionCalling, is_held_out
from train.tasks.registry import open_task


@pytest.fixture
def folder(repository):
    return repository / "tests" / "data" / "bfcl"


@pytest.fixture
def task(folder):
    return FunctionCalling(folder)


def _all_items(task):
    items = [*task.train_items, *task.warm_start_items, *task.heldout["test"]]
    return sorted(items, key=lambda item: item.index)


def _by_id(task, example_id):
    return next(item for item in _all_items(task) if item.payload.id == example_id)


def test_prompt_and_response(task):
    item = _by_id(task, "simple_python_1")
    assert task.prompt(item) == (
        "Functions:\n"
        "find_route(stops: list[str], mode?: 'bike'|'train')\n"
        "Question: Plan a trip from Oslo by way of Bergen to Voss, by train.\n"
        "Calls:\n"
    )
    assert task.response(item) == "[find_route(stops=['Oslo', 'Bergen', 'Voss'], mode='train')]"
    item = _by_id(task, "parallel_0")
    assert task.response(item) == "[roll_dice(count=2), roll_dice(count=5, sides=10)]"
    item = _by_id(task, "simple_python_3")
    assert task.response(item) == (
        "[shop.order(goods=[{'name': 'pear', 'count': 2}, {'name': 'melon', 'count': 1}], "
        "address={'street': '5 Elm Road', 'town': 'Ulm'})]"
    )


def test_rewards(task):
    item = _by_id(task, "multiple_1")
    right, wrong = "[brew_tea(kind='green', minutes=4)]", "brew_tea(kind='green', minutes=5)"
    texts = [right, wrong, "[roll_dice(count=4)]", "green tea"]
    scores = checked_scores(task, [item] * 4, texts)
    assert [score.reward for score in scores] == [1.0, 0.1, 0.0, 0.0]
    assert [list(score.parts.values()) for score in scores] == [
        [1.0, 1.0, 1.0],
        [0.0, 1.0, 1.0],
        [0.0, 0.0, 1.0],
        [0.0, 0.0, 0.0],
    ]
    assert list(scores[0].parts) == ["match", "names", "parses"]


def _check_gold(task):
    items = _all_items(task)
    gold = [task.response(item) for item in items]
    assert all(score.reward == 1 for score in task.score(items, gold))
    cut = [text.removesuffix(")]") for text in gold]
    assert all(score.reward == 0 for score in task.score(items, cut))
    twice = [f"{text[:-1]}, {text[1:]}" for text in gold]
    assert all(score.reward == 0 for score in task.score(items, twice))
    foreign = task.score(items, [*gold[1:], gold[0]])
    assert sum(score.parts["match"] for score in foreign) <= 0.01 * len(items)


def test_gold_responses_are_right_and_their_neighbours_are_not(task):
    _check_gold(task)


def test_gold_responses_of_bfcl(shared_data):
    task = FunctionCalling(shared_data / "bfcl")
    _check_gold(task)
    assert (len(task.train_items), len(task.heldout["test"])) == (416, 384)


def test_halves_and_indices_do_not_depend_on_limits(folder, task):
    whole = {item.payload.id: item.index for item in _all_items(task)}
    assert sorted(whole.values()) == list(range(12))
    assert 0 < len(task.train_items) < 12
    for limit in (1, 2, 3):
        part = FunctionCalling(folder, train_limit=limit, heldout_limit=limit)
        assert (len(part.train_items), len(part.heldout["test"])) == (limit, limit)
        taught = [*part.train_items, *part.warm_start_items]
        assert sorted(item.index for item in taught) == [item.index for item in task.train_items]
        assert not any(is_held_out(item.payload.id) for item in taught)
        assert all(is_held_out(item.payload.id) for item in part.heldout["test"])
        assert all(whole[item.payload.id] == item.index for item in _all_items(part))


def test_wheel_reads_as_the_folder_does(folder, task, tmp_path):
    wheel = tmp_path / "bfcl_eval-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in folder.rglob("*.json"):
            archive.write(file, f"bfcl_eval/data/{file.relative_to(folder)}")
    assert _all_items(FunctionCalling(wheel)) == _all_items(task)


def test_registry_opens_it(folder):
    overrides = ["task=function_calling", f"data.path={folder}", "data.run_credit=0.25"]
    task = open_task(load_config(None, [*overrides, "data.train_items=2"]))
    assert len(task.train_items) == 2
    item = task.train_items[0]
    name = item.payload.expected[0].function.name
    calls = ", ".join(f"{name}()" for _ in item.payload.expected)
    assert task.score([item], [calls])[0].reward == 0.25


def _question(**changes):
    function = {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}
    question = [[{"role": "user", "content": "What?"}]]
    return {"id": "simple_python_0", "question": question, "function": [function]} | changes


@pytest.mark.parametrize(
    ("question", "answer", "told"),
    [
        ({"question": "What?"}, {}, "line 1: found another record, allowed: a question of one"),
        ({"id": "other"}, {}, "line 1: found another record"),
        ({}, {"ground_truth": []}, "line 1: found another record"),
        ({}, {"ground_truth": [{"g": {}}]}, "line 1: found answer {'g': {}}"),
        ({}, {"ground_truth": [{"f": {"a": 1}}]}, "line 1: found answer {'f': {'a': 1}}"),
        ({"function": [{"name": "f"}]}, {}, "line 1: found {'name': 'f'}"),
        (
            {"function": [{"name": "f", "parameters": {"properties": {"a": {"type": "set"}}}}]},
            {},
            "line 1: found f, a of type set, allowed: string, integer",
        ),
        (
            {"function": [{"name": "f", "parameters": {"properties": {"a": 1}}}]},
            {},
            "line 1: found f, a: 1, allowed: a type",
        ),
    ],
)
def test_broken_record_is_told_with_its_place(question, answer, told, folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    right = {"id": "simple_python_0", "ground_truth": [{"f": {"a": [1]}}]}
    name = "BFCL_v4_simple_python.json"
    (tmp_path / name).write_text(json.dumps(_question(**question)))
    (tmp_path / "possible_answer" / name).write_text(json.dumps(right | answer))
    with pytest.raises(ValueError, match=rf"{name}, {re.escape(told)}[^\n]*$"):
        FunctionCalling(tmp_path)


def test_missing_files_are_told(folder, tmp_path):
    with pytest.raises(ValueError, match="found no such folder"):
        FunctionCalling(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="allowed: a readable UTF-8 file"):
        FunctionCalling(tmp_path)
    with pytest.raises(ValueError, match="allowed: the bfcl-eval wheel"):
        FunctionCalling(tmp_path / "none.whl")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/data.json", "")
    with pytest.raises(ValueError, match=r"BFCL_v4_simple_python.json: found .*, allowed: "):
        FunctionCalling(tmp_path / "other.whl")
    shutil.copytree(folder, tmp_path / "short")
    (tmp_path / "short" / "BFCL_v4_multiple.json").write_text("")
    with pytest.raises(ValueError, match="found 0 questions and 4 answers"):
        FunctionCalling(tmp_path / "short")


@pytest.mark.parametrize("wrong", [{"train_limit": -1}, {"heldout_limit": -1}, {"name_credit": 1}])
def test_refused_numbers(wrong, folder):
    with pytest.raises(ValueError, match="allowed: 0"):
        FunctionCalling(folder, **wrong)
