"""SuffixDecoding against its rule in plain Python.

`benchmarks/drafting/peers_check.py` compares it with the real library.
"""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host.peers import PEERS, SuffixDecodingDrafter, SuffixRule, suffix_decoding_best
from tests.support.suffix_reference import PlainSuffixDecoding

ROWS, BUDGET = 3, 6
_RULES = st.builds(
    SuffixRule,
    depth=st.integers(1, 8),
    factor=st.sampled_from([0.0, 0.5, 1.0, 1.7, 4.0]),
    offset=st.sampled_from([-1.0, 0.0, 0.6]),
    min_prob=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    max_tokens=st.integers(0, 8),
)
_TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)
_ACTION = st.tuples(
    st.sampled_from(["start", "say", "say", "say", "finish", "learn"]),
    st.integers(0, ROWS - 1),
    _TOKENS,
)


def _one_row(row: int, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    tokens_BT = np.zeros((ROWS, len(tokens)), np.int32)
    count_B = np.zeros(ROWS, np.int32)
    tokens_BT[row], count_B[row] = tokens, len(tokens)
    return tokens_BT, count_B


class _Pair:
    """A drafter and its plain likeness, through the same actions."""

    def __init__(self, rule: SuffixRule, cached_requests: int) -> None:
        self.drafter = SuffixDecodingDrafter(ROWS, BUDGET, rule, cached_requests)
        self.plain = PlainSuffixDecoding(rule, cached_requests)
        self.said: dict[int, list[int]] = {}

    def act(self, action: str, row: int, tokens: list[int]) -> None:
        if action == "start":
            self.drafter.start_row(row, row, np.array(tokens, np.int32))
            self.plain.start(row, tokens)
            self.said[row] = []
        elif action == "learn":
            self.drafter.observe(9, np.array(tokens, np.int32), 0)
            self.plain.learn(tokens)
        elif action == "say" and row in self.said:
            self.drafter.commit(*_one_row(row, tokens))
            self.plain.say(row, tokens)
            self.said[row] += tokens
        elif action == "finish" and self.said.get(row):
            self.drafter.finish_row(row)
            self.drafter.observe(row, np.array(self.said.pop(row), np.int32), 0)

    def check(self, limit_B: np.ndarray) -> None:
        draft_BK, length_B = self.drafter.propose(limit_B)
        for row in range(ROWS):
            draft, match = [], 0
            if row in self.said and limit_B[row] > 0:
                draft, match = self.plain.draft(row, min(int(limit_B[row]), BUDGET))
            assert draft_BK[row].tolist() == draft + [0] * (BUDGET - len(draft))
            assert length_B[row] == len(draft)
            if self.drafter.rule.max_tokens:
                assert self.drafter.match_length_B[row] == match


@settings(max_examples=80, deadline=None)
@given(
    rule=_RULES,
    cached_requests=st.integers(1, 5),
    actions=st.lists(_ACTION, min_size=8, max_size=40),
    limits=st.lists(st.integers(0, 8), min_size=ROWS, max_size=ROWS),
)
def test_drafts_equal_those_of_the_plain_rule(rule, cached_requests, actions, limits):
    pair = _Pair(rule, cached_requests)
    for action in actions:
        pair.act(*action)
        pair.check(np.array(limits, np.int32))


def _drafter(rule: SuffixRule, cached_requests: int = 9) -> SuffixDecodingDrafter:
    drafter = SuffixDecodingDrafter(2, 8, rule, cached_requests)
    drafter.start_row(0, 0, np.array([8, 9], np.int32))
    return drafter


def _draft(drafter: SuffixDecodingDrafter, row: int = 0) -> list[int]:
    limit_B = np.zeros(2, np.int32)
    limit_B[row] = 8
    draft_BK, length_B = drafter.propose(limit_B)
    return draft_BK[row, : length_B[row]].tolist()


def test_worked_example():
    # After "9": 3 of 4 say 1, of those 2 say 2 and one ends. "9" matched: one token allowed;
    # factor 3 allows three, with probabilities 3/4, 1/2 and 1/4: the last falls below 0.3.
    for factor, draft in ((1.0, [1]), (3.0, [1, 2])):
        drafter = _drafter(SuffixRule(depth=8, factor=factor, min_prob=0.3))
        for response in ([9, 1, 2, 5], [9, 1, 2, 6], [9, 1], [9, 4]):
            drafter.observe(3, np.array(response, np.int32), 0)
        assert _draft(drafter) == draft


def test_running_requests_of_other_prompts_are_seen():
    drafter = _drafter(SuffixRule(depth=8))
    drafter.start_row(1, 1, np.array([7], np.int32))
    drafter.commit(np.array([[0, 0], [9, 5]], np.int32), np.array([0, 2], np.int32))
    assert _draft(drafter) == [5]


def test_a_rows_own_rollout_counts_once():
    drafter = _drafter(SuffixRule(depth=8))
    drafter.commit(np.array([[1, 2], [0, 0]], np.int32), np.array([2, 0], np.int32))
    drafter.finish_row(0)
    held = drafter.forest.held_tokens
    drafter.observe(0, np.array([1, 2], np.int32), 0)
    assert drafter.forest.held_tokens == held == 2
    drafter.observe(0, np.array([1, 2], np.int32), 0)  # another one, said elsewhere
    assert drafter.forest.held_tokens == 4


def test_the_oldest_request_goes_first_even_while_it_runs():
    drafter = _drafter(SuffixRule(depth=8), cached_requests=2)
    drafter.commit(np.array([[4], [0]], np.int32), np.array([1, 0], np.int32))
    drafter.observe(5, np.array([9, 3], np.int32), 0)
    drafter.observe(5, np.array([6, 6], np.int32), 0)  # the running request goes
    drafter.commit(np.array([[5, 5, 9], [0] * 3], np.int32), np.array([3, 0], np.int32))
    assert drafter.forest.held_tokens == 2 + 4 + 4  # own tree: prompt and response; two rollouts
    assert _draft(drafter) == [3]  # a share of 1; 4 has 1/2: that the text ends with 9 counts too
    drafter.observe(5, np.array([1], np.int32), 0)
    drafter.observe(5, np.array([1], np.int32), 0)
    assert drafter.forest.held_tokens == 6 + 2


def test_a_bounded_cache_stays_bounded():
    rng = np.random.default_rng(0)
    drafter = SuffixDecodingDrafter(2, 8, SuffixRule(depth=24), cached_requests=10)
    sizes = []
    for turn in range(150):
        drafter.start_row(turn % 2, 0, rng.integers(0, 9, 20).astype(np.int32))
        count_B = np.zeros(2, np.int32)
        count_B[turn % 2] = 60
        drafter.commit(rng.integers(0, 9, (2, 60)).astype(np.int32), count_B)
        drafter.end_batch()
        sizes.append(drafter.forest.nbytes)
    assert sizes[20] == sizes[-1]
    assert drafter.forest.held_tokens == 10 * 60 + 2 * 80


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_keeps_to_the_protocol(name):
    rng = np.random.default_rng(1)
    drafter = PEERS[name](4, 5)
    rows = [rng.integers(0, 3, 30).astype(np.int32) for _ in range(4)]
    for step in range(3):
        for row, prompt_P in enumerate(rows):
            drafter.start_row(row, row, prompt_P, np.zeros(2, np.uint32))
        drafter.commit(np.stack([r[:9] for r in rows]), np.array([9, 9, 9, 0], np.int32))
        limit_B = np.array([0, 3, 9, 9], np.int32)
        first, second = drafter.propose(limit_B), drafter.propose(limit_B)
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one is not other
        draft_BK, length_B = first
        assert draft_BK.shape == (4, 5)
        assert draft_BK.dtype == length_B.dtype == np.int32
        assert (length_B <= [0, 3, 5, 5]).all()
        for row in range(4):  # a row's draft does not depend on who else is asked
            alone_B = np.where(np.arange(4) == row, limit_B, 0).astype(np.int32)
            np.testing.assert_array_equal(drafter.propose(alone_B)[0][row], draft_BK[row])
        for row in range(4):
            drafter.finish_row(row)
            drafter.observe(row, rows[row][:9], step)
        assert not drafter.propose(limit_B)[1].any()
        drafter.end_batch()


def test_the_best_setting_can_be_swept():
    drafter = suffix_decoding_best(2, 8, factor=2.0, depth=12, max_tokens=3)
    assert drafter.rule == SuffixRule(depth=12, factor=2.0, max_tokens=3)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("depth", 0),
        ("factor", -1.0),
        ("offset", float("nan")),
        ("min_prob", 1.5),
        ("max_tokens", -1),
    ],
)
def test_a_rule_outside_its_range_is_refused(setting, value):
    with pytest.raises(ValueError, match=f"{setting}: found {value}"):
        SuffixRule(**{"depth": 4, setting: value})


def test_cached_requests_is_checked():
    with pytest.raises(ValueError, match="cached_requests: found 0"):
        SuffixDecodingDrafter(1, 4, cached_requests=0)


def test_peers_load_no_jax():
    code = "import ngramrl_jax.host.peers, sys; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
