"""Whole sequences through rounds of each verifier follow the policy's law, and faults are seen.

A toy policy gives a law for every prefix over a vocabulary of 4. Many rows decode L = 4 tokens in
rounds of K = 3 draft tokens (so rounds start everywhere, drafts run past the end, lengths differ)
and the 256 possible sequences are counted against their exact law by chi-square, with Holm at a
family-wise error rate of 1e-3. Every planted fault must fail in the same test.

Legend: B rows, K draft tokens, T positions of a round, V vocabulary, C prefixes of the toy policy.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax import stats
from ngramrl_jax.types import Sampling
from ngramrl_jax.verify import oracle
from ngramrl_jax.verify.adjust import adjusted_log_probs
from ngramrl_jax.verify.coupled import verify_coupled
from ngramrl_jax.verify.keyed import gumbel, position_keys, row_keys, sample
from ngramrl_jax.verify.rejection import (
    Dense,
    OneHot,
    Sparse,
    acceptance_uniform,
    emission_noise,
    verify_rejection,
)
from ngramrl_jax.verify.verdict import accepted_prefix, with_log_probs

B, K, L, V = 50_000, 3, 4, 4
T = K + 1
ALPHA = 1e-3
adjust = jax.jit(adjusted_log_probs, static_argnums=1)

# A prefix is a node of the V-ary tree: 0 is empty, the child of c by token v is V c + 1 + v.
NODES = sum(V**depth for depth in range(L + K))
LEAVES = sum(V**depth for depth in range(L))


def logits_table(seed, scale=1.5):
    return np.random.default_rng(seed).normal(size=(NODES, V)) * scale


def child(node, token):
    """Drafts may hold ids outside the vocabulary: any law may follow those."""
    return V * node + 1 + jnp.clip(token, 0, V - 1)


def sequence_law(probs_CV):
    """Exact probability of each of the V^L sequences."""
    law = []
    for tokens in itertools.product(range(V), repeat=L):
        node, mass = 0, 1.0
        for token in tokens:
            mass *= probs_CV[node, token]
            node = V * node + 1 + token
        law.append(mass)
    return np.array(law) / np.sum(law)


@functools.partial(jax.jit, static_argnames=("verify", "drafter"))
def decode_round(state, logp_CV, draft_table, number, *, verify, drafter):
    """One round of all rows: draft, verify, commit up to L tokens."""
    node_B, count_B = state
    key_B = row_keys(0, 1, jnp.arange(B), jnp.zeros(B, jnp.int32), jnp.zeros(B, jnp.int32))
    key_BT = position_keys(key_B, count_B, T)
    # The draft's own randomness is of another seed.
    draft_key = jax.random.fold_in(jax.random.key(99), number)
    length_B = jax.random.randint(jax.random.fold_in(draft_key, K), (B,), 0, K + 1)
    nodes, draft, q = [node_B], [], []
    for t in range(K):
        token_B, q_B = drafter(draft_table, nodes[t], jax.random.fold_in(draft_key, t))
        nodes.append(child(nodes[t], token_B))
        draft.append(token_B)
        q.append(q_B)
    logp_BTV = logp_CV[jnp.stack(nodes, 1)]
    law = None if q[0] is None else jax.tree.map(lambda *leaves: jnp.stack(leaves, 1), *q)
    verdict = verify(logp_BTV, jnp.stack(draft, 1), length_B, key_BT, law)
    for t in range(T):
        committed_B = (t <= verdict.accepted_B) & (count_B < L)
        node_B = jnp.where(committed_B, child(node_B, verdict.tokens_BT[:, t]), node_B)
        count_B = count_B + committed_B.astype(jnp.int32)
    return node_B, count_B


def chosen(draft_C, node_B, key):
    """The drafter of a deterministic draft: one token for each prefix."""
    del key
    return draft_C[node_B], None


def drawn(q_logits_CV, node_B, key):
    """A drafter that draws from a dense q."""
    return jax.random.categorical(key, q_logits_CV[node_B]), Dense(
        jax.nn.softmax(q_logits_CV[node_B])
    )


def drawn_from_two(q_logits_CV, node_B, key):
    """A drafter that draws from the two best ids of q and lists them."""
    value_B2, ids_B2 = jax.lax.top_k(q_logits_CV[node_B], 2)
    place_B = jax.random.categorical(key, value_B2)
    token_B = jnp.take_along_axis(ids_B2, place_B[:, None], 1)[:, 0]
    return token_B, Sparse(ids_B2, jax.nn.softmax(value_B2))


def coupled(logp, draft, length, keys, q):
    del q
    return verify_coupled(logp, draft, length, gumbel(keys, V))


def sequence_counts(verify, drafter, logp_CV, draft_table):
    state = jnp.zeros(B, jnp.int32), jnp.zeros(B, jnp.int32)
    for number in range(L):
        state = decode_round(state, logp_CV, draft_table, number, verify=verify, drafter=drafter)
    return np.bincount(np.asarray(state[0]) - LEAVES, minlength=V**L)


def p_value(verify, drafter, draft_table, logits_CV, sampling, logp_CV=None):
    """Chi-square of the sequences against the law of the oracle's adjusted distribution.

    `logp_CV` stands in for the library's adjusted distribution where a fault is planted there.
    """
    if logp_CV is None:
        logp_CV = adjust(jnp.asarray(logits_CV, jnp.float32), sampling)
    inner = logits_CV[:LEAVES]  # the prefixes shorter than L
    law = sequence_law(np.apply_along_axis(oracle.adjusted_probs, -1, inner, sampling))
    counts = sequence_counts(verify, drafter, logp_CV, jnp.asarray(draft_table))
    return stats.chi_square(counts, law).p_value


LOGITS = logits_table(0)
PLAIN = Sampling()
SAMPLINGS = {
    "plain": PLAIN,
    "temperature": Sampling(0.6),
    "top-k": Sampling(1.3, top_k=3),
    "top-p": Sampling(1.7, top_p=0.85),
    "all": Sampling(0.8, top_k=3, top_p=0.9),
    "greedy": Sampling(0.0),
}
GOOD = np.argmax(LOGITS, -1).astype(np.int32)
# Ids outside the vocabulary, the least likely ids (excluded by top-k and top-p), and any id.
HOSTILE = np.where(
    np.arange(NODES) % 3 == 0,
    np.resize([-1, V, 2**31 - 1, -(2**31)], NODES),
    np.where(np.arange(NODES) % 3 == 1, np.argmin(LOGITS, -1), np.arange(NODES) % V),
).astype(np.int32)
GOOD_Q = (LOGITS + logits_table(1, 0.7)).astype(np.float32)
# Most mass where the policy has least.
HOSTILE_Q = (-2 * LOGITS).astype(np.float32)

CONFIGURATIONS = {
    f"{verifier} {draft} {name}": (verify, drafter, table, LOGITS, sampling)
    for verifier, verify, drafter, drafts in (
        ("coupled", coupled, chosen, {"good": GOOD, "hostile": HOSTILE}),
        ("one-hot", verify_rejection, chosen, {"good": GOOD, "hostile": HOSTILE}),
        ("dense", verify_rejection, drawn, {"good": GOOD_Q, "hostile": HOSTILE_Q}),
        ("sparse", verify_rejection, drawn_from_two, {"good": GOOD_Q, "hostile": HOSTILE_Q}),
    )
    for draft, table in drafts.items()
    for name, sampling in SAMPLINGS.items()
}


@pytest.mark.stat
def test_every_verifier_keeps_the_law():
    """48 configurations; family-wise error rate 1e-3 by Holm."""
    p_values = {name: p_value(*given) for name, given in CONFIGURATIONS.items()}
    rejected = stats.holm(list(p_values.values()), ALPHA)
    assert not any(rejected), {n: p for n, p in p_values.items() if p < 0.01}


def resampling_from_p(logp, draft, length, keys, q):
    """Fault: after a rejection the token comes from p, not from the residual."""
    verdict = verify_rejection(logp, draft, length, keys, q)
    plain = sample(logp, emission_noise(keys, V))
    kept = jnp.arange(T)[None] < verdict.accepted_B[:, None]
    return with_log_probs(jnp.where(kept, verdict.tokens_BT, plain), verdict.accepted_B, logp)


def accepting_on_arg_max(logp, draft, length, keys, q):
    """Fault: a draft token is kept if and only if it is the most likely one."""
    del q
    accepted = accepted_prefix(jnp.argmax(logp[:, :K], -1) == draft, length)
    kept = jnp.arange(T)[None] < accepted[:, None]
    plain = sample(logp, emission_noise(keys, V))
    return with_log_probs(jnp.where(kept, jnp.pad(draft, ((0, 0), (0, 1))), plain), accepted, logp)


def bonus_from_the_position_before(logp, draft, length, keys, q):
    """Fault: after a whole draft the bonus token comes from the last draft position's law."""
    verdict = coupled(logp, draft, length, keys, q)
    wrong = jnp.roll(logp, 1, axis=1)
    bonus = sample(wrong, gumbel(keys, V))
    whole = (verdict.accepted_B == length) & (length > 0)
    at_bonus = (jnp.arange(T)[None] == length[:, None]) & whole[:, None]
    tokens = jnp.where(at_bonus, bonus, verdict.tokens_BT)
    return with_log_probs(tokens, verdict.accepted_B, logp)


