"""Masses of outcomes add up, the budget takes the largest claims, and the estimate is calibrated.

The one statistical test has its error rate beside it.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host.calibration import Calibration, Flight, Guesses
from ngramrl_jax.host.outcomes import Budget, Outcomes, allocate, outcomes_of, priorities, quota
from ngramrl_jax.host.pool import new_pool

B, T, X = 3, 4, 5
STOP = 4


def flight(draft_BK, length_B, room_B):
    return Flight(*(np.array(each, np.int32) for each in (draft_BK, length_B, room_B)))


def random_outcomes(rng, room=9):
    ids_BTX = np.array([[rng.permutation(5) for _ in range(T)] for _ in range(B)], np.int32)
    chance_BTX = rng.dirichlet(np.ones(X), (B, T)).astype(np.float32)
    around = flight(rng.integers(0, 4, (B, T - 1)), rng.integers(0, T, B), [room, room, 0])
    return around, ids_BTX, chance_BTX


def test_masses_are_the_probabilities_of_what_is_sampled():
    """All outcomes of a row, those that end it counted, have probability 1 together."""
    around, ids_BTX, chance_BTX = random_outcomes(np.random.default_rng(0))
    mass_BTX = outcomes_of(ids_BTX, chance_BTX, around, np.zeros(0, np.int32)).mass_BTX
    np.testing.assert_allclose(mass_BTX.sum(axis=(1, 2)), [1, 1, 0], rtol=1e-5)
    told = outcomes_of(ids_BTX, chance_BTX, around, np.array([STOP], np.int32))
    np.testing.assert_allclose(told.mass_BTX.sum(axis=(1, 2)) + told.ending_B, [1, 1, 0], rtol=1e-5)
    assert (told.ending_B[:2] > 0).all()
    some = told.mass_BTX
    assert (some[ids_BTX == STOP] == 0).all()
    np.testing.assert_array_equal(some[ids_BTX != STOP], mass_BTX[ids_BTX != STOP])


def test_nothing_has_mass_behind_a_stop_token_of_the_draft_or_without_room():
    _, ids_BTX, chance_BTX = random_outcomes(np.random.default_rng(1))
    around = flight([[0, STOP, 0], [0, 1, 2], [0, 1, 2]], [3, 3, 3], [9, 3, 1])
    mass_BTX = outcomes_of(ids_BTX, chance_BTX, around, np.array([STOP], np.int32)).mass_BTX
    assert (mass_BTX.sum(axis=2) > 0).tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_a_row_ends_by_a_stop_token_or_for_want_of_room():
    """By the draft's own stop token, by one in its place, or because its last token is due."""
    ids_BTX = np.broadcast_to(np.array([0, STOP], np.int32), (B, T, 2))
    chance_BTX = np.broadcast_to(np.array([0.75, 0.25], np.float32), (B, T, 2))
    around = flight([[0, STOP, 0], [0, 0, 0], [0, 0, 0]], [3, 1, 3], [9, 2, 0])
    told = outcomes_of(ids_BTX, chance_BTX, around, np.array([STOP], np.int32))
    np.testing.assert_allclose(told.ending_B, [0.25 + 0.75 * 0.25, 0.25 + 0.75, 0.0])


@settings(derandomize=True, max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), entries=st.integers(1, 30), pooled=st.booleans())
def test_the_largest_claims_are_taken(seed, entries, pooled):
    """Of each row, or of all rows together as far as a row's own width goes; first of equals."""
    rng = np.random.default_rng(seed)
    claim_BTX = rng.integers(0, 6, (B, T, X)).astype(np.float32)
    claim_BTX[rng.random(claim_BTX.shape) < 0.3] = -np.inf
    claim_BTX[2] = -np.inf
    budget = Budget(entries, pooled)
    claims = []
    for row, claim_Y in enumerate(claim_BTX.reshape(B, -1).tolist()):
        own = sorted((-c, y) for y, c in enumerate(claim_Y) if c > -np.inf)[: budget.width]
        claims += [(c, row, place, y) for place, (c, y) in enumerate(own)]
    if pooled:
        claims = sorted(claims)[: 2 * entries]
    expected = [sorted(y for _, at, _, y in claims if at == row) for row in range(B)]
    found = [[y for y in chosen if y >= 0] for chosen in allocate(claim_BTX, budget).tolist()]
    assert found == expected


def test_quotas_follow_their_laws():
    """Geometric: F_0 as Theorem 12 has it, and the likelier the acceptance the more at the end."""
    a, r, flown = 0.8, 1.0, 6
    of_T = quota(Budget(16, allocator="geometric"), flown, a, r)
    end = a ** (flown / (1 + r))
    first = 16 / (end * (1 - a) ** (-1 / (1 + r)) + (1 - end) / (1 - a ** (1 / (1 + r))))
    np.testing.assert_allclose(of_T[:flown], first * a ** (np.arange(flown) / (1 + r)))
    assert of_T.sum() == pytest.approx(16)
    assert quota(Budget(14, allocator="uniform"), flown, a, r).tolist() == [2.0] * 7
    assert quota(Budget(14, allocator="all_accepted"), flown, a, r).tolist() == [0.0] * 6 + [14]


