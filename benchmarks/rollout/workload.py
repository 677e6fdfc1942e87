"""What the rollout benchmarks let an engine say: the steps of a recorded run, or made-up ones.

Legend: N response tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.drafting.synthetic_rollouts import PromptRollouts
from ngramrl_jax.replay.source import WARM_PERCENT, open_source
from ngramrl_jax.rollout.forced import forced_requests
from ngramrl_jax.types import BestTokens, Rollout, RolloutRequest

SYNTHETIC = "synthetic"
_STOP = 0
_PROMPTS, _GROUP, _TOKENS, _STEPS = 16, 8, 40, 8


@dataclass(frozen=True)
class Step:
    """Rollouts to be said.

    Attributes:
        number: Of the recorded step, for its noise.
        requests: In the order in which they started.
    """

    number: int
    requests: Sequence[RolloutRequest]


@dataclass(frozen=True)
class Workload:
    """A recorded run, cut to what is to be said.

    Attributes:
        steps: All rollouts by step, in order.
        stop_ids: What ends a response.
        max_prompt_tokens: Longest prompt.
        max_new_tokens: Longest response.
        seed: Of the run.
        shares_noise: Whether the tokens were drawn with the rows' keys.
    """

    steps: Sequence[tuple[int, Sequence[Rollout]]]
    stop_ids: tuple[int, ...]
    max_prompt_tokens: int
    max_new_tokens: int
    seed: int
    shares_noise: bool

    def phase(self, name: str, steps: int, prompts: int) -> tuple[list[Step], list[Rollout]]:
        """`steps` steps of `prompts` groups each, and the history that they begin with.

        Cold ones are the first, without history; warm ones the last, with all that came before.
        Of a warm phase only the last 30 % of the run are taken.
        """
        warm = max(1, -(-len(self.steps) * WARM_PERCENT // 100))
        chosen = self.steps[:steps] if name == "cold" else self.steps[-min(steps, warm) :]
        first = chosen[0][0]
        before = [r for number, rollouts in self.steps if number < first for r in rollouts]
        return [
            Step(number, forced_requests(_some(rollouts, prompts), self.max_new_tokens))
            for number, rollouts in chosen
        ], before


def open_workload(trace: str, vocab: int) -> Workload:
    """The trace of a run folder, or made-up rollouts where `trace` is `synthetic`.

    Raises:
        ValueError: There is no trace, or its ids are not below `vocab`.
    """
    if trace == SYNTHETIC:
        return _synthetic(vocab)
    source = open_source(Path(trace))
    steps = [(step.step, list(step.rollouts)) for step in source.steps()]
    every = [rollout for _, rollouts in steps for rollout in rollouts]
    most = max(int(max(r.tokens_N.max(), r.prompt_P.max())) for r in every)
    if most >= vocab:
        raise ValueError(f"trace: found ids up to {most}, allowed: below the shape's {vocab}")
    return Workload(
        steps=steps,
        stop_ids=tuple({int(r.tokens_N[-1]) for r in every if not r.truncated}),
        max_prompt_tokens=max(len(r.prompt_P) for r in every),
        max_new_tokens=source.header.max_new_tokens,
        seed=source.header.seed,
        shares_noise=source.header.shares_noise,
    )


def _some(rollouts: Sequence[Rollout], prompts: int) -> list[Rollout]:
    chosen = list(dict.fromkeys(r.prompt_id for r in rollouts))[:prompts]
    return [rollout for rollout in rollouts if rollout.prompt_id in chosen]


def _synthetic(vocab: int) -> Workload:
    rng = np.random.default_rng(0)
    texts = [PromptRollouts(rng, _TOKENS) for _ in range(_PROMPTS)]
    steps = []
    for step in range(_STEPS):
        rollouts = []
        for sibling in range(_GROUP):
            for prompt_id, text in enumerate(texts):
                tokens_N, best = text.draw()
                tokens_N = 1 + tokens_N % (vocab - 1)
                tokens_N[-1] = _STOP
                best = BestTokens(1 + best.ids_NR % (vocab - 1), best.logps_NR)
                prompt_P = np.full(8 + prompt_id, 1, np.int32)
                blank_N = np.zeros(len(tokens_N), np.float32)
                rollout = Rollout(
                    prompt_id, sibling, prompt_P, tokens_N, blank_N, blank_N > 0, False, 0, step, 0
                )
                rollouts.append(replace(rollout, best=best, started=sibling, slot=prompt_id))
        steps.append((step, rollouts))
    return Workload(steps, (_STOP,), 8 + _PROMPTS, _TOKENS, seed=0, shares_noise=False)
