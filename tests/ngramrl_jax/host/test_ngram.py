"""The n-gram drafter proposes exactly what a brute-force statement of its rule proposes."""

import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host import automaton, row_text
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter, warm_up

ROWS, BUDGET = 3, 6
START = -1


def next_token(rollouts, context, window, min_match, fresh_weight=2, newer=1, lower=1):
    """Continues the longest suffix of the context that any rollout continues; None if none does."""
    for n in range(len(context), 0, -1):
        if n < min_match and n < len(context):
            return None
        weights, latest = defaultdict(int), {}
        for serial, rollout in enumerate(rollouts):
            text = [START, *rollout]
            age = len(rollouts) - 1 - serial
            for i in range(len(text) - n):
                if text[i : i + n] == context[-n:]:
                    weights[text[i + n]] += fresh_weight if age < (window + 1) // 2 else 1
                    latest[text[i + n]] = serial
        if weights:
            return max(weights, key=lambda t: (weights[t], newer * latest[t], -lower * t))
    return None


def look_up(text, limit, max_ngram):
    for n in range(max_ngram, 1, -1):
        for i in range(len(text) - n - 1, -1, -1):
            if text[i : i + n] == text[-n:]:
                copy = list(text)
                for j in range(limit):
                    copy.append(copy[i + n + j])
                return copy[len(text) :]
    return []


@dataclass
class Reference:
    """The rule of `NgramDrafter`, by counting."""

    window: int
    min_match: int
    max_ngram: int
    rollouts: dict = field(default_factory=lambda: defaultdict(list))
    rows: dict = field(default_factory=dict)
    fault: dict = field(default_factory=dict)

    def observe(self, prompt_id, tokens):
        kept = [*self.rollouts[prompt_id], tokens]
        self.rollouts[prompt_id] = kept[max(0, len(kept) - self.window) :]

    def propose(self, row, limit):
        if row not in self.rows:
            return []
        prompt_id, prompt, response = self.rows[row]
        draft = []
        while len(draft) < min(limit, BUDGET):
            context = [START, *response, *draft]
            rollouts = self.rollouts[prompt_id]
            token = next_token(rollouts, context, self.window, self.min_match, **self.fault)
            if token is None:
                break
            draft.append(token)
        return draft or look_up([*prompt, *response], min(limit, BUDGET), self.max_ngram)


def drafts(drafter, limits):
    draft_BK, length_B = drafter.propose(np.array(limits, np.int32))
    assert (length_B <= np.minimum(limits, drafter.draft_tokens)).all()
    assert all(not draft_BK[row, n:].any() for row, n in enumerate(length_B))
    return [draft_BK[row, :n].tolist() for row, n in enumerate(length_B)]


TEXT = st.lists(st.integers(0, 2), min_size=1, max_size=12)
PROMPT_ID = st.integers(0, 2)
ROW = st.integers(0, ROWS - 1)
OPERATION = st.one_of(
    st.tuples(st.just("observe"), PROMPT_ID, TEXT),
    st.tuples(st.just("observe"), PROMPT_ID, TEXT),
    st.tuples(st.just("start"), ROW, st.tuples(PROMPT_ID, TEXT)),
    st.tuples(st.just("start"), ROW, st.tuples(PROMPT_ID, TEXT)),
    st.tuples(st.just("commit"), ROW, TEXT),
    st.tuples(st.just("commit"), ROW, TEXT),
    st.tuples(st.just("finish"), ROW, st.none()),
    st.tuples(st.just("rebuild"), st.none(), st.none()),
    st.tuples(st.just("restore"), st.none(), st.none()),
)


def apply(operation, drafter, reference):
    name, which, text = operation
    if name == "observe":
        drafter.observe(which, np.array(text), 0)
        reference.observe(which, text)
    elif name == "start":
        prompt_id, prompt = text
        drafter.start_row(which, prompt_id, np.array(prompt))
        reference.rows[which] = (prompt_id, prompt, [])
    elif name == "commit" and which in reference.rows:
        count_B = np.where(np.arange(ROWS) == which, len(text), 0)
        drafter.commit(np.tile(text, (ROWS, 1)), count_B)
        reference.rows[which][2].extend(text)
    elif name == "finish":
        drafter.finish_row(which)
        reference.rows.pop(which, None)
    elif name == "rebuild":
        drafter.history.index.rebuild()
    elif name == "restore":
        drafter.history.restore(drafter.history.snapshot())


@settings(max_examples=300, deadline=None)
@given(
    operations=st.lists(OPERATION, max_size=40),
    limits=st.lists(st.integers(0, BUDGET + 2), min_size=ROWS, max_size=ROWS),
    window=st.integers(0, 5),
    min_match=st.integers(1, 3),
    max_ngram=st.sampled_from([0, 2, 3]),
)
def test_drafts_equal_those_of_counting(operations, limits, window, min_match, max_ngram):
    """After every insertion, eviction, rebuild, restore, advance and swap of rows."""
    reference = Reference(window, min_match, max_ngram)
    drafter = NgramDrafter(ROWS, BUDGET, History(window), min_match=min_match, max_ngram=max_ngram)
    for operation in operations:
        apply(operation, drafter, reference)
        assert drafts(drafter, limits) == [
            reference.propose(row, limits[row]) for row in range(ROWS)
        ]


@pytest.mark.parametrize("fault", [{}, {"fresh_weight": 1}, {"newer": -1}, {"lower": -1}])
def test_the_comparison_sees_a_fault_in_recency_or_in_a_tie(fault):
    rng = np.random.default_rng(0)
    differences = 0
    for _ in range(40):
        reference = Reference(window=4, min_match=1, max_ngram=0, fault=fault)
        drafter = NgramDrafter(ROWS, BUDGET, History(4), max_ngram=0)
        apply(("start", 0, (0, [1])), drafter, reference)
        for _ in range(8):
            apply(("observe", 0, rng.integers(0, 3, 10).tolist()), drafter, reference)
            apply(("commit", 0, rng.integers(0, 3, 1).tolist()), drafter, reference)
            differences += drafts(drafter, [6, 0, 0])[0] != reference.propose(0, 6)
    assert (differences > 0) == bool(fault)


