"""The chosen draft length is the best in expectation, and no draft is made that does not pay."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host.draft_length import (
    MOST_PROGRAMS,
    DraftLength,
    RoundCosts,
    Rung,
    Survival,
    length_rungs,
)

K = 16
LIVE = 64
RUNGS = length_rungs(K, 16, 1)
LENGTH_R = np.array([rung.draft_tokens for rung in RUNGS])


def ints(*values):
    return np.array(values, np.int32)


def chooser(seconds_R) -> DraftLength:
    """One whose costs are known."""
    made = DraftLength(RUNGS, [LIVE])
    for rung, seconds in enumerate(seconds_R):
        for _ in range(3):
            made.costs.record(rung, LIVE, seconds)
    return made


def teach(survival: Survival, match: int, share: float, drafts: int, rng) -> None:
    """Drafts of K tokens each of which is kept with that probability."""
    for kept in np.minimum(rng.geometric(1 - share, drafts) - 1, K):
        survival.record(ints(match), ints(K), ints(kept), ints(min(kept + 1, K)))


def choose(made: DraftLength, match_B, drafted_B=None, running_B=None):
    drafted_B = np.full(len(match_B), K, np.int32) if drafted_B is None else drafted_B
    running_B = np.ones(len(match_B), bool) if running_B is None else running_B
    return made.choose(match_B, drafted_B, running_B, [LIVE] * len(RUNGS))


def test_the_rungs_of_a_budget():
    assert (Rung(0, 16), Rung(0, 2), Rung(3), Rung(7), Rung(16)) == RUNGS
    assert length_rungs(1, 16, 1) == (Rung(0, 16), Rung(0, 2), Rung(1))
    assert length_rungs(4, 1, 1) == (Rung(0, 1), Rung(0, 1), Rung(4))
    assert [rung.draft_tokens for rung in length_rungs(64, 16, 4)] == [0, 0, 15, 31, 64]


@given(st.integers(1, 1000), st.integers(1, 64), st.integers(1, MOST_PROGRAMS // 2))
def test_few_programs_plain_decoding_and_the_budget_among_them(draft_tokens, plain_rounds, lives):
    rungs = length_rungs(draft_tokens, plain_rounds, lives)
    lengths = {rung.draft_tokens for rung in rungs}
    assert {0, draft_tokens} <= lengths
    assert len(lengths) * lives <= MOST_PROGRAMS
    assert lengths == {0} | {rung.draft_tokens for rung in rungs[2:]}
    assert [rung.draft_tokens for rung in rungs] == sorted(rung.draft_tokens for rung in rungs)


def test_a_cost_is_the_median_of_the_last_nine_but_never_the_first():
    costs = RoundCosts(2, [64, 128])
    assert np.isnan(costs.seconds(1, 128))
    costs.record(1, 128, 1000.0)
    assert np.isnan(costs.seconds(1, 128))
    seconds = [3.0, 1.0, 2.0, 50.0, 2.0, 2.5, 1.5, 2.2, 1.9, 7.0, 7.0, 7.0, 7.0, 7.0]
    for count, taken in enumerate(seconds, start=1):
        costs.record(1, 128, taken)
        assert costs.seconds(1, 128) == np.median(seconds[max(0, count - 9) : count])
    assert np.isnan(costs.seconds(0, 128))
    assert np.isnan(costs.seconds(1, 64))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 200), st.floats(0.0, 0.98)), min_size=1, max_size=6),
       st.lists(st.floats(0.2, 30.0), min_size=len(RUNGS) - 2, max_size=len(RUNGS) - 2),
       st.integers(0, 2**31))  # fmt: skip
def test_the_choice_is_the_best_in_expectation_to_three_percent(rows, costs, seed):
    """By the model's own estimates; that these are right is tested by themselves."""
    rng = np.random.default_rng(seed)
    seconds_R = np.array([1.0, 1.1, *costs])
    made = chooser(seconds_R)
    match_B = ints(*(match for match, _ in rows))
    for match, share in rows:
        teach(made.survival, match, share, 30, rng)
    drafted_B = rng.integers(0, K + 1, len(rows), dtype=np.int32)
    choice = choose(made, match_B, drafted_B)
    survival_BK = made.survival.of(match_B)
    used_BK = (np.arange(K) < drafted_B[:, None]) & (survival_BK >= 0.01)
    for rung, length in enumerate(LENGTH_R):
        expected = len(rows) + (survival_BK * used_BK)[:, :length].sum()
        assert choice.expected_R[rung] == pytest.approx(expected)
    np.testing.assert_array_equal(choice.cut_B, used_BK.sum(axis=1))
    least_R = np.array([seconds_R[rung:].min() for rung in range(len(RUNGS))])
    np.testing.assert_array_equal(choice.seconds_R, least_R)
    rate_R = choice.expected_R / least_R
    assert 1.03 * rate_R[choice.rung] >= rate_R[[0, *range(2, len(RUNGS))]].max() * 0.999 / 1.1
    if LENGTH_R[choice.rung]:
        assert rate_R[choice.rung] >= rate_R[1]


