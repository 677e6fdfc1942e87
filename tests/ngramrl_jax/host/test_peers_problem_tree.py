"""The per-problem tree against a plain tree for every prompt."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host.peers import DAS_RULE, ProblemTreeDrafter, SuffixRule
from tests.support.suffix_reference import PlainTree, plain_draft

PROMPTS, BUDGET = 2, 6
_TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)
_ROLLOUT = st.tuples(st.integers(0, PROMPTS - 1), _TOKENS, st.booleans())
_RULES = st.builds(
    SuffixRule,
    depth=st.integers(2, 8),
    factor=st.sampled_from([1.0, 2.0]),
    min_prob=st.sampled_from([0.1, 0.4]),
    over_siblings=st.booleans(),
)


class _PlainProblems:
    """Trees by prompt, in which fresh rollouts weigh 2; the window is counted in iterations."""

    def __init__(self, rule: SuffixRule, window: int) -> None:
        self.window = window
        self.trees = defaultdict(lambda: PlainTree(rule.depth))
        self.iterations = defaultdict(list)
        self.steps: dict[int, int] = {}

    def observe(self, prompt_id: int, tokens: list[int], step: int) -> None:
        tree, iterations = self.trees[prompt_id], self.iterations[prompt_id]
        if self.steps.get(prompt_id) != step:
            self.steps[prompt_id] = step
            for text in iterations[-1] if iterations else []:
                tree.weaken(text)
            iterations.append([])
            if len(iterations) > self.window:
                for _ in iterations.pop(0):
                    tree.drop_oldest()
        iterations[-1].append(tree.open_text(2))
        tree.extend(iterations[-1][-1], tokens)


@settings(max_examples=60, deadline=None)
@given(
    rule=_RULES,
    window=st.integers(1, 3),
    rollouts=st.lists(_ROLLOUT, min_size=3, max_size=20),
    prompt=_TOKENS,
    response=_TOKENS,
)
def test_drafts_equal_those_of_the_plain_rule(rule, window, rollouts, prompt, response):
    drafter, plain = ProblemTreeDrafter(PROMPTS, BUDGET, rule, window), _PlainProblems(rule, window)
    for row in range(PROMPTS):
        drafter.start_row(row, row, np.array(prompt, np.int32))
    response_BT = np.tile(np.array(response, np.int32), (PROMPTS, 1))
    drafter.commit(response_BT, np.full(PROMPTS, len(response), np.int32))
    step = 0
    for prompt_id, tokens, next_step in rollouts:
        step += next_step
        drafter.observe(prompt_id, np.array(tokens, np.int32), step)
        plain.observe(prompt_id, tokens, step)
        draft_BK, length_B = drafter.propose(np.full(PROMPTS, BUDGET, np.int32))
        for row in range(PROMPTS):
            draft, _, match = plain_draft(plain.trees[row], prompt + response, BUDGET, rule)
            assert draft_BK[row, : length_B[row]].tolist() == draft
            assert drafter.match_length_B[row] == match


def _draft(drafter: ProblemTreeDrafter, prompt_id: int, prompt: list[int]) -> list[int]:
    drafter.start_row(0, prompt_id, np.array(prompt, np.int32))
    draft_BK, length_B = drafter.propose(np.full(drafter.rows, BUDGET, np.int32))
    return draft_BK[0, : length_B[0]].tolist()


def test_two_tokens_for_each_matched_one():
    drafter = ProblemTreeDrafter(1, BUDGET)
    drafter.observe(0, np.arange(20, dtype=np.int32), 0)
    assert _draft(drafter, 0, [99, 3]) == [4, 5]
    assert _draft(drafter, 0, [99, 2, 3]) == [4, 5, 6, 7]


def test_other_prompts_are_not_seen():
    drafter = ProblemTreeDrafter(1, BUDGET)
    drafter.observe(1, np.arange(20, dtype=np.int32), 0)
    assert _draft(drafter, 0, [99, 3]) == []


def test_fresh_rollouts_count_twice_until_the_next_iteration():
    drafter = ProblemTreeDrafter(1, BUDGET)
    for _ in range(3):
        drafter.observe(0, np.array([3, 1], np.int32), 0)
    drafter.observe(0, np.array([3, 2], np.int32), 1)  # 2 against 1 + 1 + 1
    assert _draft(drafter, 0, [9, 3]) == [1]
    drafter.observe(0, np.array([3, 2], np.int32), 1)  # 4 against 3
    assert _draft(drafter, 0, [9, 3]) == [2]


def test_the_window_counts_iterations_of_the_prompt():
    drafter = ProblemTreeDrafter(1, BUDGET, window=2)
    drafter.observe(0, np.array([3, 1], np.int32), 0)
    for step in range(1, 50):
        drafter.observe(1, np.array([5, 5], np.int32), step)
    drafter.observe(0, np.array([7, 7], np.int32), 50)
    assert _draft(drafter, 0, [9, 3]) == [1]
    drafter.observe(0, np.array([7, 7], np.int32), 60)
    assert _draft(drafter, 0, [9, 3]) == []
    assert drafter.forest.held_tokens == 4 + 4


def test_a_tree_planted_while_a_row_runs_is_used_by_it():
    drafter = ProblemTreeDrafter(2, BUDGET)
    drafter.start_row(1, 4, np.array([9, 3], np.int32))
    drafter.observe(4, np.array([3, 1], np.int32), 0)
    draft_BK, length_B = drafter.propose(np.full(2, BUDGET, np.int32))
    assert length_B.tolist() == [0, 1]
    assert draft_BK[1, 0] == 1


def test_the_order_of_rows_changes_nothing():
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 3, 12).astype(np.int32) for _ in range(3)]
    forwards, backwards = ProblemTreeDrafter(3, BUDGET), ProblemTreeDrafter(3, BUDGET)
    for row, text in enumerate(texts):
        for drafter in (forwards, backwards):
            drafter.observe(row, rng.permutation(text), 0) if row else drafter.observe(0, text, 0)
    for row, text in enumerate(texts):
        forwards.start_row(row, 0, text)
        backwards.start_row(2 - row, 0, text)
    limit_B = np.array([6, 4, 2], np.int32)
    draft_BK, length_B = forwards.propose(limit_B)
    other_BK, other_B = backwards.propose(limit_B[::-1])
    np.testing.assert_array_equal(draft_BK, other_BK[::-1])
    np.testing.assert_array_equal(length_B, other_B[::-1])


def test_the_published_setting_and_the_range_of_the_window():
    assert (DAS_RULE.depth, DAS_RULE.factor, DAS_RULE.min_prob) == (24, 2.0, 0.1)
    with pytest.raises(ValueError, match="window: found 0"):
        ProblemTreeDrafter(1, BUDGET, window=0)