def test_long_matches_and_long_texts_are_found_again():
    """Fresh matches double their tail; texts and tables grow."""
    rng = np.random.default_rng(1)
    rollout = rng.integers(0, 4, 3000)
    drafter = NgramDrafter(1, 16, History())
    drafter.start_row(0, 0, rng.integers(0, 4, 700))
    for end in (1, 31, 32, 63, 64, 500, 2000):
        drafter.start_row(0, 0, rng.integers(0, 4, 700))
        drafter.commit(rollout[None, :end], np.array([end]))
        drafter.observe(0, rollout, 0)
        assert drafts(drafter, [16]) == [rollout[end : end + 16].tolist()]


def test_a_swapped_row_never_gets_the_former_prompts_draft():
    drafter = NgramDrafter(1, 4, History())
    drafter.observe(1, np.array([10, 11, 12, 13]), 0)
    drafter.observe(2, np.array([10, 21, 22, 23]), 0)
    drafter.start_row(0, 1, np.array([5]))
    drafter.commit(np.array([[10]]), np.array([1]))
    assert drafts(drafter, [4]) == [[11, 12, 13]]
    drafter.start_row(0, 2, np.array([5]))
    assert drafts(drafter, [4]) == [[10, 21, 22, 23]]
    drafter.commit(np.array([[10]]), np.array([1]))
    assert drafts(drafter, [4]) == [[21, 22, 23]]
    drafter.start_row(0, 3, np.array([5]))
    drafter.commit(np.array([[10]]), np.array([1]))
    assert drafts(drafter, [4]) == [[]]
    drafter.finish_row(0)
    assert drafts(drafter, [4]) == [[]]


def test_each_proposal_is_fresh_memory():
    drafter = NgramDrafter(1, 4, History())
    drafter.observe(0, np.array([1, 2, 3]), 0)
    drafter.start_row(0, 0, np.array([5]))
    first = drafter.propose(np.array([4]))
    first[0][:], first[1][:] = 9, 9
    assert drafts(drafter, [4]) == [[1, 2, 3]]


def test_bad_input_is_refused_by_name_and_changes_nothing():
    history = History()
    for setting in ({"min_match": 0}, {"max_ngram": -1}, {"rows": 0}, {"draft_tokens": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(setting))}: found .*, allowed: "):
            NgramDrafter(**{"rows": 2, "draft_tokens": 4, "history": history, **setting})
    drafter = NgramDrafter(2, 4, history)
    for prompt in ([], [-1], [2**31], [1.0], [[1]]):
        with pytest.raises(ValueError, match="prompt_P: found"):
            drafter.start_row(0, 0, np.array(prompt))
    with pytest.raises(ValueError, match="prompt_id: found -1"):
        drafter.start_row(0, -1, np.array([1]))
    for row in (-1, 2):
        with pytest.raises(ValueError, match="row: found"):
            drafter.finish_row(row)
    drafter.start_row(0, 0, np.array([1, 2, 1]))
    before = drafts(drafter, [4, 4])
    for tokens, count in (([[7], [7]], [0, 1]), ([[-7], [7]], [1, 0]), ([[7], [7]], [2, 0])):
        with pytest.raises(ValueError, match=r"row \d: found"):
            drafter.commit(np.array(tokens), np.array(count))
    with pytest.raises(ValueError, match="count_B: found"):
        drafter.commit(np.array([[7], [7]]), np.array([1]))
    with pytest.raises(ValueError, match="limit_B: found"):
        drafter.propose(np.array([4]))
    assert drafts(drafter, [4, 4]) == before


ENTRIES = [
    automaton.insert,
    automaton.weigh,
    automaton.draft_rows,
    row_text._check,
    row_text._append,
    row_text._draft_repeats,
]


def test_nothing_compiles_after_warm_up():
    """Not for read-only, strided or int64 arrays either, nor for other sizes."""
    warm_up()
    before = [len(kernel.signatures) for kernel in ENTRIES]
    assert all(before)
    drafter = NgramDrafter(4, 16, History(3))
    tokens_BT = np.arange(80).reshape(4, 20)[:, ::2]
    tokens_BT.flags.writeable = False
    for step in range(5):
        drafter.start_row(step % 4, step, np.arange(9)[::2])
        drafter.observe(step, np.arange(30, dtype=np.uint16)[::3], step)
    drafter.commit(tokens_BT, np.array([10, 0, 3, 1], np.int64))
    drafter.propose(np.array([3, 16, 99, 0], np.int64))
    assert [len(kernel.signatures) for kernel in ENTRIES] == before


def test_the_kernels_release_the_gil():
    """Another thread goes on while a long rollout is being indexed."""
    warm_up()
    history = History()
    history.acquire(0)
    rollout = np.random.default_rng(0).integers(0, 1000, 600_000)
    times = []

    def insert():
        times.append(time.perf_counter())
        history.observe(0, rollout, 0)
        times.append(time.perf_counter())

    worker = threading.Thread(target=insert)
    worker.start()
    ticks = []
    while worker.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.001)
    begin, end = times
    middle = [t for t in ticks if begin + 0.3 * (end - begin) < t < begin + 0.7 * (end - begin)]
    assert len(middle) >= 5


def test_the_host_core_loads_no_jax():
    code = "import sys, ngramrl_jax.host.ngram; print({'jax', 'flax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