@settings(deadline=None, max_examples=30)
@given(st.floats(0.0, 1.0), st.integers(0, 100), st.integers(1, 8))
def test_drafting_is_left_where_a_round_costs_more_than_it_can_give(share, match, rows):
    """A round of K drafts commits at most K + 1 tokens a row; now and then one is timed."""
    made = chooser([1.0, 1.0, 4.2, 8.2, 17.2])
    rng = np.random.default_rng(match)
    teach(made.survival, match, min(share, 0.999), 50, rng)
    drafted = 0
    for _ in range(640):
        choice = choose(made, np.full(rows, match, np.int32))
        drafted += LENGTH_R[choice.rung] > 0
        assert choice.expected_R[choice.rung] / choice.seconds_R[choice.rung] >= 2 / 3 * rows
    assert drafted <= 10


def test_rows_that_keep_little_do_not_ask_for_a_longer_draft():
    """One good row drafts long; a bad one beside it changes nothing and is not drafted."""
    made, rng = chooser([1.0, 1.1, 1.2, 1.5, 2.0]), np.random.default_rng(0)
    teach(made.survival, 100, 0.95, 300, rng)
    teach(made.survival, 1, 0.05, 300, rng)
    alone = choose(made, ints(100))
    both = choose(made, ints(100, 1))
    assert LENGTH_R[alone.rung] == 16
    assert alone.cut_B[0] == both.cut_B[0] == K
    assert both.cut_B[1] <= 3
    bad = choose(made, ints(1, 1))
    assert LENGTH_R[bad.rung] <= 3


def test_idle_rows_and_empty_drafts_count_for_nothing():
    made = chooser([1.0, 1.1, 1.2, 1.5, 2.0])
    idle = choose(made, ints(9, 9), running_B=np.array([True, False]))
    alone = choose(made, ints(9))
    np.testing.assert_allclose(idle.expected_R, alone.expected_R)
    empty = choose(made, ints(9), ints(0))
    np.testing.assert_allclose(empty.expected_R, 1.0)
    assert LENGTH_R[empty.rung] == 0


def test_a_dry_round_is_short_while_drafts_pay_and_long_while_they_do_not():
    made, rng = chooser([1.0, 1.1, 1.2, 1.5, 2.0]), np.random.default_rng(0)
    teach(made.survival, 40, 0.95, 300, rng)
    assert sum(LENGTH_R[choose(made, ints(40)).rung] == 16 for _ in range(100)) >= 99
    assert RUNGS[choose(made, ints(0), ints(0)).rung] == Rung(0, 2)
    choices = [choose(made, ints(0), ints(0)) for _ in range(300)]
    assert RUNGS[choices[-1].rung] == Rung(0, 16)


def test_nearly_equal_rates_do_not_flap():
    made, rng = chooser([1.0, 1.0, 1.2, 1.5, 9.0]), np.random.default_rng(0)
    teach(made.survival, 20, 0.8, 300, rng)
    expected_R = choose(made, ints(20)).expected_R
    changes, before = 0, None
    for number in range(1, 60):  # rungs of 3 and 7 within one percent of each other
        wobble = 1 + 0.01 * (-1) ** number
        for _ in range(9):
            made.costs.record(2, LIVE, expected_R[2] / wobble)
            made.costs.record(3, LIVE, expected_R[3] * wobble)
            made.costs.record(0, LIVE, 3.0)
            made.costs.record(1, LIVE, 3.0)
        rung = choose(made, ints(20)).rung
        changes += before not in (None, rung)
        before = rung
    assert changes <= 2


@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_the_estimate_is_the_real_acceptance(share):
    """400 drafts: a mean of 17 levels within 0.4 of the truth, five standard errors at most."""
    survival, rng = Survival(K), np.random.default_rng(1)
    teach(survival, 12, share, 400, rng)
    kept = survival.of(ints(12))[0].sum()
    assert kept == pytest.approx(sum(share ** (k + 1) for k in range(K)), rel=0.25)


def test_a_cut_draft_tells_nothing_about_what_was_cut_off():
    whole, cut = Survival(K), Survival(K)
    for _ in range(50):
        whole.record(ints(5), ints(4), ints(4), ints(5))
        cut.record(ints(5), ints(K), ints(4), ints(4))  # the row ended there
    np.testing.assert_array_equal(whole.of(ints(5)), cut.of(ints(5)))
    wrong = Survival(K)
    for _ in range(50):
        wrong.record(ints(5), ints(K), ints(4), ints(K))
    assert wrong.of(ints(5))[0, 5] < 0.2 * cut.of(ints(5))[0, 5]


