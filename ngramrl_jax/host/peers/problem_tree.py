"""A suffix tree for every prompt over its recent rollouts, as DAS and SRT use it.

DAS (arXiv 2511.13841): one tree a problem; a sliding window of recent rollouts, 16 or 32 of them
being the better balance; rollouts of older iterations weigh less.
An open re-implementation of DAS (verl 0.9 with vLLM): depth 24, 2 draft tokens for each matched
one, least probability 0.1, a window of 8 to 16 iterations, fresh rollouts counted twice.
SRT (arXiv 2601.09083): a child's share is of its siblings' counts, the path's product is the
draft's probability, the suffix whose draft has the highest sum of them wins; siblings enter the
tree as they finish (here: whole, where SRT inserts them as they run).

Legend: B rows, F = 1 trees of a row, K draft budget, P prompt tokens, N response tokens, W words of
a key.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from ngramrl_jax.host.checks import as_token_ids, at_least
from ngramrl_jax.host.peers.suffix_draft import SuffixRule
from ngramrl_jax.host.peers.tree_drafter import TreeDrafter
from ngramrl_jax.host.peers.trie_kernels import NONE
from ngramrl_jax.types import BestTokens, Int32Array, UInt32Array

DAS_RULE = SuffixRule(depth=24, factor=2.0, min_prob=0.1, over_siblings=True)
_FRESH_WEIGHT = 2


@dataclass
class _Problem:
    """A prompt's tree, and the texts that each of its iterations put there, oldest first."""

    root: int
    step: int = NONE
    iterations: deque[list[int]] = field(default_factory=deque)


class ProblemTreeDrafter(TreeDrafter):
    """Drafts from the rollouts of the row's prompt, and from nothing else.

    An iteration is a training step that had the prompt.
    """

    def __init__(
        self, rows: int, draft_tokens: int, rule: SuffixRule = DAS_RULE, window: int = 16
    ) -> None:
        """A drafter for `rows` idle rows.

        Args:
            rows: B, at least 1.
            draft_tokens: K, at least 0.
            rule: Which continuation is drafted.
            window: Iterations of a prompt whose rollouts its tree holds, at least 1.

        Raises:
            ValueError: A setting lies outside its range.
        """
        super().__init__(rows, draft_tokens, rule, trees=1)
        self._window = at_least("window", window, 1)
        self._problems: dict[int, _Problem] = {}

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """The row draws on the prompt's tree; see `TextDrafter.start_row`."""
        super().start_row(row, prompt_id, prompt_P)
        self._prompts[row] = prompt_id
        if prompt_id in self._problems:
            self._root_BF[row] = self._problems[prompt_id].root

    def finish_row(self, row: int) -> None:
        """The row draws on no tree; see `TextDrafter.finish_row`."""
        super().finish_row(row)
        self._prompts[row] = NONE
        self._root_BF[row] = NONE

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """A finished rollout enters its prompt's tree; a new step ages those of the steps before.

        Raises:
            ValueError: A negative prompt id, or tokens that are no int32 ids.
        """
        at_least("prompt_id", prompt_id, 0)
        ids_N = as_token_ids("tokens_N", tokens_N)
        problem = self._problems.get(prompt_id) or self._new_problem(prompt_id)
        if step != problem.step or not problem.iterations:
            self._begin_iteration(problem, step)
        text = self.forest.open_text(problem.root, _FRESH_WEIGHT)
        self.forest.extend(text, ids_N)
        self.forest.close_text(text)
        problem.iterations[-1].append(text)

    def _new_problem(self, prompt_id: int) -> _Problem:
        problem = self._problems[prompt_id] = _Problem(self.forest.plant())
        self._root_BF[np.array(self._prompts) == prompt_id] = problem.root
        return problem

    def _begin_iteration(self, problem: _Problem, step: int) -> None:
        """What was fresh is no longer; what is too old goes."""
        if problem.iterations:
            for text in problem.iterations[-1]:
                self.forest.weaken(text)
        problem.step = step
        problem.iterations.append([])
        if len(problem.iterations) > self._window:
            for _ in problem.iterations.popleft():
                self.forest.drop_oldest(problem.root)
