"""Plain lines off a terminal, one live line on it, nothing when quiet; tables fit 100 columns."""

import io

import pytest

from train.metrics import summarise
from train.progress import TrainingProgress, clock, label, print_summary, status_line

ROW = {
    "step": 0,
    "epoch": 0,
    "reward_mean": 0.612,
    "reward_runs_mean": 0.9,
    "reward_execution_match_mean": 0.583,
    "tokens_per_forward": 3.417,
    "acceptance_rate": 0.4,
    "rollout_tokens_per_s": 1234.5,
    "time_rollout_s": 1.0,
    "time_train_s": 3.0,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(stream, quiet=False):
    with TrainingProgress(3, quiet=quiet, stream=stream) as progress:
        progress.note("warming up")
        for step in range(3):
            progress.update(ROW | {"step": step})
    return stream.getvalue()


def test_plain_output_is_one_line_a_step():
    lines = run(io.StringIO()).splitlines()
    assert lines[0] == "warming up"
    assert [line.split("  ")[0] for line in lines[1:]] == ["step 1/3", "step 2/3", "step 3/3"]
    assert lines[3].endswith("0:00 left")


def test_quiet_says_nothing_anywhere(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert run(io.StringIO(), quiet=True) == ""
    assert run(Terminal(), quiet=True) == ""


def test_terminal_gets_a_live_line_that_fits(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    shown = run(Terminal())
    assert "warming up" in shown
    assert "3/3" in shown
    assert "TPF 3.42" in shown


def test_time_left_follows_the_usual_step(monkeypatch):
    """A slow first step (compilation) does not spoil the estimate: the median counts."""
    times = iter([0.0, 60.0, 62.0, 64.0])
    monkeypatch.setattr("train.progress.time.monotonic", lambda: next(times))
    stream = io.StringIO()
    progress = TrainingProgress(33, stream=stream)
    for step in range(3):
        progress.update(ROW | {"step": step})
    assert stream.getvalue().splitlines()[-1].endswith("1:00 left")


def test_interrupt_passes_through():
    with pytest.raises(KeyboardInterrupt), TrainingProgress(3, stream=io.StringIO()):
        raise KeyboardInterrupt


def test_status_line_names_the_main_metrics():
    expected = "epoch 0  reward 0.61  execution match 0.58  TPF 3.42  1,234 rollout tokens/s"
    assert status_line(ROW) == expected
    assert status_line({"step": 3, "reward_mean": None}) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3723, "1:02:03")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_labels_are_words():
    assert label("reward_execution_match_mean") == "execution match"
    assert label("reward_mean") == "reward"
    assert label("unseen_paraphrases") == "unseen paraphrases"


def test_summary_tables_fit_and_hold_the_figures():
    rows = [ROW | {"step": step, "epoch": step // 2} for step in range(4)]
    rows[3]["tokens_per_forward"] = 5.0
    evaluations = {
        "an_unseen_database_of_a_long_name": {"start": [0] * 9 + [1], "end": [1] * 8 + [0, 1]},
        "[bold]markup": {"start": [1] * 8, "end": [0] * 8},
        "unfinished": {"start": [1, 0]},
    }
    stream = io.StringIO()
    print_summary(summarise(rows, evaluations, {}), stream)
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    words = [line.split() for line in text.splitlines()]
    assert ["tokens", "per", "forward", "3.42", "4.21", "4.21"] in words
    assert ["rollout", "4.0", "s", "25%", "1.00", "s", "25%"] in words
    assert "[bold]markup" in text
    assert "not measured" in text
    assert "better" in text
    assert "worse" in text


def test_summary_of_a_run_without_steps_prints_nothing_and_does_not_fail():
    stream = io.StringIO()
    print_summary(summarise([], {}, {}), stream)
    assert stream.getvalue() == ""