def simulate(made, share_of, seconds_of, rounds, rng):
    """Tokens and seconds of the chooser, and of the best rung known after the fact."""
    time = {"chosen": 0.0, "best": 0.0, "plain": 0.0}
    for number in range(rounds):
        share, seconds_R = share_of(number), seconds_of(number)
        choice = choose(made, ints(12, 12))
        noisy = seconds_R * rng.lognormal(0.0, 0.1, len(RUNGS))
        made.costs.record(choice.rung, LIVE, noisy[choice.rung])
        kept_B = np.minimum(rng.geometric(1 - share, 2) - 1, K).astype(np.int32)
        length = LENGTH_R[choice.rung] or K  # plain: in the shadow
        seen_B = np.minimum(kept_B, length)
        made.survival.record(
            ints(12, 12), np.full(2, length, np.int32), seen_B, np.minimum(seen_B + 1, length)
        )
        expected_R = np.array([sum(share**k for k in range(n + 1)) for n in LENGTH_R])
        time["chosen"] += seconds_R[choice.rung] / expected_R[choice.rung]
        time["best"] += (seconds_R / expected_R).min()
        time["plain"] += seconds_R[0]
    return time


def test_regret_is_small_while_acceptance_and_costs_drift():
    """Time a token over 3,000 rounds within 6 % of the best rung of every round, noise included."""
    rng = np.random.default_rng(3)
    base_R = np.array([1.0, 1.05, 1.3, 1.9, 3.5])
    made = chooser(base_R)
    time = simulate(
        made,
        lambda n: 0.5 + 0.45 * np.sin(n / 400) ** 2 - 0.3 * (1500 < n < 2000),
        lambda n: base_R * (1 + 0.5 * (n > 1000)) * (1 + (LENGTH_R > 7) * (n > 2200)),
        3000,
        rng,
    )
    assert time["chosen"] < 1.06 * time["best"]
    assert time["chosen"] < time["plain"]


def test_where_nothing_is_ever_kept_it_is_as_fast_as_plain_decoding():
    """Within 3 %: drafts of which nothing is known are tried for a few rounds."""
    base_R = np.array([1.0, 1.05, 1.3, 1.9, 3.5])
    time = simulate(
        chooser(base_R), lambda n: 0.01, lambda n: base_R, 1000, np.random.default_rng(0)
    )
    assert time["chosen"] < 1.03 * time["plain"]


@pytest.mark.parametrize("kept", [0.0, 0.35, 0.6, 0.9])
@pytest.mark.parametrize("wrongly", [1.0, 1.6])
def test_it_is_never_slower_than_plain_decoding(kept, wrongly):
    """At least 0.97 of its speed, with dispatches that cost as much as half a round.

    Drafts come in stretches. Costs are noisy, and that of plain decoding at length, which nobody
    runs while drafts pay, may have been measured wrongly before.
    """
    dispatch, round_R = 0.5, np.array([1.0, 1.0, 2.0, 3.0, 6.0])
    rounds_R = np.array([rung.rounds for rung in RUNGS])
    seconds_R = round_R + dispatch / rounds_R  # of a round
    made, rng = DraftLength(RUNGS, [LIVE]), np.random.default_rng(1)
    for rung, seconds in enumerate(seconds_R):
        for _ in range(9):
            made.costs.record(rung, LIVE, seconds * (1 if rung else wrongly))
    tokens = time = 0.0
    dry = True
    for _ in range(4000):
        dry ^= rng.random() < 0.2
        drafted_B = ints(0 if dry else K, K)
        choice = choose(made, ints(5, 5), drafted_B)
        length = LENGTH_R[choice.rung]
        rounds = rounds_R[choice.rung]
        time += rounds * seconds_R[choice.rung]
        tokens += 2 * rounds
        made.costs.record(choice.rung, LIVE, seconds_R[choice.rung] * rng.lognormal(0.0, 0.1))
        would_B = rng.geometric(1 - kept, 2).astype(np.int32) - 1
        cut_B = np.minimum(choice.cut_B, length) if length else drafted_B
        kept_B = np.minimum(would_B, cut_B)
        made.survival.record(ints(5, 5), cut_B, kept_B, np.full(2, K + 1, np.int32))
        tokens += kept_B.sum() if length else 0
    assert tokens / time > 0.97 * 2 / seconds_R[0]
    if kept > 0.8:
        assert tokens / time > 1.2 * 2 / seconds_R[0]
