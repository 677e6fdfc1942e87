"""Whole responses, sampled through the engine, follow the policy's law exactly.

Every response over a vocabulary of four is enumerated. Each chi-square family is Holm-corrected at
ALPHA = 1e-3, so a correct engine fails a family with at most that probability (the seeds are
fixed: once green, it stays green). Every planted fault must be caught by the very same test.
"""

from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.evidence.faults import (
    one_key_for_all_positions,
    resampling_from_p,
    row_keys_without,
)
from ngramrl_jax.host.draft import Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.rollout import admit, round
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.stats import chi_square, holm, independence
from ngramrl_jax.types import RolloutRequest, Sampling
from ngramrl_jax.verify.oracle import adjusted_probs
from ngramrl_jax.verify.verdict import accepted_prefix, with_log_probs
from tests.support.drafters import RandomDrafter
from tests.support.table_policy import TablePolicy, random_table, response_law

ALPHA = 1e-3
V, STOP, LONGEST, SLOTS, K = 4, 0, 3, 64, 3
GROUP = 3000
PROMPTS = [[1], [2, 3], [3, 1, 2]]
TABLE = random_table(V, seed=4)


def draw(drafter, sampling, *, policy=None, table=TABLE, verifier="coupled", step=0, group=GROUP):
    """Responses by prompt, siblings in order, through refill, waves, stops and cache."""
    settings = EngineSettings(
        slots=SLOTS,
        draft_tokens=0 if isinstance(drafter, NoDrafter) else K,
        max_prompt_tokens=4,
        max_new_tokens=LONGEST,
        stop_ids=(STOP,),
        sampling=sampling,
        verifier=verifier,
        wave=100,
    )
    requests = [
        RolloutRequest(i, sibling, np.asarray(prompt, np.int32), LONGEST)
        for i, prompt in enumerate(PROMPTS)
        for sibling in range(group)
    ]
    engine = RolloutEngine(policy or TablePolicy(V), drafter, settings)
    rollouts, counters = engine.generate(
        jnp.asarray(table), requests, seed=11, step=step, policy_version=0
    )
    texts = [tuple(rollout.tokens_N.tolist()) for rollout in rollouts]
    return [texts[i : i + group] for i in range(0, len(texts), group)], counters


def follows_the_law(responses, sampling, table=TABLE) -> bool:
    adjusted = np.stack([[adjusted_probs(logits, sampling) for logits in plane] for plane in table])
    p_values = []
    for prompt, texts in zip(PROMPTS, responses, strict=True):
        law = response_law(adjusted, prompt, STOP, LONGEST)
        counts = Counter(texts)
        assert set(counts) <= set(law)
        if any(law[text] == 0.0 for text in counts):
            return False
        possible = [text for text in law if law[text] > 0.0]
        observed = [counts[text] for text in possible]
        p_values.append(chi_square(observed, [law[text] for text in possible]).p_value)
    return not any(holm(p_values, ALPHA))


def known(rows=SLOTS) -> NgramDrafter:
    """Drafts from a history that grows while it is used: good drafts, unlike random ones."""
    return NgramDrafter(rows, K, History(window=64))


def blind(rows=SLOTS) -> NgramDrafter:
    """The same without the target's noise: drafts that fail often enough to show a fault."""
    return NgramDrafter(rows, K, History(window=64), Rule(noise=False))


def hostile() -> RandomDrafter:
    return RandomDrafter(SLOTS, K, V, hostile=True)


SAMPLINGS = [
    Sampling(),
    Sampling(0.6),
    Sampling(1.4, top_k=3),
    Sampling(1.2, top_p=0.85),
    Sampling(0.8, top_k=3, top_p=0.9),
]


@pytest.mark.stat
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("verifier", ["coupled", "rejection"])
@pytest.mark.parametrize("drafter", [known, blind, hostile])
def test_responses_follow_the_law(sampling, verifier, drafter):
    responses, counters = draw(drafter(), sampling, verifier=verifier)
    assert counters.kept_tokens > 0.05 * counters.committed_tokens
    assert follows_the_law(responses, sampling)


@pytest.mark.stat
@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=str)
def test_plain_responses_follow_the_law(sampling):
    responses, _ = draw(NoDrafter(SLOTS), sampling)
    assert follows_the_law(responses, sampling)


def accepted_on_argmax(logp_BTV, draft_BK, length_B, noise_BTV):
    """The fault of CASES B3: drafts that equal the arg-max are accepted at temperature 1."""
    best_BK = jnp.argmax(logp_BTV[:, :-1], axis=-1)
    accepted_B = accepted_prefix(best_BK == draft_BK, length_B)
    other_BT = jnp.argmax(logp_BTV + noise_BTV, axis=-1).astype(jnp.int32)
    return _kept_then(other_BT, draft_BK, accepted_B, logp_BTV)


