"""Padding, masks and the deal into micro-batches."""

import numpy as np
import pytest

from ngramrl_jax.types import Rollout
from train.batching import LADDER, ladder_length, rollout_batch, supervised_batch
from train.objectives import sequence_mean, token_mean


def rollout(prompt, response, logps=None):
    tokens_N = np.array(response, np.int32)
    logps_N = -np.arange(1.0, len(response) + 1) if logps is None else logps
    return Rollout(
        prompt_id=0,
        sibling=0,
        prompt_P=np.array(prompt, np.int32),
        tokens_N=tokens_N,
        logps_N=np.asarray(logps_N, np.float32),
        drafted_N=np.zeros(len(response), bool),
        truncated=False,
        policy_version=0,
        step=0,
        rounds=len(response),
    )


def random_rollouts(count, seed=0):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, [40, 30], size=(count, 2))
    return [rollout(rng.integers(99, size=p), rng.integers(99, size=r)) for p, r in sizes]


def rows_of(batch):
    """Every real row as (prompt, response, logps, advantage), read back by start and mask."""
    for m, b in np.argwhere(batch.mask_BR.any(axis=-1)):
        start, count = batch.start_B[m, b], batch.mask_BR[m, b].sum()
        tokens_T = batch.tokens_BT[m, b]
        assert not tokens_T[start + count :].any()
        yield (
            tokens_T[:start].tolist(),
            tokens_T[start : start + count].tolist(),
            batch.rollout_logp_BR[m, b, :count].tolist(),
            float(batch.advantage_B[m, b]),
        )


@pytest.mark.parametrize("micro_rows", [1, 3, 4, 32])
def test_every_rollout_is_there_once_whatever_the_split(micro_rows):
    rollouts = random_rollouts(13)
    advantage_N = np.arange(13.0)
    batch = rollout_batch(rollouts, advantage_N, micro_rows=micro_rows, weights=sequence_mean)
    assert batch.tokens_BT.shape[:2] == (-(-13 // micro_rows), micro_rows)
    wanted = [
        (r.prompt_P.tolist(), r.tokens_N.tolist(), r.logps_N.tolist(), a)
        for r, a in zip(rollouts, advantage_N, strict=True)
    ]
    assert sorted(rows_of(batch)) == sorted(wanted)
    np.testing.assert_allclose(batch.weight_BR.sum(), 1.0, rtol=1e-5)
    assert (batch.weight_BR[~batch.mask_BR] == 0).all()


def test_masks_come_from_lengths_not_from_ids():
    """A response full of the padding's own id is trained on, token for token."""
    batch = rollout_batch(
        [rollout([0, 0], [0, 0, 0]), rollout([3], [4])],
        np.ones(2),
        micro_rows=2,
        weights=token_mean,
    )
    assert batch.mask_BR.sum(axis=-1).tolist() == [[3, 1]]
    from_ids_NT = batch.tokens_BT != 0  # the planted fault
    assert from_ids_NT.sum() != batch.mask_BR.sum() + 3


def test_the_stop_token_counts_and_nothing_after_it():
    batch = rollout_batch([rollout([5], [7, 0])], [1.0], micro_rows=1, weights=token_mean)
    assert batch.mask_BR[0, 0, :3].tolist() == [True, True, False]


def test_supervised_rows_end_with_the_stop_token():
    batch = supervised_batch([[5, 6], [8]], [[7], [9, 10]], stop_id=1, micro_rows=1)
    assert batch.rollout_logp_BR is None
    assert batch.tokens_BT[:, 0, :5].tolist() == [[5, 6, 7, 1, 0], [8, 9, 10, 1, 0]]
    assert batch.start_B.tolist() == [[2], [1]]
    assert batch.mask_BR.sum(axis=(1, 2)).tolist() == [2, 3]
    np.testing.assert_allclose(batch.weight_BR[batch.mask_BR], 0.2)


def test_micro_batches_hold_about_as_many_tokens():
    rollouts = random_rollouts(64)
    batch = rollout_batch(rollouts, np.zeros(64), micro_rows=8, weights=token_mean)
    tokens_M = batch.start_B.sum(axis=1) + batch.mask_BR.sum(axis=(1, 2))
    longest = max(len(r.prompt_P) + len(r.tokens_N) for r in rollouts)
    assert np.ptp(tokens_M) <= longest  # dealt in turn from a sorted list


def test_shapes_climb_a_short_ladder():
    assert ladder_length(1) == 32
    assert ladder_length(32) == 32
    assert ladder_length(33) == 48
    assert ladder_length(49) == 64
    assert len([step for step in LADDER if step <= 2048]) == 13
    for length in range(33, 3000):
        assert length <= ladder_length(length) < 1.5 * length
    with pytest.raises(ValueError, match="row length: found 65, allowed: at most 64"):
        ladder_length(65, (32, 64))


def test_a_short_batch_can_keep_the_shape_of_a_full_one():
    full = supervised_batch([[1]] * 8, [[2]] * 8, stop_id=0, micro_rows=4)
    short = supervised_batch([[1]] * 3, [[2]] * 3, stop_id=0, micro_rows=4, rows=8)
    assert short.tokens_BT.shape == full.tokens_BT.shape
    assert short.mask_BR.sum() == 6
    np.testing.assert_allclose(short.weight_BR.sum(), 1.0)


def test_what_cannot_be_trained_on_is_refused():
    good = rollout([1], [2])
    with pytest.raises(ValueError, match="advantages: found shape"):
        rollout_batch([good], [1.0, 2.0], micro_rows=1, weights=token_mean)
    with pytest.raises(ValueError, match="found no rows"):
        rollout_batch([], [], micro_rows=1, weights=token_mean)
    with pytest.raises(ValueError, match="empty prompt or response"):
        rollout_batch([rollout([1], [])], [1.0], micro_rows=1, weights=token_mean)
    with pytest.raises(ValueError, match="micro_rows: found 0"):
        rollout_batch([good], [1.0], micro_rows=0, weights=token_mean)
    with pytest.raises(ValueError, match="responses: found 2"):
        supervised_batch([[1]], [[2], [3]], stop_id=0, micro_rows=1)
