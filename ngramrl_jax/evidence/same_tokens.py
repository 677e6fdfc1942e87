"""Same tokens: two rollouts with equal keys may part only where rounding decides.

The two differ in the shapes of their matrix products, so their logits differ in the last bits. A
token may then differ where the two best perturbed scores lie within a tolerance of each other, or
where a token lies within it of the edge of top-k or top-p; after it, everything may differ.

Legend: N response tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from ngramrl_jax.evidence.plain_forward import PlainForward
from ngramrl_jax.evidence.subject import Finding, Subject
from ngramrl_jax.protocols import Params
from ngramrl_jax.types import Float32Array, Rollout, Sampling
from ngramrl_jax.verify.adjust import adjusted_log_probs
from ngramrl_jax.verify.keyed import gumbel, position_keys, row_key

TIE = 1e-4  # the tolerance in float32
LEAST_ACCEPTED = 50
_JUDGED_AT_MOST = 40


def parting(one: Rollout, other: Rollout) -> int | None:
    """Index of the first token that differs, None for equal rollouts."""
    assert one.identity == other.identity
    shorter = min(len(one.tokens_N), len(other.tokens_N))
    different = np.flatnonzero(one.tokens_N[:shorter] != other.tokens_N[:shorter])
    if len(different):
        return int(different[0])
    return None if len(one.tokens_N) == len(other.tokens_N) else shorter


def is_near_tie(
    forward: PlainForward,
    params: Params,
    sampling: Sampling,
    seed: int,
    rollout: Rollout,
    at: int,
    tie: float = TIE,
) -> bool:
    """Whether rounding decides response token `at`, judged by the plain forward.

    Args:
        forward: Of the policy that sampled the rollout.
        params: The parameters that it was sampled with.
        sampling: Makes the adjusted distribution.
        seed: Of the run; the rest of the token's key is in the rollout.
        rollout: Only its tokens before `at` are looked at.
        at: Index of the response token.
        tie: Differences that rounding may make (nats).
    """
    text_T = np.concatenate([rollout.prompt_P, rollout.tokens_N[:at]])
    logits_V = forward.next_logits(params, text_T)
    key = row_key(seed, rollout.step, rollout.prompt_id, rollout.sibling, rollout.attempt)
    key_11 = position_keys(key[None], jnp.asarray([len(text_T)], jnp.int32), 1)
    noise_V = gumbel(key_11, len(logits_V))[0, 0]
    logp_V = adjusted_log_probs(jnp.asarray(logits_V), sampling)
    score_V = np.sort(np.asarray(logp_V + noise_V))
    return bool(score_V[-1] - score_V[-2] < tie) or at_edge(logits_V, sampling, tie)


def at_edge(logits_V: Float32Array, sampling: Sampling, tie: float) -> bool:
    """Whether rounding decides which tokens top-k and top-p keep."""
    scaled_V = np.sort(np.asarray(logits_V, np.float64) / (sampling.temperature or 1.0))[::-1]
    edge = False
    if 0 < sampling.top_k < len(scaled_V):
        edge |= bool(scaled_V[sampling.top_k - 1] - scaled_V[sampling.top_k] < tie)
        scaled_V = scaled_V[: sampling.top_k]
    if sampling.top_p < 1.0:
        mass_V = np.cumsum(np.exp(scaled_V - scaled_V.max()))
        edge |= bool(np.abs(mass_V / mass_V[-1] - sampling.top_p).min() < tie)
    return edge


def same_tokens(
    subject: Subject,
    forward: PlainForward,
    plain: Sequence[Rollout],
    drafted: Sequence[Rollout],
    tie: float,
) -> Finding:
    """Compares drafted rollouts with plain decoding under the same keys.

    Args:
        subject: What is examined.
        forward: Of its policy.
        plain: Rollouts decoded plainly.
        drafted: The same requests with drafts, in the same order.
        tie: Differences that rounding may make (nats).
    """
    sampling = subject.settings.sampling
    partings, gaps, compared, accepted = [], [], 0, 0
    for one, other in zip(plain, drafted, strict=True):
        at = parting(one, other)
        until = len(one.tokens_N) if at is None else at
        compared += until
        accepted += int(other.drafted_N[:until].sum())
        gaps.append(np.abs(one.logps_N[:until] - other.logps_N[:until]))
        if at is not None:
            partings.append((one, at))

    def excused(rollout: Rollout, at: int) -> bool:
        return is_near_tie(forward, subject.params, sampling, subject.seed, rollout, at, tie)

    wrong = unexcused(partings, excused)
    gap_N = np.concatenate(gaps) if gaps else np.zeros(0)
    largest = float(gap_N.max(initial=0.0))
    enough = accepted >= LEAST_ACCEPTED
    found = f"{compared:,} equal tokens, {accepted:,} of them accepted drafts; "
    found += f"{len(partings)} of {len(plain)} rollouts part"
    if partings:
        found += ", each at a near-tie" if not wrong else ", not all at near-ties"
    return Finding(
        name="same tokens as plain decoding",
        outcome="fails" if wrong else "holds" if enough else "no power",
        found=f"{found}; log-probabilities differ by at most {largest:.1e}",
        rule=f"partings only at near-ties, {tie:.1e} or closer; {LEAST_ACCEPTED} accepted at least",
        numbers={
            "tokens_equal": compared,
            "drafts_accepted": accepted,
            "rollouts": len(plain),
            "partings": len(partings),
            "partings_not_near_ties": wrong,
            "logp_gap_max": largest,
            "logp_gap_rms": float(np.sqrt(np.mean(gap_N**2))) if len(gap_N) else 0.0,
            "tie": tie,
        },
    )


def unexcused(
    places: Sequence[tuple[Rollout, int]], excused: Callable[[Rollout, int], bool]
) -> int:
    """How many of the places rounding does not explain; looks at the first few only."""
    judged: Iterator[tuple[Rollout, int]] = iter(places[:_JUDGED_AT_MOST])
    return sum(not excused(rollout, at) for rollout, at in judged)
