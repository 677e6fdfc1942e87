"""Ways of decoding by name, and how each is run and measured.

An arm's name may carry settings of the engine: `fixed+prefetch=device`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from time import perf_counter
from typing import Any, cast

import numpy as np

from benchmarks.rollout.workload import Step, Workload
from models.policy import Params, Qwen3Policy
from ngramrl_jax.host.draft import Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.host.peers import PEERS
from ngramrl_jax.host.protocol import Drafter
from ngramrl_jax.rollout.counters import RolloutCounters
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.forced import forced_settings
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import Rollout

KINDS = "plain, again, lookup, suffix, fixed, auto, kN"


class Renewed:
    """A drafter that can be made anew without a new engine."""

    def __init__(self, make: Any) -> None:
        """`make()` gives the drafter."""
        self._make = make
        self.inner: Any = make()

    def renew(self, history: Iterable[Rollout]) -> None:
        """A new drafter that has seen `history`."""
        self.inner = self._make()
        for rollout in history:
            self.inner.observe(rollout.prompt_id, rollout.tokens_N, rollout.step, rollout.best)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class Arm:
    """One way of decoding and what was measured of it, one entry a repeat."""

    name: str
    engine: RolloutEngine
    drafter: Renewed
    seconds: list[float] = field(default_factory=list)
    counters: list[RolloutCounters] = field(default_factory=list)

    def run(
        self,
        params: Params,
        steps: Sequence[Step],
        history: Sequence[Rollout],
        seed: int,
        *,
        timed: bool,
    ) -> None:
        """Says the steps once, beginning with that history."""
        self.drafter.renew(history)
        began = perf_counter()
        counters = []
        for step in steps:
            _, cost = self.engine.generate(
                params, step.requests, seed=seed, step=step.number, policy_version=0
            )
            counters.append(cost)
        if timed:
            self.seconds.append(perf_counter() - began)
            self.counters += counters

    def figures(self, plain: "Arm") -> dict[str, Any]:
        """Medians over the repeats; speeds are ratios to plain decoding in the same repeat."""
        ratios = [a / b for a, b in zip(plain.seconds, self.seconds, strict=True)]
        total = sum(c.committed_tokens for c in self.counters)
        drafted = sum(c.drafted_tokens for c in self.counters)
        rounds = sum(c.row_rounds for c in self.counters)
        forwards = np.sum([c.length_forwards for c in self.counters], axis=0)
        share = forwards / forwards.sum()
        costs = self.engine.round_seconds(self.engine.settings.capacity)
        return {
            "tokens_per_forward": total / rounds,
            "acceptance_rate": sum(c.kept_tokens for c in self.counters) / max(drafted, 1),
            "draft_tokens_used": float(share @ range(len(share))),
            "draft_length_share": {str(k): float(n) for k, n in enumerate(share) if n},
            "tokens_per_s": total / sum(self.seconds),
            "speed_vs_plain": median(ratios),
            "speed_least": min(ratios),
            "speed_most": max(ratios),
            "seconds": list(self.seconds),
            "round_ms": {str(k): 1e3 * taken for k, taken in costs.items()},
        }

    def forget(self) -> None:
        """Drops what was measured."""
        self.seconds.clear()
        self.counters.clear()


def make_arm(
    name: str, policy: Qwen3Policy, workload: Workload, rows: int, draft_tokens: int
) -> Arm | None:
    """The arm of that name; None where it asks for a setting that this engine does not have.

    Raises:
        ValueError: Unknown name, or a value that the engine refuses.
    """
    kind, *changes = name.split("+")
    K = draft_tokens
    if kind[:1] == "k" and kind[1:].isdigit() and int(kind[1:]):
        kind, K = "fixed", int(kind[1:])
    makers = {
        "plain": lambda: NoDrafter(rows),
        "again": lambda: NoDrafter(rows),
        "lookup": lambda: PEERS["prompt_lookup_hf"](rows, K),
        "suffix": lambda: PEERS["suffix_decoding_vllm"](rows, K),
        "fixed": lambda: _ours(workload, rows, K),
        "auto": lambda: _ours(workload, rows, K),
    }
    if kind not in makers:
        raise ValueError(f"arm: found {name}, allowed: {KINDS}, each with +setting=value")
    given = {change.partition("=")[0]: change.partition("=")[2] for change in changes}
    if not given.keys() <= {entry.name for entry in fields(EngineSettings)}:
        return None
    settings = EngineSettings(
        slots=rows,
        draft_tokens=0 if kind in ("plain", "again") else K,
        draft_length="auto" if kind == "auto" else "fixed",
        max_prompt_tokens=workload.max_prompt_tokens,
        max_new_tokens=workload.max_new_tokens,
        stop_ids=workload.stop_ids,
        prefix_entries=64,
    )
    typed = {n: int(v) if v.isdigit() else v for n, v in given.items()}
    drafter = Renewed(makers[kind])
    engine = RolloutEngine(
        policy, cast(Drafter, drafter), forced_settings(replace(settings, **cast(Any, typed)))
    )
    return Arm(name, engine, drafter)


def _ours(workload: Workload, rows: int, draft_tokens: int) -> Drafter:
    rule = Rule(noise=workload.shares_noise)
    history = History(window=32)
    return NgramDrafter(rows, draft_tokens, history, rule, stop_ids=workload.stop_ids)
