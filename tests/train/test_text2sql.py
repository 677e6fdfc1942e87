"""The task over its three kinds of folder, and its reward against hostile responses."""

import hashlib
import json
import os
import sqlite3
import time
from contextlib import closing

import pytest

from benchmarks.rewards.hostile_queries import ENDLESS_CALL, HOSTILE
from benchmarks.rewards.hostile_sql import workers_cpu_seconds
from train.rewards.sql import SqlReward
from train.tasks.text2sql import TextToSql

QUERIES = [
    ("How many singers?", "SELECT COUNT(*) FROM singer"),
    ("Names by age?", "SELECT name FROM singer ORDER BY age"),
    ("Average age?", "SELECT AVG(age) FROM singer"),
    ("Who is from France?", "SELECT name FROM singer WHERE country = 'France'"),
]


def _write_database(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE singer (id INTEGER, name TEXT, country TEXT, age INTEGER)")
        rows = [(i, f"n{i}", "France" if i % 3 else "Chile", 20 + (i * 7) % 12) for i in range(12)]
        connection.executemany("INSERT INTO singer VALUES (?, ?, ?, ?)", rows)
        connection.commit()


def _lines(path, database, examples):
    records = [{"database": database, "question": q, "query": s} for q, s in examples]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def embedded(tmp_path):
    folder = tmp_path / "embedded"
    _write_database(folder / "databases" / "music.sqlite")
    _write_database(folder / "databases" / "other.sqlite")
    _lines(folder / "train.jsonl", "music", QUERIES)
    for name, database in [("paraphrases", "music"), ("questions", "music"), ("database", "other")]:
        _lines(folder / f"heldout_{name}.jsonl", database, QUERIES[:3])
    return folder


@pytest.fixture
def spider_lines(tmp_path):
    folder = tmp_path / "lines"
    _write_database(folder / "databases" / "music.sqlite")
    _lines(folder / "train.jsonl", "music", QUERIES)
    _lines(folder / "test.jsonl", "music", QUERIES[:2])
    return folder


@pytest.fixture
def spider(tmp_path):
    folder = tmp_path / "spider"
    _write_database(folder / "database" / "music" / "music.sqlite")
    records = [
        {"db_id": "music", "question": q, "query": s, "sql": {"from": []}} for q, s in QUERIES
    ]
    (folder / "train_spider.json").write_text(json.dumps(records))
    (folder / "dev.json").write_text(json.dumps(records[:2]))
    (folder / "tables.json").write_text("[]")
    return folder


def _contents(folder):
    return {
        path.relative_to(folder): hashlib.sha256(path.read_bytes()).digest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        ("embedded", {"paraphrases": 3, "questions": 3, "database": 3}),
        ("spider_lines", {"test": 2}),
        ("spider", {"dev": 2}),
    ],
)
def test_reads_each_layout_and_scores_its_gold_queries(layout, sizes, request):
    folder = request.getfixturevalue(layout)
    with closing(TextToSql(folder)) as task:
        assert len(task.train_items) == len(QUERIES)
        assert {name: len(items) for name, items in task.heldout.items()} == sizes
        items = [*task.train_items, *(item for part in task.heldout.values() for item in part)]
        assert len({item.index for item in items}) == len(items)
        assert task.prompt(items[0]) == (
            "<|schema|>singer(id,name,country,age)<|question|>How many singers?<|sql|>"
        )
        assert task.response(items[0]) == "SELECT COUNT(*) FROM singer"
        scores = task.score(items, [task.response(item) for item in items])
        assert [score.reward for score in scores] == [1.0] * len(items)