def bonus_from_the_wrong_position(logp_BTV, draft_BK, length_B, noise_BTV):
    """The fault of CASES B6: the emitted token comes from the position before."""
    sampled_BT = jnp.argmax(logp_BTV + noise_BTV, axis=-1).astype(jnp.int32)
    accepted_B = accepted_prefix(sampled_BT[:, :-1] == draft_BK, length_B)
    shifted_BTV = jnp.concatenate([logp_BTV[:, :1], logp_BTV[:, :-1]], axis=1)
    other_BT = jnp.argmax(shifted_BTV + noise_BTV, axis=-1).astype(jnp.int32)
    return _kept_then(other_BT, draft_BK, accepted_B, logp_BTV)


def _kept_then(other_BT, draft_BK, accepted_B, logp_BTV):
    offset_1T = jnp.arange(other_BT.shape[1])[None, :]
    padded_BT = jnp.pad(draft_BK, ((0, 0), (0, 1)))
    tokens_BT = jnp.where(offset_1T < accepted_B[:, None], padded_BT, other_BT)
    return with_log_probs(tokens_BT, accepted_B, logp_BTV)


def top_p_before_temperature(logits_XV, sampling):
    """The fault of CASES B7."""
    cut = replace(sampling, temperature=1.0)
    kept_XV = jnp.isfinite(_adjusted(logits_XV, cut))
    return jax.nn.log_softmax(
        jnp.where(kept_XV, logits_XV / sampling.temperature, -jnp.inf), axis=-1
    )


_adjusted = round.adjusted_log_probs


@pytest.mark.stat
@pytest.mark.parametrize(
    ("name", "fault", "verifier"),
    [
        ("verify_rejection", resampling_from_p, "rejection"),
        ("verify_coupled", accepted_on_argmax, "coupled"),
        ("verify_coupled", bonus_from_the_wrong_position, "coupled"),
        ("adjusted_log_probs", top_p_before_temperature, "coupled"),
    ],
)
def test_a_planted_fault_in_the_round_is_caught(monkeypatch, name, fault, verifier):
    monkeypatch.setattr(round, name, fault)
    sampling = SAMPLINGS[3]
    responses, _ = draw(blind(), sampling, verifier=verifier)
    assert not follows_the_law(responses, sampling)


class ForgetfulPolicy(TablePolicy):
    """Loses the prefix: every row starts from the first prompt of the store."""

    def insert(self, cache, prefixes, source_B, slot_B):
        return super().insert(cache, prefixes, jnp.zeros_like(source_B), slot_B)


class LeakyPolicy(TablePolicy):
    """Attends to what the row's neighbour has in its cache."""

    def forward(self, params, tokens_BT, position_B, cache, *, live):
        logits, cache = super().forward(
            params, tokens_BT, position_B, jnp.roll(cache, 1, axis=0), live=live
        )
        return logits, jnp.roll(cache, -1, axis=0)


@pytest.mark.stat
@pytest.mark.parametrize("policy", [ForgetfulPolicy, LeakyPolicy])
def test_a_planted_cache_fault_is_caught(policy):
    responses, _ = draw(known(), Sampling(), policy=policy(V))
    assert not follows_the_law(responses, Sampling())


# Independence. With one law for all contexts and no stop, any two tokens are independent.
CONTEXT_FREE = np.broadcast_to(np.asarray([-30.0, 0.5, 0.0, -0.5], np.float32), (V,) * 3).copy()


def independent(first, second) -> bool:
    """Not significantly dependent at ALPHA, a pair of tokens an observation."""
    table = np.zeros((V, V), int)
    np.add.at(table, (np.asarray(first), np.asarray(second)), 1)
    return independence(table[1:, 1:]).p_value > ALPHA


def token_pairs(step_0, step_1):
    texts = np.asarray([text for group in step_0 for text in group])
    later = np.asarray([text for group in step_1 for text in group])
    return {
        "siblings": (texts[0::2, 0], texts[1::2, 0]),
        "positions": (texts[:, 0], texts[:, 1]),
        "distant positions": (texts[:, 0], texts[:, 2]),
        # The second prompt is one token longer: these two tokens stand at the same position.
        "prompts": (texts[:GROUP, 1], texts[GROUP : 2 * GROUP, 0]),
        "steps": (texts[:, 0], later[:, 0]),
    }


def draw_two_steps():
    steps = [draw(known(), Sampling(), table=CONTEXT_FREE, step=step)[0] for step in (0, 1)]
    return token_pairs(*steps)


@pytest.mark.stat
def test_siblings_positions_prompts_and_steps_are_independent():
    for name, pair in draw_two_steps().items():
        assert independent(*pair), name


@pytest.mark.stat
@pytest.mark.parametrize("forgotten", ["siblings", "prompts", "steps"])
def test_a_row_key_that_forgets_something_is_caught(monkeypatch, forgotten):
    monkeypatch.setattr(admit, "row_keys", row_keys_without(forgotten))
    assert not independent(*draw_two_steps()[forgotten])


@pytest.mark.stat
def test_one_key_for_two_positions_is_caught(monkeypatch):
    monkeypatch.setattr(round, "position_keys", one_key_for_all_positions)
    responses, _ = draw(NoDrafter(SLOTS), Sampling(), table=CONTEXT_FREE)
    assert not independent(*token_pairs(responses, responses)["positions"])
