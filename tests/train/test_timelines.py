"""A few rounds of a run are kept and drawn: what the engine saw, no more than is wanted."""

import json
import re
from collections import deque

import pytest

from ngramrl_jax.rollout.timeline import RoundTimes
from train.config import RunConfig
from train.report import plots
from train.run_folder import RunFolder
from train.timelines import FILE, KEPT, keep_timeline


def rounds(count: int) -> deque[RoundTimes]:
    """Rounds of 10 ms, the first without drafts."""
    told = deque()
    for n in range(count):
        at = 1000.0 + 0.01 * n
        drafting = (at - 0.008, at - 0.004) if n else (0.0, 0.0)
        told.append(RoundTimes(at - 0.003, at - 0.002, at + 0.01, at + 0.0102, *drafting))
    return told


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    made = RunFolder(RunConfig(out=str(tmp_path / "run")))
    made.create()
    return made


@pytest.mark.parametrize("count", [2, KEPT + 5])
def test_the_last_rounds_are_kept_in_milliseconds_from_the_first(folder, count):
    keep_timeline(folder, 7, "device", rounds(count))
    kept = json.loads((folder.path / FILE).read_text())
    assert (kept["step"], kept["prefetch"]) == (7, "device")
    assert len(kept["rounds"]) == min(count, KEPT)
    first, last = kept["rounds"][0], kept["rounds"][-1]
    assert min(time for time in first.values() if time is not None) == 0.0
    assert last["done"] - last["dispatched"] == pytest.approx(12.0)
    assert (first["drafting"] is None) == (count <= KEPT)


def test_a_step_without_rounds_leaves_what_is_there(folder):
    keep_timeline(folder, 1, "off", rounds(3))
    keep_timeline(folder, 2, "off", deque())
    assert json.loads((folder.path / FILE).read_text())["step"] == 1


@pytest.mark.parametrize("count", [2, KEPT])
def test_the_picture_has_a_lane_each_for_device_drafter_and_copies(folder, count):
    keep_timeline(folder, 3, "device", rounds(count))
    drawn = plots.draw([], {}, folder.read_json(FILE))["timeline"]
    assert drawn is not None
    assert "in rounds of step 3" in drawn
    for words in ("device", "drafter", "copies", "milliseconds"):
        assert words in drawn
    assert not re.search(r"#0101[01]\d", drawn)
    colours = set(re.findall(r"var\(--series-(\d)\)", drawn))
    assert colours == set("12345")  # two of rounds, drafting, copies there and back


def test_no_picture_of_a_single_round(folder):
    assert plots.draw([], {}, None)["timeline"] is None
    keep_timeline(folder, 3, "off", rounds(1))
    assert plots.draw([], {}, folder.read_json(FILE))["timeline"] is None