def test_examples_of_the_warm_start_state_their_schema(embedded):
    with closing(TextToSql(embedded)) as task:
        assert list(task.warm_start_items) == []
    line = {"schema": "cat(id,name)", "examples": [["Cats?", "SELECT name FROM cat"]]}
    (embedded / "warm_start.jsonl").write_text(json.dumps(line) + "\n")
    with closing(TextToSql(embedded, train_limit=1)) as task:
        (item,) = task.warm_start_items
        assert task.prompt(item) == "<|schema|>cat(id,name)<|question|>Cats?<|sql|>"
        assert task.response(item) == "SELECT name FROM cat"
        assert item.index == len(QUERIES) + 3 * 3
        assert set(task.heldout) == {"paraphrases", "questions", "database"}


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        '{"schema": "t(id)"}',
        '{"schema": "t(id)", "examples": ["?"]}',
        '{"schema": "t(id)", "examples": [["?", " "]]}',
    ],
)
def test_bad_examples_of_the_warm_start_are_named(line, embedded):
    (embedded / "warm_start.jsonl").write_text(line)
    with pytest.raises(ValueError, match=r"warm_start.jsonl, line 1: found .*, allowed: a schema"):
        TextToSql(embedded)


def test_the_reward_and_its_parts(embedded):
    with closing(TextToSql(embedded, run_credit=0.25)) as task:
        count, names, average, _ = task.train_items
        cases = [
            (count, "  SELECT 12 ;\n", 1.0, 1.0, 1.0),
            (count, "SELECT 12.0", 1.0, 1.0, 1.0),
            (count, "SELECT 11", 0.25, 0.0, 1.0),
            (count, "SELECT 12, 12", 0.25, 0.0, 1.0),
            (count, "SELECT 12 UNION ALL SELECT 12", 0.25, 0.0, 1.0),
            (count, "SELECT nothing", 0.0, 0.0, 0.0),
            (count, "The answer: SELECT 12", 0.0, 0.0, 0.0),
            (count, "```SELECT 12```", 0.0, 0.0, 0.0),
            (names, "SELECT name FROM singer ORDER BY age DESC", 0.25, 0.0, 1.0),
            (average, "SELECT SUM(age) * 1.0 / 12 FROM singer", 1.0, 1.0, 1.0),
        ]
        scores = task.score([case[0] for case in cases], [case[1] for case in cases])
        for (_, text, reward, match, runs), score in zip(cases, scores, strict=True):
            assert score.reward == reward, text
            assert score.parts == {
                "execution_match": match,
                "runs": runs,
            }, text


def _wall_seconds(call, *given):
    start = time.monotonic()
    call(*given)
    return time.monotonic() - start


def test_hostile_responses_score_nothing_and_leave_nothing(embedded, monkeypatch):
    monkeypatch.chdir(embedded / "databases")
    with closing(TextToSql(embedded, workers=1)) as task:
        item = task.train_items[0]
        good = item.payload.query
        before = _contents(embedded)
        assert task.score([item], [good])[0].reward == 1.0
        killed = []
        for name, text in HOSTILE.items():
            start, cpu_start = time.monotonic(), workers_cpu_seconds()
            (score,) = task.score([item], [text])
            busy = os.getloadavg()[0] > (os.cpu_count() or 1)
            late = time.monotonic() - start >= 2.0 and not busy
            assert not late or _wall_seconds(task.score, [item], [text]) < 2.0, name
            assert workers_cpu_seconds() - cpu_start < 1.5, name  # holds on any machine
            assert score.reward == 0.0, name
            killed += [text] * bool(score.faults["killed"])
            assert task.score([item], [good])[0].reward == 1.0, name
        assert ENDLESS_CALL in killed, "the query that only the hard kill stops has changed"
        assert _contents(embedded) == before


def test_hostile_responses_in_a_batch_do_not_touch_their_neighbours(embedded):
    with closing(TextToSql(embedded, workers=2)) as task:
        item = task.train_items[0]
        texts = [text for hostile in HOSTILE.values() for text in (hostile, "SELECT 12")]
        rewards = [score.reward for score in task.score([item] * len(texts), texts)]
        assert rewards == [0.0, 1.0] * len(HOSTILE)


def test_a_gold_query_that_fails_is_told_apart(embedded):
    _lines(embedded / "train.jsonl", "music", [("?", "SELECT nothing")])
    with closing(TextToSql(embedded)) as task:
        wrong, right = task.score(task.train_items * 2, ["SELECT 1", "SELECT nothing"])
        assert (wrong.reward, wrong.faults["gold_failed"]) == (0.1, 1.0)
        assert (right.reward, right.faults["gold_failed"]) == (0.0, 1.0)


