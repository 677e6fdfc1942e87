"""Same law: at real contexts, what rounds commit follows the policy's own distribution.

At each of a few contexts, many responses of four tokens are sampled with drafts of three kinds. The
law of the next token is known there from plain forwards, behind the context and behind each step of
its likeliest continuation, so the tokens at every place of a draft and the one after it are tested.

Legend: P context tokens, D places of a response, V vocabulary, N draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ngramrl_jax.evidence.drafters import HostileDrafter, ScriptedDrafter
from ngramrl_jax.evidence.epochs import requests_for
from ngramrl_jax.evidence.plain_forward import PlainForward, Told, law
from ngramrl_jax.evidence.subject import Effort, Finding, Subject
from ngramrl_jax.host.draft import Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.protocol import Drafter
from ngramrl_jax.protocols import Params
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.round import VerifierName
from ngramrl_jax.stats import ChiSquareResult, chi_square, holm, total_variation
from ngramrl_jax.types import Int32Array, Rollout

DRAFTED = 3
KINDS = ("history", "second best", "hostile")
_FIRST_STEP = 100  # noise of its own, apart from the epochs'


@dataclass(frozen=True)
class Context:
    """A place where the law is known.

    Attributes:
        tokens_P: int32, a prompt and the start of a rollout.
        law_DV: float64 probabilities of the next token behind the context and `path_D[:d]`.
        path_D: int32, the likeliest token at each place that does not end the response.
        second_D: int32, the next likeliest, a plausible wrong draft.
    """

    tokens_P: Int32Array
    law_DV: np.ndarray
    path_D: Int32Array
    second_D: Int32Array


def choose_contexts(
    subject: Subject,
    forward: PlainForward,
    shaken_params: Params,
    rollouts: Sequence[Rollout],
    told: Sequence[Told],
    count: int,
) -> list[Context]:
    """The most open stretches of the rollouts, one a prompt: where the law has most to say.

    Places where shaking the weights changes which tokens top-k and top-p keep are passed over:
    there the law itself is a matter of rounding.
    """
    most = max(1, subject.settings.max_new_tokens - DRAFTED)
    best: dict[int, tuple[float, Rollout, int]] = {}
    for rollout, said in zip(rollouts, told, strict=True):
        ahead_N = np.convolve(said.entropy_N, np.ones(DRAFTED + 1))[DRAFTED:]
        at = int(np.argmax(ahead_N[:most]))
        entropy = float(ahead_N[at])
        if entropy > best.get(rollout.prompt_id, (-1.0,))[0]:
            best[rollout.prompt_id] = entropy, rollout, at
    contexts: list[Context] = []
    for _, rollout, at in sorted(best.values(), key=lambda place: -place[0]):
        text_P = np.concatenate([rollout.prompt_P, rollout.tokens_N[:at]])
        context = _context(subject, forward, subject.params, text_P)
        again = _context(subject, forward, shaken_params, text_P, context.path_D)
        if np.array_equal(context.law_DV > 0, again.law_DV > 0):
            contexts.append(context)
        if len(contexts) == count:
            break
    return contexts


def draw(
    subject: Subject,
    contexts: Sequence[Context],
    kind: str,
    draws: int,
    verifier: VerifierName,
) -> list[Rollout]:
    """Samples `draws` short responses behind every context with one kind of draft."""
    settings = replace(
        subject.settings,
        draft_tokens=DRAFTED,
        max_prompt_tokens=max(len(context.tokens_P) for context in contexts),
        max_new_tokens=DRAFTED + 1,
        prefix_entries=len(contexts),
        verifier=verifier,
        draft_shape="chain",
    )
    drafter = _drafter(kind, subject, contexts)
    engine = RolloutEngine(subject.policy, drafter, settings)
    requests = requests_for([one.tokens_P for one in contexts], draws, DRAFTED + 1)
    step = _FIRST_STEP + KINDS.index(kind)
    rollouts, _ = engine.generate(
        subject.params, requests, seed=subject.seed, step=step, policy_version=0
    )
    return rollouts


def goodness_of_fit(context: Context, responses: Sequence[Rollout]) -> list[ChiSquareResult]:
    """One chi-square test a place, on the responses that follow the likeliest path up to it."""
    results = []
    for place, law_V in enumerate(context.law_DV):
        counts_V = _counts(context, responses, place)
        results.append(chi_square(counts_V, law_V))
    return results


def same_law(
    subject: Subject,
    contexts: Sequence[Context],
    effort: Effort,
    verifier: VerifierName | None = None,
) -> Finding:
    """Draws with every kind of draft and tests each place of each context.

    Args:
        subject: What is examined.
        contexts: From `choose_contexts`.
        effort: Draws and alpha; the chance of a false alarm over all tests is at most alpha.
        verifier: That of the subject's settings by default.
    """
    verifier = verifier or subject.settings.verifier
    results: list[ChiSquareResult] = []
    drawn, accepted, distance = 0, 0, 0.0
    for kind in KINDS if contexts else ():
        rollouts = draw(subject, contexts, kind, effort.draws, verifier)
        drawn += sum(len(rollout.tokens_N) for rollout in rollouts)
        accepted += sum(int(rollout.drafted_N.sum()) for rollout in rollouts)
        for number, context in enumerate(contexts):
            responses = rollouts[number * effort.draws : (number + 1) * effort.draws]
            results += goodness_of_fit(context, responses)
            first_V = _counts(context, responses, 0)
            distance = max(distance, total_variation(first_V, context.law_DV[0]))
    tested = [one for one in results if one.dof > 0]
    alarms = sum(holm([one.p_value for one in tested], effort.alpha))
    smallest = min((one.p_value for one in tested), default=1.0)
    return Finding(
        name="same law of the next token",
        outcome="fails" if alarms else "holds" if tested else "no power",
        found=f"{drawn:,} tokens drawn ({accepted:,} accepted drafts) at {len(contexts)} contexts; "
        f"{alarms} of {len(tested)} chi-square tests reject, smallest p {smallest:.2g}",
        rule=f"Holm over {len(tested)} tests at alpha {effort.alpha:g}; {verifier} verifier, "
        f"drafts: {', '.join(KINDS)}",
        numbers={
            "contexts": len(contexts),
            "draws_per_context_and_kind": effort.draws,
            "tokens_drawn": drawn,
            "drafts_accepted": accepted,
            "tests": len(tested),
            "degrees_of_freedom": sum(one.dof for one in tested),
            "rejected": alarms,
            "smallest_p": smallest,
            "total_variation_max": distance,
            "alpha": effort.alpha,
        },
    )


def _context(
    subject: Subject,
    forward: PlainForward,
    params: Params,
    text_P: Int32Array,
    path_D: Int32Array | None = None,
) -> Context:
    """The laws along a path, by default the likeliest one."""
    laws, path, second = [], [], []
    for place in range(DRAFTED + 1):
        text = np.concatenate([text_P, np.asarray(path, np.int32)])
        law_V = law(forward.next_logits(params, text), subject.settings.sampling)
        order = np.argsort(-law_V, kind="stable")
        order = order[~np.isin(order, subject.settings.stop_ids)]
        laws.append(law_V)
        path.append(order[0] if path_D is None else path_D[place])
        second.append(order[min(1, len(order) - 1)])
    return Context(text_P, np.stack(laws), np.asarray(path, np.int32), np.asarray(second, np.int32))


def _counts(context: Context, responses: Sequence[Rollout], place: int) -> np.ndarray:
    """How often each token stands at `place` behind the likeliest path."""
    path = context.path_D[:place]
    tokens = [
        one.tokens_N[place]
        for one in responses
        if len(one.tokens_N) > place and np.array_equal(one.tokens_N[:place], path)
    ]
    return np.bincount(np.asarray(tokens, np.int64), minlength=context.law_DV.shape[1])


def _drafter(kind: str, subject: Subject, contexts: Sequence[Context]) -> Drafter:
    rows = subject.settings.slots
    if kind == "history":
        # Blind to the noise: its drafts fail often enough to show what verification does then.
        return NgramDrafter(rows, DRAFTED, History(window=64), Rule(noise=False))
    if kind == "second best":
        script = {number: one.second_D for number, one in enumerate(contexts)}
        return ScriptedDrafter(rows, DRAFTED, script)
    return HostileDrafter(rows, DRAFTED, subject.policy.vocab_size, subject.seed)