def one_key_for_all_positions(logp, draft, length, keys, q):
    """Fault: the positions of a round share their noise."""
    keys = jnp.broadcast_to(keys[:, :1], keys.shape)
    return coupled(logp, draft, length, keys, q)


def one_uniform_for_test_and_emission(logp, draft, length, keys, q):
    """Fault: the token after a rejection is drawn with the number that rejected the draft."""
    verdict = verify_rejection(logp, draft, length, keys, q)
    residual = jnp.exp(logp[:, :K]) * (1 - jax.nn.one_hot(draft, V))
    residual = residual / residual.sum(-1, keepdims=True)
    uniform = acceptance_uniform(keys[:, :K])[..., None]
    inverse = jnp.minimum(jnp.sum(jnp.cumsum(residual, -1) < uniform, -1), V - 1)
    inverse = jnp.pad(inverse, ((0, 0), (0, 1)))
    rejected = verdict.accepted_B[:, None] == jnp.arange(T)[None]
    rejected &= verdict.accepted_B[:, None] < length[:, None]
    tokens = jnp.where(rejected, inverse.astype(jnp.int32), verdict.tokens_BT)
    return with_log_probs(tokens, verdict.accepted_B, logp)


def drawn_with_unprocessed_q(q_logits_CV, node_B, key):
    """Fault: the draft is drawn at temperature 0.5, the ratio uses q at temperature 1."""
    token_B, _ = drawn(2 * q_logits_CV, node_B, key)
    return token_B, drawn(q_logits_CV, node_B, key)[1]


