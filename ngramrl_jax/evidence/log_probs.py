"""Same log-probabilities: what the rollouts recorded is what a plain forward says.

Legend: N response tokens, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np

from ngramrl_jax.evidence.plain_forward import PlainForward, Told
from ngramrl_jax.evidence.rounding import Rounding
from ngramrl_jax.evidence.same_tokens import at_edge, unexcused
from ngramrl_jax.evidence.subject import Finding, Subject
from ngramrl_jax.types import Rollout


def log_probs(
    subject: Subject,
    forward: PlainForward,
    rollouts: Sequence[Rollout],
    told: Sequence[Told],
    rounding: Rounding,
) -> Finding:
    """Compares recorded log-probabilities with those of the plain forward.

    Args:
        subject: What is examined.
        forward: Of its policy.
        rollouts: Drafted rollouts.
        told: The plain forward's word on them; the first id asked about is the token itself.
        rounding: What rounding may do. A larger difference is excused where rounding moves a
            token over the edge of top-k or top-p, which changes the others' share.
    """

    def excused(rollout: Rollout, at: int) -> bool:
        text_T = np.concatenate([rollout.prompt_P, rollout.tokens_N[:at]])
        logits_V = forward.next_logits(subject.params, text_T)
        return at_edge(logits_V, subject.settings.sampling, rounding.tie)

    far, gaps = [], []
    for rollout, said in zip(rollouts, told, strict=True):
        gap_N = np.abs(rollout.logps_N - said.logp_NC[:, 0])
        far.extend((rollout, int(at)) for at in np.flatnonzero(~(gap_N <= rounding.tie)))
        gaps.append(gap_N)
    gap_N = np.concatenate(gaps)
    inside_N = gap_N[gap_N <= rounding.tie]
    wrong = unexcused(far, excused)
    rms = float(np.sqrt(np.mean(inside_N**2))) if len(inside_N) else 0.0
    largest = float(gap_N[np.isfinite(gap_N)].max(initial=0.0))
    found = f"{len(gap_N):,} tokens: differences of {rms:.1e} (root mean square), at most "
    found += f"{largest:.1e}"
    if far:
        found += f"; {len(far)} beyond the tolerance, "
        found += f"{wrong} or more unexplained" if wrong else "each at an edge of top-k or top-p"
    return Finding(
        name="same log-probabilities as a plain forward",
        outcome="fails" if wrong or rms > rounding.rms else "holds",
        found=found,
        rule="what rounding can do to this policy: "
        f"{rounding.rms:.1e} (root mean square), {rounding.tie:.1e} at most",
        numbers={
            "tokens": len(gap_N),
            "gap_rms": rms,
            "gap_max": largest,
            "gap_mean": float(np.mean(inside_N)) if len(inside_N) else 0.0,
            "beyond_tolerance": len(far),
            "unexplained": wrong,
            "gap_rms_allowed": rounding.rms,
            "gap_allowed": rounding.tie,
        },
    )
