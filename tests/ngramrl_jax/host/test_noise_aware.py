"""Drafts drawn with the target's noise are what the target draws."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.host import noise
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.types import BestTokens
from ngramrl_jax.verify import keyed

POSITIONS, VOCAB = 2000, 8
PROMPT = [9, 10, 11]
ROW, OTHER_ROW = (3, 1, 4, 1, 0), (3, 1, 4, 2, 0)


class Case(NamedTuple):
    probs_NV: np.ndarray
    rollout_N: np.ndarray
    history: History
    drawn_N: np.ndarray


@pytest.fixture(scope="module")
def case() -> Case:
    """A sibling's rollout with its laws, and what the target draws after each of its prefixes."""
    rng = np.random.default_rng(0)
    probs_NV = 0.02 + (1 - 0.02 * VOCAB) * rng.dirichlet(np.full(VOCAB, 0.5), POSITIONS)
    rollout_N = np.array([rng.choice(VOCAB, p=probs_V) for probs_V in probs_NV])
    ids_NV = np.argsort(-probs_NV, axis=1).astype(np.int32)
    logps_NV = np.log(np.take_along_axis(probs_NV, ids_NV, 1)).astype(np.float32)
    history = History()
    history.observe(0, rollout_N, 0, BestTokens(ids_NV, logps_NV))
    logp_1NV = np.log(probs_NV).astype(np.float32)[None]
    return Case(probs_NV, rollout_N, history, np.asarray(drawn(keyed.row_key(*ROW), logp_1NV))[0])


@jax.jit
def drawn(key, logp_1NV):
    key_1N = keyed.position_keys(key[None], jnp.full(1, len(PROMPT), jnp.int32), POSITIONS)
    return keyed.sample(logp_1NV, keyed.gumbel(key_1N, VOCAB))


def first_drafts(case, key_W):
    drafter = NgramDrafter(1, 1, case.history)
    drafter.start_row(0, 0, np.array(PROMPT), key_W)
    found = []
    for token in case.rollout_N:
        draft_BK, length_B = drafter.propose(np.ones(1, np.int32))
        assert length_B[0] == 1
        found.append(draft_BK[0, 0])
        drafter.commit(np.array([[token]]), np.ones(1, np.int32))
    return np.array(found)


@pytest.mark.stat
def test_a_draft_with_the_rows_key_is_the_targets_token(case):
    """Equal laws and equal noise give equal tokens, but for the laws' 16 bits.

    These are wrong by 2**-17 a token, so at most 8 x 2**-16 of the positions differ in the mean:
    0.25 of 2,000; more than 4 of them with probability below 1e-5.
    """
    same = first_drafts(case, noise.row_key(*ROW)) == case.drawn_N
    assert same.sum() >= POSITIONS - 4


@pytest.mark.stat
def test_a_draft_without_a_key_is_right_as_often_as_its_token_is_likely(case):
    """5 standard deviations: wrong once in 1.7 million runs. Far below what the key gives."""
    likely = first_drafts(case, None)
    np.testing.assert_array_equal(likely, case.probs_NV.argmax(1))
    assert_rate(likely == case.drawn_N, case.probs_NV.max(1))


@pytest.mark.stat
def test_the_key_of_another_row_is_no_better_than_chance(case):
    """The planted fault: two independent draws agree with probability sum p**2. 5 deviations."""
    other = first_drafts(case, noise.row_key(*OTHER_ROW))
    assert_rate(other == case.drawn_N, (case.probs_NV**2).sum(1))


def assert_rate(right_N, chance_N):
    deviation = np.sqrt((chance_N * (1 - chance_N)).sum())
    assert abs(right_N.sum() - chance_N.sum()) < 5 * deviation
    assert chance_N.sum() + 20 * deviation < POSITIONS, "so the key's rate stands out"
