"""The mathematics task over its two kinds of source."""

import json
import re
import sys
from contextlib import closing

import pytest

from train.config_file import load_config
from train.tasks import math_problems
from train.tasks.mathematics import Mathematics
from train.tasks.registry import open_task

GENERATORS = ["reasoning-gym:gsm_symbolic", "reasoning-gym:chain_sum"]
TRAIN = [
    ("Tom has 2 apples and buys 3. How many?", "He has 2+3=<<2+3=5>>5 apples.\n#### 5"),
    ("Half of 3,000?", "3000/2 = $<<3000/2=1500>>1,500\n#### 1,500"),
    ("Four minus six?", "4-6 = <<4-6=-2>>-2\n#### -2"),
    ("A held-out one?", "1\n#### 1"),
]
TEST = [("A held-out one?", "1\n#### 1"), ("Another?", "2\n#### 2")]


def _lines(path, problems):
    records = [{"question": question, "answer": answer} for question, answer in problems]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def folder(tmp_path):
    _lines(tmp_path / "train.jsonl", TRAIN)
    _lines(tmp_path / "test.jsonl", TEST)
    return tmp_path


def _all_items(task):
    return [*task.train_items, *task.warm_start_items, *task.heldout["test"]]


def test_reads_a_folder_in_the_format_of_gsm8k(folder):
    with closing(Mathematics(str(folder))) as task:
        apples, half, minus = task.train_items
        assert task.prompt(apples) == f"Question: {TRAIN[0][0]}\nAnswer:\n"
        assert task.response(apples) == "He has 2+3=5 apples.\n#### 5"
        assert (half.payload.gold, minus.payload.gold) == (1500, -2)
        assert [item.index for item in _all_items(task)] == [0, 1, 2, 4, 5]
        scores = task.score([apples, half, half, minus], ["#### 5", "#### 1500", "5", "so, -2."])
        assert [score.reward for score in scores] == [1.0, 1.0, 0.0, 1.0]
        assert task.accuracy_part in scores[0].parts


@pytest.mark.parametrize("source", GENERATORS)
def test_generators_give_disjoint_halves_with_right_solutions(source):
    with closing(Mathematics(source)) as task:
        items = _all_items(task)
        assert len({item.index for item in items}) == len(items)
        trained = {task.prompt(item) for item in task.train_items}
        assert trained.isdisjoint(task.prompt(item) for item in task.heldout["test"])
        assert len(trained) == len(task.train_items) > 1400
        assert len(task.heldout["test"]) > 240
        scores = task.score(items, [task.response(item) for item in items])
        assert {score.reward for score in scores} == {1.0}


def test_without_the_check_the_halves_would_meet(monkeypatch):
    """Planted fault: on one stretch of seeds both halves ask the same."""
    monkeypatch.setattr(math_problems, "HELDOUT_SEED", math_problems.TRAIN_SEED)
    train, heldout = math_problems.read_problems(GENERATORS[1])
    assert len(train) < 1400
    asked = {problem.question for problem in heldout.values()}
    assert asked.isdisjoint(problem.question for problem in train.values())


def test_partial_sums_lead_to_the_answer():
    with closing(Mathematics(GENERATORS[1])) as task:
        for item in task.train_items[:200]:
            *steps, last = task.response(item).split("\n")
            total = None
            for step in steps:
                left, sign, right, value = re.fullmatch(
                    r"(-?\d+) ([+-]) (\d+) = (-?\d+)", step
                ).groups()
                assert total in (None, int(left))
                total = int(left) + int(right) * (1 if sign == "+" else -1)
                assert total == int(value)
            assert last == f"#### {total}"


def test_limits_leave_the_rest_to_the_warm_start_and_the_indices_as_they_are():
    whole = Mathematics(train_limit=0)
    part = Mathematics(train_limit=20, heldout_limit=5)
    other = Mathematics(train_limit=20, seed=1)
    assert len(part.train_items) == 20
    assert len(part.heldout["test"]) == 5
    assert set(part.heldout["test"]) < set(whole.heldout["test"])
    assert not whole.warm_start_items
    assert {*part.train_items, *part.warm_start_items} == set(whole.train_items)
    assert set(part.train_items) != set(other.train_items)
    assert part.train_items == Mathematics(train_limit=20).train_items


def test_the_configuration_opens_it(repository):
    config = load_config(repository / "configs" / "gsm_tiny.yaml")
    with closing(open_task(config)) as task:
        assert isinstance(task, Mathematics)
        assert len(task.train_items) == config.data.train_items


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 6: found .* allowed: JSON"),
        ("[1]", "line 6: found another record, allowed"),
        ('{"question": "?"}', "line 6: found another record, allowed"),
        ('{"question": " ", "answer": "#### 1"}', "line 6: found another record, allowed"),
        ('{"question": "?", "answer": "#### many"}', "line 6: found the answer 'many', allowed"),
        ('{"question": "?", "answer": "#### "}', "line 6: found the answer '', allowed"),
    ],
)
def test_bad_lines_are_named(line, message, folder):
    with (folder / "train.jsonl").open("a") as file:
        file.write("\n" + line + "\n")
    with pytest.raises(ValueError, match=message) as caught:
        Mathematics(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/nowhere", "found /nowhere, allowed: a folder with train.jsonl"),
        ("reasoning-gym:", "found no such generator, allowed"),
        ("reasoning-gym:gsm", "gsm: found no such generator, allowed"),
        ("reasoning-gym:propositional_logic", "found the answer .*, allowed: a number"),
    ],
)
def test_bad_sources_are_named(source, message):
    with pytest.raises(ValueError, match=message):
        Mathematics(source)


def test_a_folder_without_its_parts_is_named(folder):
    (folder / "train.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="found no training problems, allowed: one or more"):
        Mathematics(str(folder))
    (folder / "test.jsonl").unlink()
    with pytest.raises(ValueError, match=r"test.jsonl.* allowed: a readable UTF-8 file"):
        Mathematics(str(folder))


def test_a_missing_generator_library_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match=r"reasoning-gym: found it missing, allowed: installed"):
        Mathematics()


def test_every_gold_answer_of_gsm8k_scores_itself(shared_data):
    with closing(Mathematics(str(shared_data / "gsm8k"))) as task:
        assert (len(task.train_items), len(task.heldout["test"])) == (7473, 1319)
        items = _all_items(task)
        scores = task.score(items, [task.response(item) for item in items])
        assert {score.reward for score in scores} == {1.0}
        assert not any("<<" in task.response(item) for item in items)