def one_hot_for_a_drawn_draft(q_logits_CV, node_B, key):
    """No fault: a drawn draft may always be treated as a chosen one."""
    return drawn(q_logits_CV, node_B, key)[0], None


def top_p_before_temperature(logits_CV, sampling):
    """Fault: the nucleus is that of temperature 1."""
    nucleus = adjusted_log_probs(logits_CV, Sampling(1.0, top_p=sampling.top_p))
    masked = jnp.where(jnp.isfinite(nucleus), logits_CV, -jnp.inf)
    return adjusted_log_probs(masked, Sampling(sampling.temperature))


FAULTS = {
    "resampling from p, chosen draft": (resampling_from_p, chosen, GOOD, LOGITS, PLAIN),
    "resampling from p, drawn draft": (resampling_from_p, drawn, GOOD_Q, LOGITS, PLAIN),
    "accepting on arg-max": (accepting_on_arg_max, chosen, GOOD, LOGITS, PLAIN),
    "unprocessed q": (verify_rejection, drawn_with_unprocessed_q, GOOD_Q, LOGITS, PLAIN),
    "bonus from the wrong position": (bonus_from_the_position_before, chosen, GOOD, LOGITS, PLAIN),
    "top-p before temperature": (
        coupled,
        chosen,
        GOOD,
        LOGITS,
        SAMPLINGS["top-p"],
        top_p_before_temperature(jnp.asarray(LOGITS, jnp.float32), SAMPLINGS["top-p"]),
    ),
    "one key for two positions": (one_key_for_all_positions, chosen, GOOD, LOGITS, PLAIN),
    "one number for test and emission": (
        one_uniform_for_test_and_emission,
        chosen,
        GOOD,
        LOGITS,
        PLAIN,
    ),
}


@pytest.mark.stat
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(fault):
    """At the strictest level that a member of the family above is held to."""
    assert p_value(*FAULTS[fault]) < ALPHA / len(CONFIGURATIONS)


@pytest.mark.stat
def test_a_drawn_draft_may_be_treated_as_chosen():
    """Both ways of verifying it keep the law; error rate 1e-3 by Holm."""
    p_values = [
        p_value(verify, one_hot_for_a_drawn_draft, GOOD_Q, LOGITS, PLAIN)
        for verify in (coupled, verify_rejection)
    ]
    assert not any(stats.holm(p_values, ALPHA)), p_values


def test_coupled_sequences_are_those_of_plain_decoding():
    """The same keys give the same sequences, whatever is drafted: row by row, not in law."""
    logp_CV = adjusted_log_probs(jnp.asarray(LOGITS, jnp.float32), PLAIN)

    def sequences(drafter, table):
        state = jnp.zeros(B, jnp.int32), jnp.zeros(B, jnp.int32)
        for number in range(L):
            state = decode_round(
                state, logp_CV, jnp.asarray(table), number, verify=coupled, drafter=drafter
            )
        return np.asarray(state[0])

    plain = sequences(chosen, np.full(NODES, -1, np.int32))
    for drafter, table in (
        (chosen, GOOD),
        (chosen, HOSTILE),
        (one_hot_for_a_drawn_draft, GOOD_Q),
    ):
        np.testing.assert_array_equal(sequences(drafter, table), plain)


def test_one_hot_is_the_default_law_of_a_draft():
    """`None` and `OneHot()` give the same sequences bit for bit."""

    def explicit(logp, draft, length, keys, q):
        assert q is None
        return verify_rejection(logp, draft, length, keys, OneHot())

    logp_CV = adjusted_log_probs(jnp.asarray(LOGITS, jnp.float32), PLAIN)
    first, second = (
        sequence_counts(verify, chosen, logp_CV, jnp.asarray(HOSTILE))
        for verify in (verify_rejection, explicit)
    )
    np.testing.assert_array_equal(first, second)
