"""`docs/configuration.md` is what `make docs` writes, says something of every key, and is right."""

import dataclasses
import re

from omegaconf import OmegaConf

from docs.make_configuration import PAGE, meanings, page
from train.config import RunConfig
from train.config_file import flatten
from train.objectives import OBJECTIVES


def test_the_page_is_what_the_script_writes():
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run `make docs`"


def test_every_key_has_one_row_with_a_meaning():
    rows = re.findall(r"^\| `([\w.]+)` \| [^|]+ \| `[^|]*` \| (.{3,}) \|$", PAGE.read_text(), re.M)
    keys = [key for key, _ in rows]
    assert sorted(keys) == sorted(flatten(OmegaConf.structured(RunConfig)))
    assert all(meaning.strip() for _, meaning in rows)


def test_a_meaning_may_take_several_lines():
    @dataclasses.dataclass
    class Section:
        """A section.

        Attributes:
            one: First line,
                second line.
            two: Another: with a colon.
        """

    assert meanings(Section) == {"one": "First line, second line.", "two": "Another: with a colon."}


def test_keys_named_by_hand_exist():
    known = flatten(OmegaConf.structured(RunConfig))
    sections = {key.partition(".")[0] for key in known if "." in key}
    by_hand = PAGE.read_text(encoding="utf-8").partition("## The run")[0]
    cells = [row.split("|")[3] for row in re.findall(r"^\|.*\|$", by_hand, re.M)]
    named = re.findall(r"`(\w+\.\w+)", " ".join(cells))
    assert len(named) > 15
    assert {key for key in named if key.partition(".")[0] in sections} <= set(known)


def test_default_clips_are_those_of_the_objectives():
    rows = re.findall(r"^\| `(\w+)` \| .*\| ([\d.]+), ([\d.]+)[^|]* \|$", PAGE.read_text(), re.M)
    assert {name for name, *_ in rows} == OBJECTIVES.keys() - {"supervised"}
    for name, low, high in rows:
        objective = OBJECTIVES[name](**({"max_length": 1} if name == "dr_grpo" else {}))
        assert (objective.clip_low, objective.clip_high) == (float(low), float(high))
