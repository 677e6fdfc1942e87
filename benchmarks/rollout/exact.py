"""Do the engine's settings change any token? Held against plain decoding with the same keys.

Every value of `draft_length`, and of `prefetch` where the engine has it, on a small transformer
with random weights in float32, on this device. Exit status 1 where a rollout parts from plain
decoding at anything but a near-tie.

    python benchmarks/rollout/exact.py [prompts=32] [group=8] [json=FILE]
"""

import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, cast

sys.path[0] = str(Path(__file__).resolve().parents[2])

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.options import parse_options  # noqa: E402
from ngramrl_jax.evidence.epochs import drafted_epochs, plain_epoch  # noqa: E402
from ngramrl_jax.evidence.plain_forward import PlainForward  # noqa: E402
from ngramrl_jax.evidence.random_policy import RandomPolicy  # noqa: E402
from ngramrl_jax.evidence.same_tokens import TIE, same_tokens  # noqa: E402
from ngramrl_jax.evidence.subject import Effort, Finding, Subject  # noqa: E402
from ngramrl_jax.rollout.settings import EngineSettings  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.metrics import to_json  # noqa: E402

DEFAULTS = {"prompts": 32, "group": 8, "json": ""}
SETTINGS = (
    ("draft_length", "fixed"),
    ("draft_length", "auto"),
    ("prefetch", "off"),
    ("prefetch", "host"),
    ("prefetch", "device"),
)


def subject(prompts: int) -> Subject:
    """The transformer, and random prompts."""
    policy, rng = RandomPolicy(), np.random.default_rng(0)
    texts = [rng.integers(1, policy.vocab_size, rng.integers(3, 17)) for _ in range(prompts)]
    settings = EngineSettings(
        slots=32, draft_tokens=8, max_prompt_tokens=16, max_new_tokens=32, stop_ids=(0,)
    )
    params = policy.init_params(jax.random.key(0))
    ids = [text.astype(np.int32) for text in texts]
    return Subject("random transformer", policy, params, ids, settings)


def examine(one: Subject, effort: Effort) -> dict[str, Finding]:
    """What was found of each setting that the engine has."""
    forward = PlainForward(one.policy, one.settings.capacity)
    plain = plain_epoch(one, effort)
    known = {entry.name for entry in fields(EngineSettings)}
    findings = {}
    for name, value in SETTINGS:
        if name not in known:
            print(f"{name} = {value}: skipped, this engine has no {name}")
            continue
        settings = replace(one.settings, **cast(Any, {name: value}))
        _, drafted = drafted_epochs(replace(one, settings=settings), effort)
        found = same_tokens(one, forward, plain, drafted, TIE)
        findings[f"{name} = {value}"] = found
        print(f"{name} = {value}: {found.outcome}; {found.found}")
    return findings


def main() -> int:
    """The command; returns its exit status."""
    options = parse_options(sys.argv[1:], DEFAULTS)
    effort = Effort(prompts=options["prompts"], group=options["group"])
    findings = examine(subject(options["prompts"]), effort)
    if options["json"]:
        record = {name: asdict(finding) for name, finding in findings.items()}
        Path(options["json"]).write_text(to_json(record, indent=1) + "\n")
    return int(any(finding.outcome == "fails" for finding in findings.values()))


if __name__ == "__main__":
    use_compilation_cache()
    with fail_in_one_line():
        sys.exit(main())
