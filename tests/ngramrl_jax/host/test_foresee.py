"""Drafts for foreseen outcomes are those that would be proposed, and foreseeing changes nothing."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host import ngram
from ngramrl_jax.host.draft import Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.outcomes import Budget
from ngramrl_jax.types import BestTokens

ROWS, BUDGET, STOP = 3, 5, 4
RULE = st.builds(
    Rule,
    followed=st.sampled_from([1, 6]),
    steps=st.just(16),
    skipped=st.sampled_from([0, 8]),
    own_text=st.booleans(),
    laws=st.booleans(),
    noise=st.booleans(),
)
SIX = Budget(6)


def a_drafter(seed, rule, budget=SIX):
    """A drafter in the middle of its work; the same for the same arguments."""
    rng = np.random.default_rng(seed)
    drafter = NgramDrafter(ROWS, BUDGET, History(4), rule, budget=budget, stop_ids=(STOP,))
    for step in range(6):
        tokens_N = rng.integers(0, 4, 20).astype(np.int32)
        other_N = rng.integers(0, 5, 20)
        ids_NR = np.stack([tokens_N, np.where(other_N == tokens_N, 5, other_N)], axis=1)
        logps_NR = np.log(np.tile([[0.7, 0.3]], (20, 1)))
        best = BestTokens(ids_NR.astype(np.int32), logps_NR.astype(np.float32))
        drafter.observe(step % 2, tokens_N, step, best if step else None)
    for row in range(ROWS - 1):
        key = rng.integers(0, 2**32, 2, dtype=np.uint32)
        drafter.start_row(row, row, rng.integers(0, 4, 6), key if row else None)
    for _ in range(2):
        count_B = np.array([*rng.integers(0, 4, ROWS - 1), 0])
        drafter.commit(rng.integers(0, 4, (ROWS, 4)), count_B)
    return drafter


def limits(room_B):
    return np.clip(np.asarray(room_B) - 1, 0, BUDGET)


def in_flight(drafter, room_B):
    return *drafter.propose(limits(room_B)), np.array([*room_B[: ROWS - 1], 0], np.int32)


def entries(foreseen):
    return zip(*np.nonzero(foreseen.length_BF), strict=True)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rule=RULE,
    room_B=st.lists(st.integers(1, 9), min_size=ROWS, max_size=ROWS),
    pooled=st.booleans(),
)
def test_an_entry_is_what_would_be_proposed_after_its_outcome(seed, rule, room_B, pooled):
    """And drafting and the texts are afterwards as if nothing had been foreseen."""
    drafter = a_drafter(seed, rule, Budget(6, pooled))
    flight_BK, flown_B, room_B = in_flight(drafter, room_B)
    end_B = drafter._text.end_B.copy()
    foreseen = drafter.foresee(flight_BK, flown_B, room_B)
    for row, f in entries(foreseen):
        after = a_drafter(seed, rule)
        accepted = foreseen.length_BF[row, f] - end_B[row] - 1
        tokens_BT = np.append(flight_BK, np.zeros((ROWS, 1), np.int32), axis=1)
        tokens_BT[row, accepted] = foreseen.last_BF[row, f]
        assert 0 <= accepted <= flown_B[row]
        if accepted < flown_B[row]:
            assert foreseen.last_BF[row, f] != flight_BK[row, accepted]
        count_B = np.where(np.arange(ROWS) == row, accepted + 1, 0)
        after.commit(tokens_BT, count_B)
        draft_BK, length_B = after.propose(limits(room_B - count_B))
        assert foreseen.drafted_BF[row, f] == length_B[row]
        assert foreseen.draft_BFK[row, f].tolist() == draft_BK[row].tolist()
    again = drafter.propose(limits(room_B))
    assert [x.tolist() for x in again] == [flight_BK.tolist(), flown_B.tolist()]
    fresh = a_drafter(seed, rule)
    for each in (drafter, fresh):
        each.propose(np.full(ROWS, BUDGET))  # chains the whole text, if it has not been
    assert (drafter._noted_B == fresh._noted_B).all()
    for row, noted in enumerate(drafter._noted_B):
        chains = (each._chain_BGS[row, :, :noted] for each in (drafter, fresh))
        assert np.array_equal(*chains)
    assert (drafter._bucket_BGH == fresh._bucket_BGH).all()


def test_the_comparison_sees_drafts_that_do_not_know_their_outcome(monkeypatch):
    """The planted fault: every entry gets the draft of the outcome before."""
    compare = test_an_entry_is_what_would_be_proposed_after_its_outcome.hypothesis.inner_test
    right = ngram.draft_entries

    def wrong(*arguments):
        right(*arguments)
        draft_BFK = arguments[-2]
        draft_BFK[:] = np.roll(draft_BFK, 1, axis=1)

    monkeypatch.setattr(ngram, "draft_entries", wrong)
    with pytest.raises(AssertionError):
        compare(0, Rule(), [9, 9, 9], False)


def test_nothing_is_foreseen_behind_an_end():
    drafter = a_drafter(3, Rule())
    flight_BK = np.full((ROWS, BUDGET), STOP, np.int32)
    flight_BK[:, 0] = 1
    foreseen = drafter.foresee(flight_BK, np.array([3, 3, 0]), np.array([9, 3, 0]))
    end_B = drafter._text.end_B
    found = {(row, foreseen.length_BF[row, f] - end_B[row]) for row, f in entries(foreseen)}
    assert found <= {(0, 1), (0, 2), (1, 1)}
    assert not (foreseen.last_BF == STOP).any()


def test_every_answer_is_fresh_and_its_masses_are_a_part_of_one():
    drafter = a_drafter(5, Rule())
    flight = in_flight(drafter, [9, 9, 9])
    first = drafter.foresee(*flight)
    kept = deepcopy(first)
    drafter.foresee(np.zeros_like(flight[0]), *flight[1:])
    assert all(
        (a == b).all() for a, b in zip(vars(first).values(), vars(kept).values(), strict=True)
    )
    assert (first.mass_BF.sum(axis=1) <= 1 + 1e-5).all()
    assert ((first.mass_BF > 0) == (first.length_BF > 0)).all()


def test_the_mass_of_an_entry_is_that_of_its_outcome():
    """Also of the first outcome of all; places without an entry have none."""
    drafter = a_drafter(5, Rule(), Budget(200))
    flight_BK, _, room_B = in_flight(drafter, [9, 9, 9])
    flight = flight_BK, np.array([0, BUDGET, 0]), room_B
    outcomes, foreseen = drafter.outcomes(*flight), drafter.foresee(*flight)
    firsts = 0
    for row, f in entries(foreseen):
        kept = foreseen.length_BF[row, f] - drafter._text.end_B[row] - 1
        ids_X, mass_X = outcomes.ids_BTX[row, kept], outcomes.mass_BTX[row, kept]
        (place,) = np.flatnonzero((ids_X == foreseen.last_BF[row, f]) & (mass_X > 0))
        assert foreseen.mass_BF[row, f] == mass_X[place]
        firsts += kept == place == 0
    assert firsts == 1  # where a draft flies, its own token stands first
    free_BF = foreseen.length_BF == 0
    assert free_BF[: ROWS - 1].any(axis=1).all()
    assert (foreseen.mass_BF[free_BF] == 0).all()


def test_what_does_not_fly_is_not_looked_at():
    """Nothing is foreseen for an idle row, and a draft of fewer than no tokens has none."""
    drafter = a_drafter(5, Rule())
    flight_BK, _, room_B = in_flight(drafter, [9, 9, 9])
    expected = drafter.outcomes(flight_BK, np.zeros(ROWS, np.int32), room_B)
    assert (expected.mass_BTX[: ROWS - 1, 0].sum(axis=1) > 0).all()
    for flown in (0, -3):
        other_BK, all_room_B = (flight_BK + 1) % 4, np.full(ROWS, 9, np.int32)
        found = drafter.outcomes(other_BK, np.full(ROWS, flown, np.int32), all_room_B)
        np.testing.assert_array_equal(found.mass_BTX, expected.mass_BTX)


def test_outcomes_do_not_hang_on_when_the_first_were_asked_for():
    """What the history held before is learnt then, and what comes later when it comes."""
    asked = np.zeros((1, 2), np.int32), np.zeros(1, np.int32), np.full(1, 9, np.int32)
    masses = []
    for first in (0, 1, 3):
        drafter = NgramDrafter(1, 2, History(4), Rule())
        drafter.start_row(0, 9, np.array([1, 2]))
        for step in range(3):
            if step == first:
                drafter.outcomes(*asked)
            drafter.observe(step, np.array([2, 1 + step, 3]), step)
        masses.append(drafter.outcomes(*asked).mass_BTX)
    np.testing.assert_array_equal(masses[0], masses[1])
    np.testing.assert_array_equal(masses[0], masses[2])
    silent = NgramDrafter(1, 2, History(4), Rule())
    silent.start_row(0, 9, np.array([1, 2]))
    assert not np.array_equal(silent.outcomes(*asked).mass_BTX, masses[0])


@pytest.mark.parametrize(
    ("flight", "named"),
    [
        ((np.zeros((ROWS, 2), np.int32), [0] * ROWS, [9] * ROWS), "flight_BK"),
        ((np.zeros((ROWS, BUDGET), np.int32), [0], [9] * ROWS), "flown_B"),
        ((np.zeros((ROWS, BUDGET), np.int32), [0] * ROWS, [9.5] * ROWS), "room_B"),
    ],
)
def test_other_arrays_are_refused(flight, named):
    with pytest.raises(ValueError, match=named):
        a_drafter(0, Rule()).foresee(*flight)


@pytest.mark.parametrize("least", [0.15, 0.3])
def test_a_walk_that_ends_early_misses_only_small_masses(least):
    fewer = 0
    for seed in range(5):
        whole, cut = (a_drafter(seed, Rule(), Budget(6, least=each)) for each in (0.0, least))
        flight = in_flight(whole, [9, 9, 9])
        all_BTX, some_BTX = (each.outcomes(*flight).mass_BTX for each in (whole, cut))
        kept_BTX = some_BTX > 0
        np.testing.assert_array_equal(some_BTX[kept_BTX], all_BTX[kept_BTX])
        assert (all_BTX[~kept_BTX] < least).all()
        fewer += int((all_BTX > 0).sum() - kept_BTX.sum())
    assert fewer > 0


def test_the_longest_text_of_a_row_leaves_its_neighbour_alone():
    """It has room for a flight that is kept whole, one token more, and the draft behind it."""
    drafter = NgramDrafter(2, BUDGET, History(), budget=SIX)
    drafter.observe(0, np.zeros(50, np.int32), 0)
    capacity = drafter._text.text_BS.shape[1]
    drafter.start_row(1, 1, np.full(9, 2))
    fullest = next(size for size in range(capacity, 0, -1) if _capacity_for(size) == capacity)
    drafter.start_row(0, 0, np.zeros(fullest, np.int32))
    room_B = np.array([50, 0])
    flight = drafter.propose(limits(room_B))
    foreseen = drafter.foresee(*flight, room_B)
    longest = foreseen.length_BF[0] == fullest + BUDGET + 1
    assert foreseen.drafted_BF[0, longest].max() == BUDGET
    assert drafter._text.text_BS[1, :9].tolist() == [2] * 9


def _capacity_for(size):
    drafter = NgramDrafter(1, BUDGET, History())
    drafter.start_row(0, 0, np.zeros(size, np.int32))
    return drafter._text.text_BS.shape[1]


@pytest.mark.parametrize("ended", [False, True])
def test_what_was_foreseen_of_a_response_that_ended_teaches_nothing_about_the_next(ended):
    drafter = a_drafter(1, Rule())
    drafter.foresee(*in_flight(drafter, [9, 9, 9]))
    for row in range(ROWS - 1 if ended else 0):
        drafter.start_row(row, row, np.array([1]))
    before = drafter._calibration.seen_CM.copy()
    drafter.commit(np.ones((ROWS, 1), np.int32), np.array([1, 1, 0]))
    assert (drafter._calibration.seen_CM == before).all() == ended


def test_a_round_that_was_not_foreseen_teaches_nothing():
    drafter = a_drafter(1, Rule())
    drafter.foresee(*in_flight(drafter, [9, 9, 9]))
    one_more = np.ones((ROWS, 1), np.int32), np.array([1, 1, 0])
    drafter.commit(*one_more)
    before = drafter._calibration.seen_CM.copy()
    drafter.commit(*one_more)
    assert (drafter._calibration.seen_CM == before).all()


def test_what_is_asked_last_counts():
    """Without room there is nothing to foresee, nor to learn, though there was at first."""
    drafter = a_drafter(1, Rule())
    flight_BK, flown_B, room_B = in_flight(drafter, [9, 9, 9])
    first = drafter.outcomes(flight_BK, flown_B, room_B)
    kept = deepcopy(first)
    drafter.outcomes((flight_BK + 1) % 4, flown_B, room_B)
    again = drafter.outcomes(np.zeros_like(flight_BK), flown_B, np.zeros_like(room_B))
    assert not again.mass_BTX.any()
    for one, other in zip(first, kept, strict=True):
        np.testing.assert_array_equal(one, other)
    before = drafter._calibration.seen_CM.copy()
    drafter.commit(np.ones((ROWS, 1), np.int32), np.array([1, 1, 0]))
    assert (drafter._calibration.seen_CM == before).all()