def test_a_quota_is_rounded_by_the_largest_remainder():
    mass_BTX = np.tile(np.float32([0.1, 0.05, 0.02, 0.01, 0.005]), (1, T, 1))
    outcomes = Outcomes(np.zeros((1, T, X), np.int32), mass_BTX, mass_BTX, np.zeros(1))
    claims = priorities(outcomes, np.array([3]), Budget(6, allocator="uniform"), 0.8, 1.0)
    chosen_F = allocate(claims, Budget(6))[0]
    assert np.bincount(chosen_F // X, minlength=T).tolist() == [2, 2, 1, 1]
    assert (chosen_F % X).max() == 1  # the likeliest of each position


def test_the_causal_budget_covers_at_least_as_much_mass_as_any_other():
    around, ids_BTX, chance_BTX = random_outcomes(np.random.default_rng(2))
    outcomes = outcomes_of(ids_BTX, chance_BTX, around, np.array([STOP], np.int32))
    mass = {}
    for name in ("causal", "uniform", "geometric", "all_accepted"):
        budget = Budget(4, allocator=name)
        chosen_BF = allocate(priorities(outcomes, around.length_B, budget, 0.8, 1.0), budget)
        flat_BY = outcomes.mass_BTX.reshape(B, -1)
        mass[name] = (np.take_along_axis(flat_BY, chosen_BF, 1) * (chosen_BF >= 0)).sum(1)
    assert all((mass["causal"] >= other - 1e-6).all() for other in mass.values())


def test_small_masses_are_left_out():
    mass_BTX = np.float32([[[0.5, 0.1, 0.05, 0.001, 0.0]] * T])
    outcomes = Outcomes(np.zeros((1, T, X), np.int32), mass_BTX, mass_BTX, np.zeros(1))
    for least, taken in ((0.0, 4 * T), (0.01, 3 * T), (0.2, T)):
        budget = Budget(32, least=least)
        claims = priorities(outcomes, np.array([3]), budget, 0.8, 1.0)
        assert (allocate(claims, budget) >= 0).sum() == taken


def calibrated(rng, tokens, *, believes_noise=True):
    """Predicted and actual hits of the likeliest candidate, on the later half of the tokens.

    The truth is log q plus normal errors of size 0.7, drawn with Gumbel noise that is known.
    """
    calibration, hits, hopes = Calibration(1, X, new_pool(1, (1.0,))), [], []
    for n in range(tokens):
        log_q_X = np.log(rng.dirichlet(np.ones(X)))
        noise_X = rng.gumbel(size=X)
        drawn = int(np.argmax(log_q_X + rng.normal(0, 0.7, X) + noise_X))
        told_X = noise_X if believes_noise else 0 * noise_X
        guesses = Guesses(
            ids_BTX=np.arange(X, dtype=np.int32)[None, None],
            q_BTX=np.exp(log_q_X)[None, None].astype(np.float32),
            time_BTX=np.exp(-told_X)[None, None].astype(np.float32),
            count_BT=np.array([[X]], np.int32),
            cell_BT=np.zeros((1, 1), np.int32),
            gain_BTXL=np.zeros((1, 1, X, 1), np.float32),
            mean_BTL=np.zeros((1, 1, 1), np.float32),
            pool_BT=np.zeros((1, 1), np.int32),
        )
        chance_X = calibration.chances(guesses)[0, 0]
        if n >= tokens // 2:
            hopes.append(chance_X.max())
            hits.append(drawn == chance_X.argmax())
        none = flight(np.zeros((1, T - 1)), [0], [9])
        calibration.learn(guesses, none, np.full((1, T), drawn, np.int32), np.ones(1, np.int32))
    return np.array(hopes), np.array(hits)


def error_in_sigmas(hopes, hits):
    return abs(hits.mean() - hopes.mean()) / np.sqrt((hopes * (1 - hopes)).sum()) * len(hits)


def test_what_is_hoped_for_comes_as_often_as_hoped(monkeypatch):
    """Two-sided z test at 3.5 sigmas and 0.02 of bias: wrong in less than 1 of 2000 seeds."""
    hopes, hits = calibrated(np.random.default_rng(3), 4000)
    slack = 0.02 * len(hits) / np.sqrt((hopes * (1 - hopes)).sum())
    assert error_in_sigmas(hopes, hits) < 3.5 + slack
    _, blind = calibrated(np.random.default_rng(3), 4000, believes_noise=False)
    assert hits.mean() > blind.mean() + 0.1
    monkeypatch.setattr(Calibration, "learn", lambda *_: None)  # the planted fault
    hopes, hits = calibrated(np.random.default_rng(3), 4000)
    assert error_in_sigmas(hopes, hits) > 3.5 + slack


def test_wrong_budgets_are_refused():
    with pytest.raises(ValueError, match="entries: found 0"):
        Budget(0)
    with pytest.raises(ValueError, match=r"least: found 1\.0"):
        Budget(1, least=1.0)
    with pytest.raises(ValueError, match="allocator: found greedy"):
        Budget(1, allocator="greedy")
