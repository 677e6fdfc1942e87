"""Wire format, order, ladder, prefix index and slots: the engine's small host parts."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramrl_jax.rollout.ladder import length_ladder, rung_for
from ngramrl_jax.rollout.order import wave_order
from ngramrl_jax.rollout.prefixes import PrefixIndex
from ngramrl_jax.rollout.slots import SlotTable
from ngramrl_jax.rollout.wire import (
    RoundResult,
    pack_drafts,
    pack_result,
    unpack_drafts,
    unpack_result,
)
from ngramrl_jax.types import RolloutRequest


def test_a_result_survives_the_wire_bit_for_bit():
    logp_BT = np.asarray([[-0.1, -np.inf, -88.5], [0.0, -1e-30, -3.0]], np.float32)
    best_BTR = np.arange(12, dtype=np.int32).reshape(2, 3, 2)
    best_logp_BTR = -best_BTR.astype(np.float32) / 7
    packed = pack_result(
        jnp.asarray([2, 0]),
        jnp.asarray([1, 0]),
        jnp.asarray([True, False]),
        jnp.asarray([[5, -1, 7], [1, 2, 3]]),
        jnp.asarray(logp_BT),
        jnp.asarray(best_BTR),
        jnp.asarray(best_logp_BTR),
    )
    result = unpack_result(np.asarray(packed), 2)
    assert result.count_B.tolist() == [2, 0]
    assert result.kept_B.tolist() == [1, 0]
    assert result.stopped_B.tolist() == [True, False]
    assert result.tokens_BT.tolist() == [[5, -1, 7], [1, 2, 3]]
    np.testing.assert_array_equal(result.logp_BT, logp_BT)
    np.testing.assert_array_equal(result.best_BTR, best_BTR)
    np.testing.assert_array_equal(result.best_logp_BTR, best_logp_BTR)


def test_a_draft_table_survives_the_wire_and_is_fresh():
    draft_BK, length_B = np.asarray([[3, 4], [0, 0]], np.int32), np.asarray([2, 0], np.int32)
    table = pack_drafts(draft_BK, length_B)
    assert not np.shares_memory(table, draft_BK)
    got_BK, got_B = unpack_drafts(jnp.asarray(table))
    np.testing.assert_array_equal(got_BK, draft_BK)
    np.testing.assert_array_equal(got_B, length_B)


def request(prompt_id, sibling):
    return RolloutRequest(prompt_id, sibling, np.ones(1, np.int32), 1)


@given(st.permutations([(p, s) for p in range(4) for s in range(3)]), st.integers(1, 3))
def test_waves_of_siblings_longest_expected_first(shuffled, wave):
    expected = {0: 5.0, 1: 50.0, 2: 5.0}
    order = wave_order([request(p, s) for p, s in shuffled], expected, wave)
    seen = [(r.sibling // wave, -expected.get(r.prompt_id, 0.0)) for r in order]
    assert seen == sorted(seen)
    assert sorted(r.identity for r in order) == sorted((p, s, 0) for p, s in shuffled)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_ladder_is_short_and_covers(longest, length):
    ladder = length_ladder(longest)
    assert ladder[-1] == longest
    assert list(ladder) == sorted(set(ladder))
    assert len(ladder) <= 8
    if length <= longest:
        rung = rung_for(length, ladder)
        assert length <= rung <= max(2 * length, 64)


def test_the_prefix_index_is_bounded_and_forgets_the_least_recently_used():
    index = PrefixIndex(2)
    first, second = index.add(10), index.add(11)
    assert {first, second} == {0, 1}
    assert index.find(10) == first
    assert index.add(12) == second  # 11 was used longest ago
    assert index.find(11) is None
    assert index.find(10) == first
    index.clear()
    assert index.find(10) is None
    assert {index.add(1), index.add(2)} == {0, 1}


def result(tokens, count, kept, stopped):
    tokens_BT = np.asarray(tokens, np.int32)
    return RoundResult(
        np.asarray(count, np.int32),
        np.asarray(kept, np.int32),
        np.asarray(stopped),
        tokens_BT,
        -tokens_BT.astype(np.float32),
        tokens_BT[..., None] + np.arange(2, dtype=np.int32),
        -tokens_BT[..., None] - np.arange(2, dtype=np.float32),
    )


def test_slots_record_ragged_rounds():
    slots = SlotTable(rows=3, longest_response=6, best_tokens=2)
    assert slots.idle_rows().tolist() == [0, 1, 2]
    for row, room in ((0, 6), (2, 3)):
        slots.place(row, RolloutRequest(row, 0, np.ones(4, np.int32), room), np.zeros(2, np.uint32))
    ones = np.asarray([1, 0, 1], np.int32)
    slots.record(result([[1, 2], [8, 8], [3, 9]], [2, 0, 1], [1, 0, 0], [False] * 3), ones)
    assert slots.length_B[[0, 2]].tolist() == [6, 5]
    assert slots.room_B.tolist() == [4, 0, 2]
    assert list(slots.finished_rows()) == []
    slots.record(result([[4, 9], [8, 8], [5, 6]], [1, 0, 2], [0, 0, 2], [True, False, False]), ones)
    assert list(slots.finished_rows()) == [0, 2]
    stopped = slots.take(0, stopped=True, policy_version=1, step=2)
    full = slots.take(2, stopped=False, policy_version=1, step=2)
    assert stopped.tokens_N.tolist() == [1, 2, 4]
    assert stopped.logps_N.tolist() == [-1, -2, -4]
    assert stopped.drafted_N.tolist() == [True, False, False]
    assert stopped.best.ids_NR.tolist() == [[1, 2], [2, 3], [4, 5]]
    assert stopped.best.logps_NR.tolist() == [[-1, -2], [-2, -3], [-4, -5]]
    assert (stopped.truncated, stopped.rounds) == (False, 2)
    assert full.tokens_N.tolist() == [3, 5, 6]
    assert full.truncated
    assert slots.idle_rows().tolist() == [0, 1, 2]


@pytest.mark.parametrize("entries", [1, 3])
def test_prefix_entries_are_used_before_any_is_pushed_out(entries):
    index = PrefixIndex(entries)
    assert sorted(index.add(prompt) for prompt in range(entries)) == list(range(entries))