def test_limits_choose_the_same_items_in_any_order(embedded):
    def chosen(seed):
        task = TextToSql(embedded, train_limit=3, heldout_limit=2, seed=seed)
        assert {len(items) for items in task.heldout.values()} == {2}
        return {item.payload.question for item in task.train_items}

    by_seed = [chosen(seed) for seed in range(12)]
    assert {len(questions) for questions in by_seed} == {3}
    assert len(set(map(frozenset, by_seed))) > 1
    _lines(embedded / "train.jsonl", "music", QUERIES[::-1])
    assert by_seed == [chosen(seed) for seed in range(12)]


def test_limits_leave_the_indices_as_they_are(embedded):
    whole, part = TextToSql(embedded), TextToSql(embedded, train_limit=2, heldout_limit=1)
    assert set(part.train_items) < set(whole.train_items)
    for name, items in part.heldout.items():
        assert set(items) < set(whole.heldout[name])


def _without_folder(folder):
    return folder / "absent"


def _without_train(folder):
    (folder / "train.jsonl").unlink()
    return folder


def _with_line(line):
    def spoil(folder):
        with (folder / "train.jsonl").open("a") as file:
            file.write("\n" + line + "\n")
        return folder

    return spoil


def _without_database(folder):
    (folder / "databases" / "music.sqlite").unlink()
    return folder


def _with_pointer(folder):
    (folder / "databases" / "music.sqlite").write_text("version https://git-lfs")
    return folder


def _emptied(folder):
    (folder / "train.jsonl").write_text("\n")
    return folder


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without_folder, "absent: found no such folder, allowed"),
        (_without_train, "found a folder without them, allowed"),
        (_with_line("{"), "train.jsonl, line 6: found .* allowed: JSON"),
        (_with_line("[1]"), "train.jsonl, line 6: found no database, allowed"),
        (_with_line('{"database": "music", "question": "?"}'), "line 6: found no query, allowed"),
        (_with_line('{"database": "music", "question": 3, "query": "x"}'), "found question = 3"),
        (_with_line('{"database": "m", "question": "?", "query": "x"}'), "database m: found no f"),
        (_without_database, "database music: found no file at .* allowed: a SQLite file"),
        (_with_pointer, "database music: found no SQLite file at"),
        (_emptied, "train.jsonl: found no items, allowed: one or more"),
    ],
)
def test_bad_folders_are_named_on_one_line(spoil, message, spider_lines):
    with pytest.raises(ValueError, match=message) as caught:
        TextToSql(spoil(spider_lines))
    assert "\n" not in str(caught.value)


def test_bad_published_files_are_named(spider):
    (spider / "dev.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"dev.json: found a JSON dict, allowed: a JSON array"):
        TextToSql(spider)
    (spider / "dev.json").write_text('[{"db_id": "music", "question": "?"}]')
    with pytest.raises(ValueError, match=r"dev.json, item 1: found no query, allowed"):
        TextToSql(spider)
    (spider / "dev.json").unlink()
    with pytest.raises(ValueError, match=r"dev.json.* allowed: a readable UTF-8 file"):
        TextToSql(spider)


@pytest.mark.parametrize("bad", [{"train_limit": -1}, {"heldout_limit": -1}, {"run_credit": 1.0}])
def test_bad_settings_are_refused(bad, embedded):
    with pytest.raises(ValueError, match=r"found .*, allowed"):
        TextToSql(embedded, **bad)


def test_no_process_starts_before_the_first_score(embedded):
    assert SqlReward()._pool._workers == []


def test_every_gold_query_of_spider_matches_itself(shared_data):
    with closing(TextToSql(shared_data / "spider")) as task:
        parts = {"train": task.train_items, **task.heldout}
        assert {name: len(items) for name, items in parts.items()} == {"train": 5941, "test": 837}
        for items in parts.values():
            scores = task.score(items, [task.response(item) for item in items])
            failed = [item for item, s in zip(items, scores, strict=True) if s.reward != 1.0]
            assert not failed
