"""Which items a step trains on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.data_order import left_over, more_items, step_items, steps_per_epoch


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 5))
def test_an_epoch_visits_items_once_and_the_next_in_another_order(items, per_step, seed):
    if items < per_step:
        words = f"found {per_step}, allowed: at most {items}; you have {items} training prompt"
        with pytest.raises(ValueError, match=f"prompts_per_step: {words}"):
            steps_per_epoch(items, per_step)
        return
    steps = steps_per_epoch(items, per_step)
    epochs = [
        np.concatenate([step_items(e * steps + s, items, per_step, seed) for s in range(steps)])
        for e in range(2)
    ]
    for visited in epochs:
        assert len(set(visited.tolist())) == len(visited) == steps * per_step
        assert len(visited) + left_over(items, per_step) == items
        assert set(visited.tolist()) <= set(range(items))
    if items > 12 and per_step == 1:
        assert epochs[0].tolist() != epochs[1].tolist()


def test_seed_and_step_alone_decide():
    assert step_items(7, 20, 4, 1).tolist() == step_items(7, 20, 4, 1).tolist()
    assert step_items(7, 20, 4, 1).tolist() != step_items(7, 20, 4, 2).tolist()


@given(st.integers(1, 30), st.integers(0, 30), st.integers(1, 4), st.integers(0, 5))
def test_a_step_that_wants_more_gets_each_other_item_once(items, taken, attempt, seed):
    taken = np.arange(min(taken, items))
    more = more_items(3, attempt, items, taken, seed)
    assert sorted(more.tolist() + taken.tolist()) == list(range(items))
    assert more.tolist() == more_items(3, attempt, items, taken, seed).tolist()
    if len(more) > 10:
        assert more.tolist() != more_items(4, attempt, items, taken, seed).tolist()
        assert more.tolist() != more_items(3, attempt + 1, items, taken, seed).tolist()
