"""The drafter and its variants, as the ablations replay them.

Legend: B rows, K draft budget, N response tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.drafting.drawn_drafts import DrawnDrafts
from benchmarks.drafting.foreseen import BestFew
from benchmarks.drafting.tree_drafts import TreeDrafts
from benchmarks.drafting.weighted_sources import Name, Weigh, WeightedSources
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import DEFAULT_RULE, NgramDrafter
from ngramrl_jax.replay.oracle import OracleChain
from ngramrl_jax.replay.registry import Factory
from ngramrl_jax.trace.records import TraceHeader
from ngramrl_jax.types import BestTokens, Int32Array

DEFAULT = "default"
ORACLE = "oracle chain"
CEILING = "every best token guessed"


class FewBest(NgramDrafter):
    """Is told only some of the best tokens of each position."""

    def __init__(self, rows: int, draft_tokens: int, history: History, best: int) -> None:
        """See `NgramDrafter`; `best` is how many."""
        super().__init__(rows, draft_tokens, history)
        self._best = best

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """A finished rollout."""
        if best is not None:
            best = BestTokens(best.ids_NR[:, : self._best], best.logps_NR[:, : self._best])
        super().observe(prompt_id, tokens_N, step, best)


@dataclass(frozen=True)
class Variant:
    """A drafter to be replayed.

    Attributes:
        name: What is different.
        make: Makes it.
        draft_tokens: K.
        against: The variant that it is compared with.
        needs: What the trace must hold: `best`, `logps`, `keys`.
    """

    name: str
    make: Factory
    draft_tokens: int
    against: str = DEFAULT
    needs: tuple[str, ...] = ()


def variants(
    header: TraceHeader, draft_tokens: int, scored: Mapping[Name, tuple[float, float]]
) -> list[Variant]:
    """All of them, the default first, each after the one that it is compared with.

    Where a value is the default's own, its line repeats the default's. `scored` holds reward and
    advantage of every rollout, see `weighted_sources.scores`.
    """

    def ours(kind: type[NgramDrafter] = NgramDrafter, window: int = 0, **settings: Any) -> Factory:
        kept = window or header.window
        return lambda rows, k: kind(rows, k, History(kept, header.history_bytes), **settings)

    def variant(name: str, make: Factory, *needs: str) -> Variant:
        return Variant(name, make, draft_tokens, DEFAULT, needs)

    def ruled(name: str, *needs: str, **changes: Any) -> Variant:
        return variant(name, ours(rule=DEFAULT_RULE._replace(**changes)), *needs)

    def drafts(k: int, chain: str, blind: str) -> list[Variant]:
        """A chain of k tokens, and trees of as many nodes."""
        unkeyed = DEFAULT_RULE._replace(noise=False)
        return [
            Variant(chain, ours(), k),
            Variant(blind, ours(rule=unkeyed), k, chain),
            Variant(f"tree of {k}", ours(TreeDrafts), k, chain, ("keys",)),
            Variant(f"tree of {k}, without noise", ours(TreeDrafts, rule=unkeyed), k, blind),
        ]

    def weighed(name: str, weigh: Weigh) -> Variant:
        return variant(name, ours(WeightedSources, scored=scored, weigh=weigh), "keys")

    epoch = max(header.steps_per_epoch, 1)
    many = DEFAULT_RULE._replace(followed=32, steps=64)
    twice = 2 * draft_tokens
    return [
        *drafts(draft_tokens, DEFAULT, "without noise"),
        *drafts(twice, f"draft of {twice}", f"draft of {twice}, without noise"),
        *(Variant(f"draft of {k}", ours(), k) for k in (draft_tokens // 4, draft_tokens // 2)),
        variant("drawn drafts", ours(DrawnDrafts), "logps"),
        ruled("without laws", "best", laws=False),
        ruled("counts alone", "best", "keys", laws=False, noise=False),
        ruled("without own text", own_text=False),
        ruled("without pick-up", skipped=0),
        *(ruled(f"followed {n}", followed=n) for n in (1, 4, 8, 16, 32)),
        *(ruled(f"steps {n}", steps=n) for n in (16, 64, 256)),
        *(variant(f"window {n}", ours(window=n)) for n in (8, 16, 32, 64)),
        *(variant(f"best tokens {n}", ours(FewBest, best=n), "best") for n in (1, 2, 4, 8)),
        weighed("all sources alike", lambda source: 1.0),
        weighed("reward x 2", lambda source: 2.0**source.reward),
        weighed("reward x 8", lambda source: 8.0**source.reward),
        weighed("advantage x 2", lambda source: 2.0**source.advantage),
        weighed("advantage x 8", lambda source: 8.0**source.advantage),
        weighed("long sources", lambda source: source.length**2),
        weighed("short sources", lambda source: source.length**-2),
        weighed("half an epoch ago, half", lambda source: 0.25 ** (source.age / epoch)),
        weighed("an epoch ago, half", lambda source: 0.5 ** (source.age / epoch)),
        weighed("this step x 8", lambda source: 8.0 ** (source.age == 0)),
        variant(
            "followed 32, steps 64, reward x 8",
            ours(
                WeightedSources, rule=many, scored=scored, weigh=lambda source: 8.0**source.reward
            ),
            "keys",
        ),
        variant("siblings in flight", ours(WeightedSources, scored=scored, in_flight=True), "keys"),
        variant(ORACLE, OracleChain, "best"),
        variant(CEILING, BestFew, "best"),
    ]
