"""The compiled programs of an engine: each a pure function with its static parts bound.

Legend: B rows, N rows admitted at once, K draft budget, P prompt tokens in a length bucket.
"""

from collections import Counter
from functools import partial
from typing import Any

import jax

from ngramrl_jax.protocols import Params, Policy
from ngramrl_jax.rollout import admit as admission
from ngramrl_jax.rollout import round as rounds
from ngramrl_jax.rollout.foreseen import foreseen_round
from ngramrl_jax.rollout.round import DecodeRule
from ngramrl_jax.rollout.state import DecodeState
from ngramrl_jax.rollout.tree_round import as_tree_policy, tree_round


class Programs:
    """Jitted rounds, prefill and admission of one policy under one rule.

    Attributes:
        compiled: How often each program was traced, by name and static shape. Tracing precedes
            every compilation, also one that the persistent cache serves.
    """

    def __init__(
        self, policy: Policy, rule: DecodeRule, plain_rounds: int, draft_tokens: int
    ) -> None:
        """Binds the static parts; nothing is compiled yet."""
        self.compiled: Counter[tuple] = Counter()
        self._policy = policy
        self._rule = rule
        self._plain_rounds = plain_rounds
        self._draft_tokens = draft_tokens
        jit_round = partial(jax.jit, static_argnames="live", donate_argnames="state")
        if rule.draft_shape == "tree":
            self._draft_round = partial(tree_round, as_tree_policy(policy), rule)
        else:
            self._draft_round = partial(rounds.speculative_round, policy, rule)
        self.speculative = jit_round(self._speculative)
        self.foreseen = jit_round(self._foreseen)
        self.plain = jit_round(self._plain)
        self.prefill = jax.jit(self._prefill, donate_argnames="prefixes")
        self.admit = jax.jit(self._admit, donate_argnames="state")

    def _speculative(
        self, params: Params, state: DecodeState, drafts_BX: jax.Array, *, live: int
    ) -> tuple[DecodeState, jax.Array]:
        self.compiled["speculative", drafts_BX.shape, live] += 1
        return self._draft_round(params, state, drafts_BX, live=live)

    def _foreseen(
        self, params: Params, state: DecodeState, table_BX: jax.Array, *, live: int
    ) -> tuple[DecodeState, jax.Array]:
        self.compiled["foreseen", table_BX.shape, live] += 1
        return foreseen_round(
            self._policy,
            self._rule,
            params,
            state,
            table_BX,
            live=live,
            draft_tokens=self._draft_tokens,
        )

    def _plain(
        self,
        params: Params,
        state: DecodeState,
        leave_at: jax.Array,
        most: jax.Array,
        *,
        live: int,
    ) -> tuple[DecodeState, jax.Array]:
        self.compiled["plain", live] += 1
        return rounds.plain_rounds(
            self._policy,
            self._rule,
            params,
            state,
            leave_at,
            most,
            live=live,
            rounds=self._plain_rounds,
        )

    def _prefill(self, params: Params, prefixes: Any, tokens_P: jax.Array, entry: jax.Array) -> Any:
        self.compiled["prefill", tokens_P.shape] += 1
        return admission.prefill(self._policy, params, prefixes, tokens_P, entry)

    def _admit(self, state: DecodeState, prefixes: Any, rows_NX: jax.Array) -> DecodeState:
        self.compiled["admit", rows_NX.shape] += 1
        return admission.admit(self._policy, state, prefixes, rows_NX)
