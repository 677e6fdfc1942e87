"""The whole examination of one subject, from samples to a verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

import jax
import numpy as np

from ngramrl_jax.evidence import faults
from ngramrl_jax.evidence.epochs import drafted_epochs, plain_epoch
from ngramrl_jax.evidence.independence import PAIRS, Repeats, asked_ids, independence, repeats
from ngramrl_jax.evidence.law import Context, choose_contexts, same_law
from ngramrl_jax.evidence.log_probs import log_probs
from ngramrl_jax.evidence.plain_forward import PlainForward, Told
from ngramrl_jax.evidence.rounding import Rounding, last_place, rounding_of, shaken
from ngramrl_jax.evidence.same_tokens import TIE, same_tokens
from ngramrl_jax.evidence.subject import Effort, Finding, Subject
from ngramrl_jax.types import Int32Array, Rollout

_SHAKEN_ROLLOUTS = 64

Conclusion = Literal["lossless", "not lossless", "no power"]


@dataclass(frozen=True)
class Caught:
    """What became of one planted fault.

    Attributes:
        fault: What was done to the engine.
        check: The check that has to see it.
        caught: Whether it did.
        found: What it saw.
    """

    fault: str
    check: str
    caught: bool
    found: str


@dataclass(frozen=True)
class Verdict:
    """All that was found about one subject.

    Attributes:
        subject: Its name.
        dtype: As given.
        device: Kind of the device.
        rounding: What rounding may do to log-probabilities here.
        findings: One a check.
        planted: One a planted fault and check; empty where a check failed already.
        notes: What can and what cannot be equal in this arithmetic.
        seconds: Wall clock.
    """

    subject: str
    dtype: str
    device: str
    rounding: Rounding
    findings: tuple[Finding, ...]
    planted: tuple[Caught, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def conclusion(self) -> Conclusion:
        """Lossless only if every check holds and every planted fault was caught."""
        if any(finding.outcome == "fails" for finding in self.findings):
            return "not lossless"
        idle = any(finding.outcome == "no power" for finding in self.findings)
        blind = any(not one.caught for one in self.planted)
        return "no power" if idle or blind else "lossless"


def examine(
    subject: Subject, effort: Effort, say: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Runs every check on the subject, then every planted fault through the same checks.

    Args:
        subject: What is examined.
        effort: How much is sampled.
        say: Told what is being done.

    Raises:
        ValueError: The settings do not fit the subject, or its logits are not finite.
    """
    started = perf_counter()
    examination = _Examination(subject, effort)
    findings = examination.checks(say)
    failed = any(finding.outcome == "fails" for finding in findings)
    planted = () if failed else examination.planted(say)
    return Verdict(
        subject=subject.name,
        dtype=subject.dtype,
        device=jax.devices()[0].device_kind,
        rounding=examination.rounding,
        findings=findings,
        planted=planted,
        notes=_notes(subject, examination.rounding.tie, findings[0]),
        seconds=perf_counter() - started,
    )


class _Examination:
    """What the checks share: the samples, the reference and the tolerance."""

    def __init__(self, subject: Subject, effort: Effort) -> None:
        self.subject, self.effort = subject, effort
        self._forward = PlainForward(subject.policy, subject.settings.capacity)
        self._plain: list[Rollout] = []
        self._contexts: list[Context] = []
        self._pairs: dict[str, Repeats] = {}
        self.rounding = Rounding(TIE, TIE)

    def checks(self, say: Callable[[str], None]) -> tuple[Finding, ...]:
        subject, forward = self.subject, self._forward
        say("sampling two epochs with drafts, one without")
        first, second = drafted_epochs(subject, self.effort)
        self._plain = plain_epoch(subject, self.effort)
        say("running the rollouts through plain forwards")
        told, asked = self._told(first, second)
        self._pairs = repeats(second, told, asked)
        shaken_params = shaken(
            subject.params, np.float32(last_place(subject.dtype)), jax.random.key(subject.seed)
        )
        few = self._plain[:: max(1, len(self._plain) // _SHAKEN_ROLLOUTS)]
        self.rounding = rounding_of(
            forward, subject.params, shaken_params, few, subject.settings.sampling
        )
        say("drawing next tokens at real contexts")
        self._contexts = choose_contexts(
            subject, forward, shaken_params, second, told, self.effort.prefixes
        )
        return (
            same_tokens(subject, forward, self._plain, second, self.rounding.tie),
            same_law(subject, self._contexts, self.effort),
            independence(self._pairs, self.effort.alpha),
            log_probs(subject, forward, second, told, self.rounding),
        )

    def planted(self, say: Callable[[str], None]) -> tuple[Caught, ...]:
        say("planting faults: residual")
        with faults.planted(*faults.RESIDUAL):
            law = same_law(self.subject, self._contexts, self.effort, "rejection")
        say("planting faults: early logits")
        with faults.planted(*faults.EARLY_LOGITS):
            first, early = drafted_epochs(self.subject, self.effort)
        told, _ = self._told(first, early)
        tokens = same_tokens(self.subject, self._forward, self._plain, early, self.rounding.tie)
        logps = log_probs(self.subject, self._forward, early, told, self.rounding)
        say("planting faults: shared keys")
        with faults.planted(*faults.SHARED_KEYS):
            first, second = drafted_epochs(self.subject, self.effort)
        pairs = independence(repeats(second, *self._told(first, second)), self.effort.alpha)
        early_logits = "behind a draft token, the logits of the place before are used"
        return (
            _caught("a rejected draft is replaced by a draw from p, not from the residual", law),
            _caught(early_logits, tokens),
            _caught(early_logits, logps),
            *(
                Caught(
                    fault="one noise for sibling pairs, steps, prompts and positions",
                    check=f"independent {name}",
                    caught=bool(pairs.numbers[f"{name}_rejected"]),
                    found=f"{pairs.numbers[f'{name}_observed']:,} repeats, expected "
                    f"{pairs.numbers[f'{name}_expected']:,.1f}",
                )
                for name in PAIRS
                if self._pairs[name].telling
            ),
        )

    def _told(
        self, first: list[Rollout], second: list[Rollout]
    ) -> tuple[list[Told], list[Int32Array]]:
        asked = asked_ids(first, second)
        sampling = self.subject.settings.sampling
        return self._forward.score(self.subject.params, second, asked, sampling), asked


def _caught(fault: str, finding: Finding) -> Caught:
    return Caught(fault, finding.name, finding.outcome == "fails", finding.found)


def _notes(subject: Subject, tie: float, tokens: Finding) -> tuple[str, ...]:
    """What rounding allows, in words."""
    gap, partings = tokens.numbers["logp_gap_max"], int(tokens.numbers["partings"])
    shapes = (
        f"A drafted round runs {subject.settings.draft_tokens + 1} tokens of a row at once, plain "
        f"decoding one: products of other shapes round differently, so the log-probability of the "
        f"same token differed by up to {gap:.1e}. Shaking each weight by one unit in the last "
        f"place of {subject.dtype} allows {tie:.1e}."
    )
    if subject.dtype == "float32":
        return (shapes,)
    return (
        shapes,
        f"In {subject.dtype} equal keys need not give equal texts: two runs part where the two "
        f"best scores are closer than that, and say different things afterwards ({partings} of "
        f"{int(tokens.numbers['rollouts'])} rollouts here). Such partings are counted, not called "
        "failures: each text is still a draw from the law of its own round. What must hold in any "
        "arithmetic, and is tested here without regard to shapes, are the law and independence.",
    )
