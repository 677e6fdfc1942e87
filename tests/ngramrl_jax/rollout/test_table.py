"""Host and device pick the same drafts from a table, and only from a row's own line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.rollout.misses import MissRule
from ngramrl_jax.rollout.table import (
    WHOLE_WEIGHT,
    DraftTable,
    choose,
    fresh_table,
    pack_table,
    set_certain,
    unpack_table,
)

B, F, K = 5, 3, 4


def random_table(rng) -> DraftTable:
    def some(*shape, most=3):
        return rng.integers(0, most, shape, dtype=np.int32)

    key_BW = rng.integers(0, 2**32, (B, 2), dtype=np.uint32)
    weight_B = some(B, most=WHOLE_WEIGHT)
    return DraftTable(key_BW, weight_B, some(B, F), some(B, F), some(B, F), some(B, F, K, most=99))


@jax.jit
def on_device(packed_BX, length_B, last_B, room_B, key_BW):
    choice = choose(unpack_table(packed_BX, K), length_B, last_B, room_B, key_BW, jnp)
    return tuple(vars(choice).values())


@pytest.mark.parametrize("seed", range(30))
def test_host_and_device_pick_alike(seed):
    rng = np.random.default_rng(seed)
    table = random_table(rng)
    key_BW = np.where(rng.random((B, 1)) < 0.2, table.key_BW[::-1], table.key_BW)
    rows = (*rng.integers(0, 3, (3, B), dtype=np.int32), key_BW)
    host = choose(table, *rows, np)
    for here, there in zip(vars(host).values(), on_device(pack_table(table), *rows), strict=True):
        np.testing.assert_array_equal(here, np.asarray(there))
    for row in np.flatnonzero(host.found_B):
        entries = zip(table.length_BF[row], table.last_BF[row], strict=True)
        entry = list(entries).index((rows[0][row], rows[1][row]))
        assert (table.draft_BFK[row, entry] == host.draft_BK[row]).all()
        assert (table.key_BW[row] == key_BW[row]).all()
    assert not host.draft_BK[~host.found_B].any()


def test_a_slot_that_changed_hands_finds_nothing():
    table = random_table(np.random.default_rng(0))
    rows = table.length_BF[:, 1], table.last_BF[:, 1], np.full(B, 9, np.int32)
    assert choose(table, *rows, table.key_BW, np).found_B.all()
    for word in (0, 1):
        other_BW = table.key_BW.copy()
        other_BW[:, word] ^= 1
        choice = choose(table, *rows, other_BW, np)
        assert not choice.found_B.any()
        assert choice.missed_B.all()


def test_a_certain_row_has_one_entry_in_arrays_of_the_table_alone():
    certain_B = np.array([True, False, True, False, False])
    key_BW = np.ones((B, 2), np.uint32)
    table = fresh_table(None, key_BW, np.zeros(B, np.int32), F, K)
    length_B, last_B, drafted_B = np.full((3, B), 7, np.int32)
    set_certain(table, certain_B, key_BW, length_B, last_B, np.full((B, K), 5, np.int32), drafted_B)
    key_BW[:] = length_B[:] = 0
    room_B = np.full(B, 9, np.int32)
    sevens_B, ones_BW = np.full(B, 7, np.int32), np.ones((B, 2), np.uint32)
    choice = choose(table, sevens_B, sevens_B, room_B, ones_BW, np)
    np.testing.assert_array_equal(choice.found_B, certain_B)
    assert (choice.draft_BK[certain_B] == 5).all()


@pytest.mark.parametrize(
    ("rows", "missing", "share", "stops"),
    [
        (1, 1, 0.4, True),  # alone: a draft is worth half of the row's tokens
        (1, 1, 0.6, False),
        (32, 1, 0.1, False),  # one miss never stops a large batch
        (32, 7, 0.1, True),
        (32, 1, 0.0, True),
    ],
)
def test_misses_stop_a_round_where_they_cost_more_than_a_look_up(rows, missing, share, stops):
    """Every row keeps one token of a draft on average, so a miss costs 1 / (2 rows) of a round."""
    rule = MissRule(rows, share)
    weight_B = rule.weights(np.ones(rows, bool))
    assert (weight_B[:missing].sum() > WHOLE_WEIGHT) == stops


def test_rows_that_keep_nothing_are_not_waited_for():
    rule = MissRule(2, 0.3)
    for _ in range(40):
        rule.drafted(np.array([4, 4], np.int32), np.array([0, 4], np.int32))
    useless, useful = rule.weights(np.ones(2, bool))
    assert useless < WHOLE_WEIGHT < useful


def test_what_a_look_up_costs_may_be_measured():
    rule = MissRule(1, None)
    assert rule.look_up_share == 0.15
    for _ in range(40):
        rule.looked_up(0.004)
        rule.ran(0.01)
    assert rule.look_up_share == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("rows", "miss", "ending", "waiting", "ahead"),
    [
        (4, 0.0, 0.0, True, True),
        (4, 1.0, 0.0, True, True),  # the device may still call the round off
        (4, 0.0, 1.0, True, False),  # one of four would idle, which costs 0.25
        (4, 0.0, 1.0, False, True),  # nobody waits for its slot
        (16, 0.0, 1.0, True, True),  # one of sixteen
        (16, 1.0, 1.0, True, False),  # and a look-up is due besides
    ],
)
def test_a_round_is_sent_ahead_unless_slots_would_idle(rows, miss, ending, waiting, ahead):
    """A look-up costs 0.1; all rows are as good; all may miss, one may end."""
    miss_B, ending_B = np.full(rows, miss, np.float32), np.zeros(rows, np.float32)
    ending_B[0] = ending
    sends = MissRule(rows, 0.1).sends_ahead(np.ones(rows, bool), miss_B, ending_B, waiting=waiting)
    assert sends == ahead
