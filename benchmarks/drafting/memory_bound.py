"""More rollouts than a bounded history can hold: does it keep its bound, the newest, its speed?

Legend: R rollouts, N tokens of one.
"""

from dataclasses import dataclass
from pathlib import Path
from time import thread_time

import numpy as np

from benchmarks.drafting.synthetic_rollouts import PromptRollouts
from ngramrl_jax.host.history import History

MEGABYTE = 2**20
TEXTS = 389  # a prime, so that neighbouring prompts and steps have different texts


@dataclass(frozen=True)
class Outcome:
    """What a history did under its bound.

    Attributes:
        pushed_tokens: Tokens that went in.
        kept_rollouts: Those left at the end.
        kept_the_newest: Whether these are exactly the last ones that came, whole.
        most_mb: Most that the history held after any rollout, by its own account.
        resident_mb: What the process had gained in memory at the end.
        us_per_token: Processor time of insertion by eighth of the rollouts, in microseconds.
        longest_s: Longest insertion of one rollout, in seconds of processor time.
    """

    pushed_tokens: int
    kept_rollouts: int
    kept_the_newest: bool
    most_mb: float
    resident_mb: float
    us_per_token: list[float]
    longest_s: float


def push_through(prompts: int, group: int, tokens: int, max_bytes: int) -> Outcome:
    """Steps through all prompts `group` times, a rollout each, as training would."""
    rng = np.random.default_rng(0)
    texts = [PromptRollouts(rng, tokens).draw() for _ in range(TEXTS)]
    history = History(group, max_bytes)
    seconds_R = np.zeros(group * prompts)
    most, before = 0, _resident_bytes()
    for r in range(seconds_R.size):
        tokens_N, best = texts[r % TEXTS]
        begun = thread_time()
        history.observe(r % prompts, tokens_N, r // prompts, best)
        seconds_R[r] = thread_time() - begun
        most = max(most, history.history_bytes)
    resident = _resident_bytes() - before
    return Outcome(
        pushed_tokens=seconds_R.size * tokens,
        kept_rollouts=history.history_tokens // tokens,
        kept_the_newest=_holds_the_newest(history, seconds_R.size, prompts, texts),
        most_mb=most / MEGABYTE,
        resident_mb=resident / MEGABYTE,
        us_per_token=[1e6 * e.mean() / tokens for e in np.array_split(seconds_R, 8)],
        longest_s=float(seconds_R.max()),
    )


def _holds_the_newest(history: History, pushed: int, prompts: int, texts: list) -> bool:
    stored = history.snapshot()  # its first entry is a dummy
    kept_R = np.arange(pushed - stored["step_R"].size + 1, pushed)
    expected = {
        "prompt_id_R": kept_R % prompts,
        "step_R": kept_R // prompts,
        "tokens_X": np.concatenate([texts[r % TEXTS][0] for r in kept_R]),
    }
    return all(np.array_equal(stored[name][1:], array) for name, array in expected.items())


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096
