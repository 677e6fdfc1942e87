"""The verdict: right for a right engine, wrong for every fault, silent where it could not see.

Every examination is at alpha 1e-3 for each of its two statistical checks, with fixed seeds.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.evidence import faults, verdict
from ngramrl_jax.evidence.epochs import drafted_epochs
from ngramrl_jax.evidence.law import same_law
from ngramrl_jax.evidence.log_probs import log_probs
from ngramrl_jax.evidence.plain_forward import PlainForward, Told
from ngramrl_jax.evidence.rounding import Rounding
from ngramrl_jax.evidence.subject import Effort, Subject
from ngramrl_jax.evidence.table_policy import TablePolicy, random_table
from ngramrl_jax.evidence.verdict import examine
from ngramrl_jax.rollout import round
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import Sampling
from ngramrl_jax.verify.coupled import verify_coupled
from ngramrl_jax.verify.verdict import accepted_prefix, with_log_probs

V = 8
EFFORT = Effort(prompts=16, group=8, prefixes=2, draws=400)
PROMPTS = [np.asarray([1 + i % 7, 1 + i // 7], np.int32) for i in range(16)]
SETTINGS = EngineSettings(
    slots=16,
    draft_tokens=4,
    max_prompt_tokens=2,
    max_new_tokens=12,
    stop_ids=(0,),
    sampling=Sampling(0.9, top_p=0.95),
)


def subject(policy=None, **changes) -> Subject:
    settings = replace(SETTINGS, **changes)
    table = jnp.asarray(random_table(V, seed=3, spread=2.0))
    return Subject("table", policy or TablePolicy(V), table, PROMPTS, settings, seed=7)


def outcomes(found) -> dict[str, str]:
    return {finding.name: finding.outcome for finding in found.findings}


@pytest.mark.stat
@pytest.mark.slow
def test_a_right_engine_is_lossless_and_every_planted_fault_is_caught():
    said = []
    found = examine(subject(), EFFORT, said.append)
    assert set(outcomes(found).values()) == {"holds"}
    assert [one.caught for one in found.planted] == [True] * 7
    assert found.conclusion == "lossless"
    assert len(said) == 6
    tokens = found.findings[0].numbers
    assert tokens["partings"] == 0
    assert tokens["drafts_accepted"] > 0.2 * tokens["tokens_equal"]


@pytest.mark.stat
def test_the_other_verifier_has_the_same_law_and_a_missed_fault_is_no_power(monkeypatch):
    monkeypatch.setattr(faults, "RESIDUAL", ())
    monkeypatch.setattr(faults, "EARLY_LOGITS", ())
    monkeypatch.setattr(faults, "SHARED_KEYS", ())
    found = examine(subject(verifier="rejection"), replace(EFFORT, prompts=8, draws=200))
    assert set(outcomes(found).values()) == {"holds"}
    assert not any(one.caught for one in found.planted)
    assert found.conclusion == "no power"


class StalePolicy(TablePolicy):
    """Does not write over a position that a rejected draft token has taken."""

    def forward(self, params, tokens_BT, position_B, cache, *, live):
        logits, new = super().forward(params, tokens_BT, position_B, cache, live=live)
        return logits, jnp.where(cache >= 0, cache, new)

    def insert(self, cache, prefixes, source_B, slot_B):
        empty = cache.at[slot_B].set(-1, mode="drop")
        return super().insert(empty, prefixes, source_B, slot_B)


class StrangerPolicy(TablePolicy):
    """A row starts from whichever prompt was stored first."""

    def insert(self, cache, prefixes, source_B, slot_B):
        return super().insert(cache, prefixes, jnp.zeros_like(source_B), slot_B)


@pytest.mark.stat
@pytest.mark.parametrize("policy", [StalePolicy, StrangerPolicy])
def test_a_policy_with_a_broken_cache_is_not_lossless(policy):
    found = examine(subject(policy(V)), replace(EFFORT, draws=100))
    assert found.conclusion == "not lossless"
    assert found.planted == ()
    assert outcomes(found)["same log-probabilities as a plain forward"] == "fails"


def accepts_the_likeliest(logp_BTV, draft_BK, length_B, noise_BTV):
    """Drafts that equal the arg-max are accepted at temperature 1 (CASES B3)."""
    best_BK = jnp.argmax(logp_BTV[:, :-1], axis=-1).astype(jnp.int32)
    accepted_B = accepted_prefix(best_BK == draft_BK, length_B)
    sampled_BT = jnp.argmax(logp_BTV + noise_BTV, axis=-1).astype(jnp.int32)
    offset_1T = jnp.arange(sampled_BT.shape[1])[None]
    draft_BT = jnp.pad(draft_BK, ((0, 0), (0, 1)))
    tokens_BT = jnp.where(offset_1T < accepted_B[:, None], draft_BT, sampled_BT)
    return with_log_probs(tokens_BT, accepted_B, logp_BTV)


def forgets_the_temperature(logp_BTV, draft_BK, length_B, noise_BTV):
    """Right tokens, log-probabilities of another law."""
    said = verify_coupled(logp_BTV, draft_BK, length_B, noise_BTV)
    return said._replace(logp_BT=said.logp_BT * 1.01)


@pytest.mark.stat
@pytest.mark.parametrize(
    ("fault", "failing"),
    [
        (accepts_the_likeliest, {"same tokens as plain decoding", "same law of the next token"}),
        (forgets_the_temperature, {"same log-probabilities as a plain forward"}),
    ],
)
def test_a_wrong_verifier_is_not_lossless(monkeypatch, fault, failing):
    monkeypatch.setattr(round, "verify_coupled", fault)
    found = examine(subject(), EFFORT)
    assert found.conclusion == "not lossless"
    assert {name for name, outcome in outcomes(found).items() if outcome == "fails"} >= failing


@pytest.mark.stat
def test_without_accepted_drafts_nothing_is_shown():
    flat = Subject("flat", TablePolicy(64), jnp.zeros((64,) * 3), PROMPTS, SETTINGS)
    found = examine(flat, Effort(prompts=2, group=2, prefixes=1, draws=20))
    assert outcomes(found)["same tokens as plain decoding"] == "no power"
    assert found.conclusion == "no power"


def test_a_small_shift_of_all_log_probabilities_is_seen_where_rounding_is_coarse():
    """In bfloat16 one token may be 0.5 off, but not all of them 0.05."""
    one = subject()
    texts, _ = drafted_epochs(one, Effort(prompts=2, group=2))
    coarse = Rounding(rms=0.02, tie=0.5)
    for shift, outcome in ((0.01, "holds"), (0.05, "fails")):
        told = [Told(text.logps_N[:, None] + shift, text.logps_N) for text in texts]
        assert log_probs(one, PlainForward(one.policy, 18), texts, told, coarse).outcome == outcome


def test_a_context_that_is_missing_is_no_power():
    assert same_law(subject(), [], EFFORT).outcome == "no power"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"draft_tokens": 0}, "draft_tokens: found 0"),
        ({"sampling": Sampling(0.0)}, "temperature: found arg-max"),
    ],
)
def test_settings_that_leave_nothing_to_examine_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        subject(**change)


def test_logits_that_are_not_finite_are_named():
    broken = replace(subject(), params=jnp.full((V,) * 3, jnp.nan))
    with pytest.raises(ValueError, match="found logits that are not finite"):
        examine(broken, EFFORT)


def test_the_engine_is_whole_again_after_a_planted_fault():
    proper = round.verify_coupled
    with faults.planted(*faults.EARLY_LOGITS):
        assert round.verify_coupled is not proper
    assert round.verify_coupled is proper


def test_bfloat16_says_what_cannot_be_equal():
    one = subject()
    finding = replace(
        verdict.same_tokens(one, PlainForward(one.policy, 18), [], [], 0.1),
        numbers={"logp_gap_max": 0.01, "partings": 3, "rollouts": 9},
    )
    notes = verdict._notes(replace(one, dtype="bfloat16"), 0.1, finding)
    assert "equal keys need not give equal texts" in notes[1]
    assert "3 of 9 rollouts" in notes[1]
    assert len(verdict._notes(one, 1e-4, finding)) == 1
