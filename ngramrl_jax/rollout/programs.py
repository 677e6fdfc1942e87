"""The compiled programs of an engine: each a pure function with its static parts bound.

Legend: B rows, N rows admitted at once, K draft budget, P prompt tokens in a length bucket.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from ngramrl_jax.protocols import Params, Policy
from ngramrl_jax.rollout import admit as admission
from ngramrl_jax.rollout import round as rounds
from ngramrl_jax.rollout.foreseen import foreseen_round
from ngramrl_jax.rollout.layout import RowLayout
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
        self,
        policy: Policy,
        rule: DecodeRule,
        plain_rounds: int,
        draft_tokens: int,
        layout: RowLayout | None = None,
    ) -> None:
        """Binds the static parts; nothing is compiled yet. No layout means one device."""
        self.compiled: Counter[tuple] = Counter()
        self._policy = policy
        self._rule = rule
        self._plain_rounds = plain_rounds
        self._draft_tokens = draft_tokens
        if rule.draft_shape == "tree":
            self._draft_round = partial(tree_round, as_tree_policy(policy), rule)
        else:
            self._draft_round = partial(rounds.speculative_round, policy, rule)
        self._layout = layout
        state = prefixes = packed = None
        if layout is not None:
            state = layout.state_shardings(forced=rule.verifier == "forced")
            prefixes = layout.cache_shardings()
            packed = layout.everywhere  # so that one copy brings it to the host
        jit_round = partial(
            jax.jit,
            static_argnames="live",
            donate_argnames="state",
            out_shardings=(state, packed),
        )
        self.speculative = jit_round(self._speculative)
        self.foreseen = jit_round(self._foreseen)
        self.plain = jit_round(self._plain)
        self.prefill = jax.jit(self._prefill, donate_argnames="prefixes", out_shardings=prefixes)
        self.admit = jax.jit(self._admit, donate_argnames="state", out_shardings=state)

    def _speculative(
        self, params: Params, state: DecodeState, drafts_BX: jax.Array, *, live: int
    ) -> tuple[DecodeState, jax.Array]:
        self.compiled["speculative", drafts_BX.shape, live] += 1
        return self._by_rows(partial(self._draft_round, live=live))(params, state, drafts_BX)

    def _foreseen(
        self, params: Params, state: DecodeState, table_BX: jax.Array, *, live: int
    ) -> tuple[DecodeState, jax.Array]:
        self.compiled["foreseen", table_BX.shape, live] += 1
        # Whether the round is worth running is decided for all rows together, as by the host.
        work = self._by_rows(partial(self._draft_round, live=live))
        return foreseen_round(
            partial(work, params), state, table_BX, draft_tokens=self._draft_tokens
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
        work = partial(
            rounds.plain_rounds, self._policy, self._rule, live=live, rounds=self._plain_rounds
        )
        return self._by_rows(work)(params, state, leave_at, most)

    def _by_rows(self, work: Callable[..., Any]) -> Callable[..., Any]:
        return work if self._layout is None else self._layout.by_rows(work)

    def _prefill(self, params: Params, prefixes: Any, tokens_P: jax.Array, entry: jax.Array) -> Any:
        self.compiled["prefill", tokens_P.shape] += 1
        return admission.prefill(self._policy, params, prefixes, tokens_P, entry)

    def _admit(self, state: DecodeState, prefixes: Any, rows_NX: jax.Array) -> DecodeState:
        self.compiled["admit", rows_NX.shape] += 1
        return admission.admit(self._policy, state, prefixes, rows_NX)
