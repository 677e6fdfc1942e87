"""Every test that tests/README.md names exists, and every known fault has its row."""

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
ROW = re.compile(r"^\| (B\d+) \| (yes|no) \| (`[^`]+`|–) \| ([^|]+) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def page():
    return (FOLDER / "README.md").read_text(encoding="utf-8")


def names_in(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_row_names_a_test_that_exists(page):
    rows = ROW.findall(page)
    assert len(rows) == len(re.findall(r"^\| B\d", page, re.MULTILINE))  # none has another form
    assert len({case for case, *_ in rows}) == len(rows)
    for case, possible, test, _ in rows:
        if test == "–":
            assert possible == "no", case
            continue
        file, name = test.strip("`").split("::")
        assert name.startswith("test_"), case
        assert name in names_in(FOLDER / file), case


def test_every_test_and_file_mentioned_in_passing_exists(page):
    names: dict[str, set[str]] = {}
    for path in FOLDER.rglob("*.py"):
        names.setdefault(path.name, set()).update(names_in(path))
    for file, test in re.findall(r"`(?:[\w/]+/)?(\w+\.py)(?:::(\w+))?`", page):
        assert file in names, file
        assert not test or test in names[file], test
    for test in re.findall(r"`(test_\w+)`", page):
        assert test in set().union(*names.values()), test


def test_every_known_fault_is_there(page, shared_data):
    known = (shared_data.parent / "CASES.md").read_text(encoding="utf-8")
    sections = re.split(r"^### \d+\. ", known, flags=re.MULTILINE)[1:]
    wanted = {
        case
        for section in sections
        if not section.startswith("Draft training")
        for case in re.findall(r"^- (B\d+)", section, re.MULTILINE)
    }
    assert len(wanted) > 50
    assert {case for case, *_ in ROW.findall(page)} == wanted
