"""A user's own task: a class, a factory, or prompts with a reward; and what their mistakes cost."""

import json
import math
import sys
from contextlib import closing

import numpy as np
import pytest

from train.config_file import load_config
from train.tasks import scored_prompts
from train.tasks.base import Item, Score, checked_scores
from train.tasks.registry import open_task

OWN = """
import os, sys, time
from dataclasses import dataclass
from train.tasks.base import Item, Score, Task
from neighbour import BONUS

@dataclass
class Payload:
    text: str

class Echo(Task):
    accuracy_part = "same"

    def __init__(self, data):
        self.data = data
        self.train_items = [Item(i, Payload(f"word {i}")) for i in range(3)]

    def prompt(self, item):
        return item.payload.text

    def score(self, items, texts):
        same = [float(item.payload.text == text) for item, text in zip(items, texts)]
        return [Score(one, {"same": one}) for one in same]

class NoArgument(Echo):
    def __init__(self):
        super().__init__(None)

def factory():
    return NoArgument()

def factory_of_data(data, prefix="x"):
    return Echo(data)

def reward(record, response):
    with open(record.get("log", os.devnull), "a") as file:
        file.write(response + "\\n")
    match response:
        case "hang":
            time.sleep(60)
        case "die":
            os._exit(3)
        case "exit":
            sys.exit(0)
        case "raise":
            return record["absent"]
        case "memory":
            raise MemoryError
        case "nan":
            return float("nan")
        case "word":
            return "much"
        case "nothing":
            return None
    return len(response) / len(record["prompt"]) * BONUS

class Empty(Echo):
    def __init__(self):
        self.train_items = []

class Twice(Echo):
    def __init__(self):
        self.train_items = [Item(0, None)]
        self.heldout = {"more": [Item(0, None)]}

class Bare:
    def prompt(self, item):
        return ""

class Failing:
    def __init__(self, data):
        raise KeyError("planted")

def three(one, two, more):
    pass

NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder with a task file, its neighbour and a file of prompts."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour.py").write_text("BONUS = 1.0\n")
    (tmp_path / "mine.py").write_text(OWN)
    lines(tmp_path / "prompts.jsonl", [{"prompt": "abcd", "response": "ab"}, {"prompt": "efgh"}])
    return tmp_path


def lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def opened(folder, name, *more, path="prompts.jsonl"):
    overrides = [f"task={folder}/mine.py:{name}", f"data.path={folder / path}", *more]
    return closing(open_task(load_config(None, overrides)))


@pytest.mark.parametrize("name", ["Echo", "NoArgument", "factory", "factory_of_data"])
def test_a_class_or_a_factory_makes_the_task(folder, name):
    with opened(folder, name, "data.train_items=7") as task:
        assert [task.prompt(item) for item in task.train_items] == ["word 0", "word 1", "word 2"]
        assert task.response(task.train_items[0]) is None
        assert dict(task.heldout) == {}
        scores = task.score(task.train_items[:2], ["word 0", "other"])
        assert [score.reward for score in scores] == [1.0, 0.0]
        if name in ("Echo", "factory_of_data"):
            assert task.own.data.train_items == 7


def test_prompts_and_a_reward_make_a_task(folder):
    with opened(folder, "reward") as task:
        first, second = task.train_items
        assert (task.prompt(first), task.response(first)) == ("abcd", "ab")
        assert (task.prompt(second), task.response(second)) == ("efgh", None)
        scores = task.score([first, second, first], ["ab", "abcd", ""])
        assert [score.reward for score in scores] == [0.5, 1.0, 0.0]
        assert [score.parts[task.accuracy_part] for score in scores] == [0.0, 1.0, 0.0]
        task.close()  # twice is allowed


def test_a_folder_of_prompts_has_heldout_sets(folder):
    for name in ("train", "heldout_far", "test"):
        lines(folder / f"{name}.jsonl", [{"prompt": f"{name} {i}"} for i in range(4)])
    limits = ("data.train_items=3", "data.heldout_items=2")
    with (
        opened(folder, "reward", path="") as whole,
        opened(folder, "reward", *limits, path="") as t,
    ):
        assert set(whole.heldout) == {"far", "test"}
        everything = [*whole.train_items, *whole.heldout["far"], *whole.heldout["test"]]
        assert [item.index for item in everything] == list(range(12))
        assert len(t.train_items) == 3
        assert {item.index for item in t.heldout["far"]} < {4, 5, 6, 7}


def test_a_call_without_time_or_memory_scores_zero_and_is_counted(folder):
    """Also one that takes its worker down, and nobody else's score suffers."""
    with opened(folder, "reward", "data.reward_seconds=2") as task:
        item = task.train_items[0]
        texts = ["ab", "hang", "memory", "die", "exit", "abcd"]
        scores = task.score([item] * 6, texts)
        assert [score.reward for score in scores] == [0.5, 0.0, 0.0, 0.0, 0.0, 1.0]
        assert [score.faults["killed"] for score in scores] == [0, 1, 1, 1, 1, 0]


def test_equal_responses_to_an_item_are_scored_once(folder):
    lines(folder / "prompts.jsonl", [{"prompt": "a", "log": str(folder / "calls")}] * 2)
    with opened(folder, "reward") as task:
        one, two = task.train_items
        task.score([one, one, two, one], ["x", "x", "x", "y"])
    assert sorted((folder / "calls").read_text().split()) == ["x", "x", "y"]


def test_a_reward_that_is_not_finite_is_passed_on_to_be_refused(folder):
    with opened(folder, "reward") as task:
        (score,) = task.score(task.train_items[:1], ["nan"])
        assert math.isnan(score.reward)
        assert score.parts["right"] == 0.0


