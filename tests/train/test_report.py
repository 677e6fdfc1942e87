"""The report stands alone, escapes what users and models wrote, and survives missing parts."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from train.metrics import summarise, to_json
from train.report import write_report

HOSTILE = "<script>alert('x')</script> $x_1$ & \"</title>\" http://evil.example {{ 7*7 }} 漢字 😀"
ENVIRONMENT = {
    "device": "1 × cpu, 2 CPU cores",
    "versions": {"python": "3.11.9", "jax": "0.10.2", "flax": "0.12.8", "ngramrl_jax": "0.1.0"},
    "seed": 7,
    "git_commit": "0" * 40,
}


def synthetic_rows(steps=36, steps_per_epoch=6, coverage=False):
    """Rows like those of a small text-to-SQL run: no history in epoch 0, slow first step."""
    random = np.random.default_rng(0)
    rows = []
    for step in range(steps):
        epoch = step // steps_per_epoch
        skill = 1 - np.exp(-step / 15)
        match = np.clip(0.42 + 0.22 * skill + random.normal(0, 0.03), 0, 1)
        keep = 0.35 if epoch == 0 else 0.62 + 0.2 * skill
        row_rounds = int(random.integers(900, 1100))
        drafted = int(row_rounds * (2 if epoch == 0 else 9))
        accepted = int(drafted * keep * 0.5)
        committed = row_rounds + accepted
        rollout = 0.9 + 6e-4 * row_rounds + (9.0 if step == 0 else 0)
        rows.append(
            {
                "step": step,
                "epoch": epoch,
                "policy_version": step,
                "reward_mean": float(0.9 * match + 0.08),
                "reward_execution_match_mean": float(match),
                "reward_runs_mean": float(0.8 + 0.15 * skill),
                "tokens_per_forward": committed / row_rounds,
                "committed_tokens": committed,
                "row_rounds": row_rounds,
                "drafted_tokens": drafted,
                "accepted_tokens": accepted,
                "accepted_per_round": accepted / row_rounds,
                "drafted_per_round": drafted / row_rounds,
                "acceptance_rate": accepted / drafted,
                "acceptance_by_position": [float(keep ** (1 + i / 6)) for i in range(15)] + [None],
                "rollout_tokens_per_s": committed / rollout,
                "time_data_s": 0.01,
                "time_rollout_s": rollout,
                "time_reward_s": 0.35,
                "time_logprob_s": 0.0,
                "time_train_s": 4.2 + random.normal(0, 0.2) + (22.0 if step == 0 else 0),
                "loss": float(random.normal(0, 0.01)),
                "kl": None,
                "entropy": float(0.6 - 0.2 * skill),
            }
        )
        if coverage:
            rows[-1] |= {"coverage": 0.6 + 0.2 * skill, "oracle_coverage": 0.9}
            rows[-1] |= {"coverage_by_position": [0.8, 0.5, 0.3]}
        if step % 12 == 11:
            rows[-1] |= {"heldout_paraphrases_accuracy": 0.5 + 0.1 * skill}
    return rows


def synthetic_evaluations():
    random = np.random.default_rng(1)
    start = (random.random(240) < 0.5).astype(int)
    flips = random.random(240)
    return {
        "unseen_paraphrases": {"start": start, "end": np.where(flips < 0.2, 1, start)},
        "unseen_questions": {"start": start, "end": np.where(flips < 0.1, 1 - start, start)},
        "unseen_database": {"start": start, "end": np.where(flips < 0.2, 0, start)},
    }


def synthetic_samples(count):
    schema = (
        "singer(singer_id,name,country,age) concert(concert_id,title,singer_id>singer.singer_id)"
    )
    words = [
        "SELECT",
        " name",
        ",",
        " age",
        " FROM",
        " singer",
        " WHERE",
        " age",
        " >",
        " 30",
        "<|end|>",
    ]
    sample = {
        "prompt": f"<|schema|>{schema}<|question|>Which singers are older than 30?<|sql|>",
        "gold": "SELECT name, age FROM singer WHERE age > 30",
        "tokens": [{"text": w, "drafted": i % 4 != 0} for i, w in enumerate(words)],
    }
    return [sample | {"step": i, "reward": i % 2} for i in range(count)]


def make_run(
    folder, rows, evaluations=None, samples=None, config="model:\n  preset: tiny\nseed: 7\n"
):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(to_json(row) + "\n" for row in rows))
    summary = summarise(rows, evaluations or {}, ENVIRONMENT)
    (folder / "summary.json").write_text(to_json(summary))
    if samples is not None:
        (folder / "samples.json").write_text(json.dumps(samples))
    (folder / "config.yaml").write_text(config)
    return folder


class Page(HTMLParser):
    """What a browser would find: tags, attributes that could load something, and the text."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.attributes, self.words, self.open = [], [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A run that measured everything there is."""
    folder = tmp_path_factory.mktemp("runs") / "quickstart"
    rows = synthetic_rows(coverage=True)
    make_run(folder, rows, synthetic_evaluations(), synthetic_samples(5))
    return write_report(folder)


