"""What fails in a user's own task, wherever it is called: one line, and no step is lost."""

import sys
from contextlib import closing

import pytest

from tests.support.runs import SETTINGS, make_micro_policy, rows, saved_steps
from train.config_file import load_config
from train.loop import run
from train.tasks.base import checked_scores
from train.tasks.registry import open_task

MINE = """
from pathlib import Path
from train.tasks.base import Item, Score, Task

HERE = Path(__file__).parent

def fail(member):
    if (HERE / member).exists():
        raise {raised}

class Mine(Task):
    accuracy_part = "right"

    def __init__(self):
        fail("made")
        self.made = False

    @property
    def train_items(self):
        fail("items")
        return [Item(i, f"prompt {{i}}") for i in range(4)]

    @property
    def heldout(self):
        if self.made:
            fail("heldout_items")
        self.made = True
        return {{"others": [Item(i, f"other {{i}}") for i in (4, 5)]}}

    def prompt(self, item):
        fail("prompt")
        return item.payload

    def response(self, item):
        fail("response")
        return 3 if (HERE / "number").exists() else "SELECT"

    def score(self, items, texts):
        fail("heldout" if items[0].index > 3 else "train")
        return [Score(len(text) % 3, {{"right": len(text) % 2}}) for text in texts]

    def close(self):
        fail("close")
"""
RAISED = 'KeyError("planted")'
LINE = 1 + MINE.splitlines().index("        raise {raised}")
WHERE = f"found KeyError: 'planted' (mine.py, line {LINE}), allowed: "


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(MINE.format(raised=RAISED))
    return tmp_path


def use(task):
    """All that the commands ask of a task."""
    item = task.train_items[0]
    assert (task.prompt(item), task.response(item)) == ("prompt 0", "SELECT")
    for items in (task.train_items, *task.heldout.values()):
        checked_scores(task, items, [""] * len(items))


@pytest.mark.parametrize(
    ("member", "words"),
    [
        ("made", f": {WHERE}a task that can be made"),
        ("items", f"'s members: {WHERE}those that"),
        ("heldout_items", f"'s items: {WHERE}lists of Item"),
        ("prompt", f".prompt, item 0: {WHERE}a text"),
        ("response", f".response, item 0: {WHERE}a text, or None"),
        ("number", ".response, item 0: found 3, allowed: a text, or None"),
        ("train", f".score: {WHERE}one Score for each text"),
        ("heldout", f".score: {WHERE}one Score for each text"),
        ("close", f".close: {WHERE}no error"),
    ],
)
def test_whatever_raises_in_a_task_is_told_on_one_line(folder, member, words):
    config = load_config(None, [f"task={folder}/mine.py:Mine"])
    with closing(open_task(config)) as task:
        use(task)
    (folder / member).touch()
    with (
        pytest.raises(ValueError, match=r"^[^\n]+$") as caught,
        closing(open_task(config)) as task,
    ):
        use(task)
    assert f"{folder}/mine.py:Mine{words}" in str(caught.value)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ('ValueError("two\\nlines")', "ValueError: two lines"),
        ('OSError(2, "no such thing")', "FileNotFoundError: [Errno 2] no such thing"),
        ("SystemExit(0)", "SystemExit: 0"),
        ("RecursionError", "RecursionError: "),
    ],
)
def test_no_kind_of_exception_gets_through(folder, raised, words):
    """Errors that would end the command with another status, or look like its own, too."""
    (folder / "mine.py").write_text(MINE.format(raised=raised))
    (folder / "train").touch()
    with (
        closing(open_task(load_config(None, [f"task={folder}/mine.py:Mine"]))) as task,
        pytest.raises(ValueError, match=r"^[^\n]+$") as caught,
    ):
        use(task)
    assert f"found {words} (mine.py, line {LINE}), allowed" in str(caught.value)


def test_a_signal_is_no_mistake_of_the_task(folder):
    (folder / "mine.py").write_text(MINE.format(raised="KeyboardInterrupt"))
    (folder / "train").touch()
    with (
        closing(open_task(load_config(None, [f"task={folder}/mine.py:Mine"]))) as task,
        pytest.raises(KeyboardInterrupt),
    ):
        use(task)


def test_a_reward_file_that_breaks_during_the_run_is_named(tmp_path, monkeypatch):
    """A worker that is replaced loads the file anew."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text("def reward(record, response):\n    return 1.0\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    config = load_config(
        None, [f"task={tmp_path}/mine.py:reward", f"data.path={tmp_path}/prompts.jsonl"]
    )
    with closing(open_task(config)) as task:
        (tmp_path / "mine.py").write_text("def reward(record, response)\n    return 1.0\n")
        with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
            task.score(task.train_items, ["x"])
    assert "cannot be loaded: SyntaxError: expected ':'" in str(caught.value)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return make_micro_policy(tmp_path_factory.mktemp("micro") / "policy")


@pytest.mark.slow
@pytest.mark.parametrize("member", ["train", "response", "heldout"])
def test_a_task_that_fails_costs_no_step(folder, policy, member, monkeypatch):
    """In the third step's rewards, or after the fourth and last step; mended, the run goes on."""
    steps, done = 4, 2 if member == "train" else 4
    changes = [f"task={folder}/mine.py:Mine", f"out={folder}/run", f"train.steps={steps}"]
    changes += ["train.checkpoint_every=100"]
    config = load_config(
        None,
        [*SETTINGS, *changes, f"model.checkpoint={policy}"],
    )
    trainer = sys.modules["train.loop"].Trainer
    plain = trainer.sample

    def sample(self, step):
        if step == done - (member != "train"):
            (folder / member).touch()
        return plain(self, step)

    monkeypatch.setattr(trainer, "sample", sample)
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        run(config, quiet=True)
    word = f"everything is saved; the same command goes on at step {done} of {steps}"
    assert WHERE in str(caught.value)
    assert str(caught.value).endswith(word)
    assert saved_steps(folder / "run") == [done]
    assert len(rows(folder / "run")) == done

    monkeypatch.setattr(trainer, "sample", plain)
    (folder / member).unlink()
    summary = run(config, quiet=True)
    assert summary["steps"] == steps
    assert set(summary["heldout"]) == {"others"}