LINE = 1 + OWN.splitlines().index('            return record["absent"]')


@pytest.mark.parametrize(
    ("response", "found"),
    [
        ("word", "'much'"),
        ("nothing", "None"),
        ("raise", f"KeyError: 'absent' (mine.py, line {LINE})"),
    ],
)
def test_a_reward_that_raises_or_is_no_number_is_named_whatever_worked_before(
    folder, response, found
):
    with opened(folder, "reward") as task, pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        task.score(task.train_items, ["ab", response])
    where = f"{folder}/prompts.jsonl, line 2 and the response {response!r}"
    assert f"mine.py:reward: found {found} for {where}, allowed: a number" in str(caught.value)


def test_a_reward_that_is_always_lost_is_broken_but_a_single_loss_is_not(folder, monkeypatch):
    monkeypatch.setattr(scored_prompts, "LOSSES_OF_A_BROKEN_REWARD", 3)
    with opened(folder, "reward") as task:
        item = task.train_items[0]
        task.score([item] * 2, ["memory", "die"])
        with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
            task.score([item], ["memory"])
        assert "mine.py:reward: found each of the first 3 calls past" in str(caught.value)
    with opened(folder, "reward") as task:
        task.score([item], ["ab"])
        for _ in range(4):
            task.score([item], ["memory"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Nme", "found no 'Nme' in"),
        ("Empty", "no training items"),
        ("Twice", "2 items of index 0"),
        ("Bare", "no accuracy_part, train_items, heldout, response, score, close"),
        ("Failing", "KeyError: 'planted' (mine.py, line"),
        ("three", "to need 3 arguments"),
        ("NUMBER", "to be of type int"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(folder, name, words):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught, opened(folder, name):
        pass
    assert words in str(caught.value)
    assert str(folder / "mine.py") in str(caught.value)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("text2sqll", "found text2sqll, allowed: text2sql, mathematics, function_calling, path"),
        ("/nowhere.py:Mine", "no file /nowhere.py"),
        ("{folder}:Mine", "allowed: text2sql, mathematics, function_calling, path"),
    ],
)
def test_a_task_that_is_not_there_is_one_line(folder, task, words):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        open_task(load_config(None, [f"task={task.format(folder=folder)}"]))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = ", "SyntaxError: invalid syntax"),
        ("import absent_module", "No module named 'absent_module' (bad.py, line 1)"),
        ("\n1 / 0", "ZeroDivisionError: division by zero (bad.py, line 2)"),
        ("import sys\nsys.exit(0)", "SystemExit: 0 (bad.py, line 2)"),
    ],
)
def test_a_file_that_does_not_load_says_where(folder, source, words):
    (folder / "bad.py").write_text(source)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        open_task(load_config(None, [f"task={folder}/bad.py:Mine"]))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "found no items"),
        ('{"prompt": "a"}\n{"text": "b"}', "line 2: found no prompt"),
        ('{"prompt": ""}', "line 1: found prompt = ''"),
        ('{"prompt": 3}', "line 1: found prompt = 3"),
        ('{"prompt": "a", "response": 1}', "line 1: found response = 1"),
        ("[1]", "line 1: found a JSON list"),
        ('{"prompt": "a"', "line 1: found Expecting"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(folder, text, words):
    (folder / "prompts.jsonl").write_text(text)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught, opened(folder, "reward"):
        pass
    assert words in str(caught.value)
    assert str(folder / "prompts.jsonl") in str(caught.value)


@pytest.mark.parametrize("path", ["absent.jsonl", "empty"])
def test_prompts_that_are_not_there_are_named(folder, path):
    (folder / "empty").mkdir()
    with (
        pytest.raises(ValueError, match=r"^[^\n]+$") as caught,
        opened(folder, "reward", path=path),
    ):
        pass
    assert str(folder / path) in str(caught.value)


class Answer:
    """A task that answers what it is told to."""

    accuracy_part = "right"

    def __init__(self, scores):
        self._scores = scores

    def score(self, items, texts):
        return self._scores


GOOD = Score(1.0, {"right": 1.0})


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([GOOD], "found 1 for 2 texts"),
        ([GOOD, 1.0], "found 1.0 among them"),
        (None, "found None, allowed: a list"),
        ([GOOD, Score("much", {"right": 1.0})], "found Score(reward='much'"),
        ([GOOD, Score(1.0, {"right": None})], "among them, allowed: one Score of numbers"),
        ([GOOD, Score(1.0, [1.0])], "among them, allowed: one Score of numbers"),
        ([GOOD, Score(np.ones(2), {"right": 1.0})], "among them, allowed: one Score of numbers"),
        ([GOOD, Score(1.0)], "found none, allowed: right too"),
        ([GOOD, Score(1.0, {"right": 1.0, "more": 1.0})], "the same"),
    ],
)
def test_scores_of_another_form_are_named(scores, words):
    items = [Item(0, None), Item(1, None)]
    assert checked_scores(Answer([GOOD, GOOD]), items, ["", ""]) == [GOOD, GOOD]
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        checked_scores(Answer(scores), items, ["", ""])
    assert words in str(caught.value)


def test_the_working_folder_is_where_paths_start(folder, monkeypatch):
    monkeypatch.chdir(folder)
    config = load_config(None, ["task=mine.py:reward", "data.path=prompts.jsonl"])
    with closing(open_task(config)) as task:
        (score,) = task.score(task.train_items[:1], ["ab"])
        assert score.reward == 0.5