def test_page_is_whole_and_loads_nothing(full):
    page = Page(full)
    assert page.open == []
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert all(value.startswith("#") for name, value in page.attributes if name in ("href", "src"))
    source = full.read_text(encoding="utf-8")
    assert not re.search(r"https?:|url\((?!#)|@import", source)
    assert [path.name for path in full.parent.glob("*.tmp")] == []


def test_every_plot_is_there_titled_and_themed(full):
    source = full.read_text(encoding="utf-8")
    titles = re.findall(r'<svg viewBox="[^"]*" role="img"><title>([^<]+)</title>', source)
    assert len(set(titles)) == len(titles) == 9
    assert "Not measured" not in source
    assert not re.search(r"#0101[01]\d", source), "a stand-in colour was left"
    assert not re.search(r"(?:fill|stroke): ?#", source), "a colour that a dark page cannot change"


def test_headlines_state_the_summary(full):
    summary = json.loads((full.parent / "summary.json").read_text())
    text = re.sub(r"\s+", " ", Page(full).text)
    assert f"{summary['warm']['tokens_per_forward']:.2f}× tokens per forward once warm" in text
    first, last = (summary["epochs"][i]["reward_execution_match_mean"] for i in (0, -1))
    assert f"rose: {first:.2f} in the first epoch, {last:.2f} in the last" in text
    assert "1 of 3 held-out sets are better at the end" in text
    assert "1 is significantly worse" in text
    assert "the update takes longest (70%)" in text


def test_a_fall_is_called_a_fall(tmp_path):
    rows = synthetic_rows(12)
    for row in rows:
        row["reward_execution_match_mean"] = 0.5 - 0.1 * row["epoch"]
    text = Page(write_report(make_run(tmp_path, rows))).text
    assert "fell: 0.50 in the first epoch, 0.40 in the last" in text


def test_drafted_and_emitted_tokens_differ_beyond_colour(full):
    source = full.read_text(encoding="utf-8")
    assert source.count('<span class="drafted"> singer</span>') == 5
    assert source.count('<span class="emitted">SELECT</span>') == 5
    assert re.search(r"\.drafted \{[^}]*underline", source)
    assert "8 of 11 tokens drafted" in source


def test_hostile_text_arrives_as_text(tmp_path):
    folder = tmp_path / "run & <b>"
    samples = [
        {
            "prompt": HOSTILE,
            "gold": HOSTILE,
            "step": 0,
            "reward": None,
            "tokens": [{"text": HOSTILE, "drafted": True}],
        }
    ]
    evaluations = {HOSTILE: {"start": [0, 1, 1], "end": [1, 1, 0]}}
    rows = [row | {f"heldout_{HOSTILE}_accuracy": 0.5} for row in synthetic_rows(3)]
    make_run(folder, rows, evaluations, samples, config=HOSTILE)
    page = Page(write_report(folder))
    assert page.open == []
    assert not {"script", "b"} & set(page.tags)
    # Prompt, gold, token and configuration; the tables and plots write the set's name as a label.
    assert page.text.count(HOSTILE) >= 4


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_short_runs_are_reported(tmp_path, steps):
    page = Page(write_report(make_run(tmp_path, synthetic_rows(steps))))
    assert page.open == []
    assert ("No step has been recorded yet" in page.text) == (steps == 0)
    assert ("in the only epoch: nothing to compare yet" in page.text) == (steps > 0)


def test_missing_metrics_and_files_are_left_out_with_a_word(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "loss": 0.5}\n{"step": 1, "lo')
    text = Page(write_report(tmp_path)).text
    assert text.count("Not measured in this run.") == 6
    assert "No rollouts were kept" in text
    assert "The configuration was not saved" in text
    assert "1 step" in text


def test_many_samples_are_thinned_from_first_to_last(tmp_path):
    make_run(tmp_path, synthetic_rows(1), samples=synthetic_samples(50))
    steps = [int(step) for step in re.findall(r"step (\d+) ·", Page(write_report(tmp_path)).text)]
    assert len(steps) == 12
    assert steps[0] == 0
    assert steps[-1] == 49


def test_same_run_gives_the_same_report(full):
    before = full.read_bytes()
    assert write_report(full.parent).read_bytes() == before


def test_corrupt_summary_is_named(tmp_path):
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json: found no JSON"):
        write_report(tmp_path)
