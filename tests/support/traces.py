"""Steps of random rollouts, and equality of steps."""

import numpy as np

from ngramrl_jax.trace.records import TracedStep, TraceHeader
from ngramrl_jax.types import BestTokens, Rollout

HEADER = TraceHeader(slots=4, draft_tokens=4, max_new_tokens=20, steps_per_epoch=3)


def random_step(step: int, *, prompts=3, group=4, best=2, longest=20, vocab=50) -> TracedStep:
    rng = np.random.default_rng(step)
    rollouts = []
    for prompt_id in range(prompts):
        prompt_P = rng.integers(0, vocab, 1 + prompt_id, dtype=np.int32)
        for sibling in range(group):
            length = int(rng.integers(1, longest + 1))
            tokens_N = rng.integers(0, vocab, length, dtype=np.int32)
            rollouts.append(
                Rollout(
                    prompt_id=prompt_id,
                    sibling=sibling,
                    prompt_P=prompt_P,
                    tokens_N=tokens_N,
                    logps_N=-rng.random(length, np.float32),
                    drafted_N=rng.random(length) < 0.5,
                    truncated=length == longest,
                    policy_version=step,
                    step=step,
                    rounds=length,
                    attempt=int(rng.integers(2)),
                    best=_best(rng, tokens_N, best, vocab),
                    slot=sibling,
                    started=prompt_id,
                    finished=prompt_id + 1,
                )
            )
    return TracedStep(step, rollouts, rng.random(len(rollouts)).astype(np.float32))


def _best(rng, tokens_N, width, vocab):
    """A target that nearly always says what it did say."""
    if not width:
        return None
    shape = (len(tokens_N), width)
    ids_NR = rng.integers(0, vocab, shape, dtype=np.int32)
    ids_NR[:, 0] = tokens_N
    logps_NR = np.sort(-5 - rng.random(shape).astype(np.float32), axis=1)[:, ::-1].copy()
    logps_NR[:, 0] = -0.05
    return BestTokens(ids_NR, logps_NR)


def assert_same_step(one: TracedStep, other: TracedStep) -> None:
    assert one.step == other.step
    np.testing.assert_array_equal(one.reward_N, other.reward_N)
    for a, b in zip(one.rollouts, other.rollouts, strict=True):
        for name, value in vars(a).items():
            if name == "best":
                assert (a.best is None) == (b.best is None)
                if a.best is not None and b.best is not None:
                    np.testing.assert_array_equal(a.best.ids_NR, b.best.ids_NR)
                    np.testing.assert_array_equal(a.best.logps_NR, b.best.logps_NR)
            else:
                np.testing.assert_array_equal(value, getattr(b, name), err_msg=name)
