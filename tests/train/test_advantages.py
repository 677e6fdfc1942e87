import numpy as np
import pytest

from train.advantages import group_advantages


def test_the_standard_deviation_has_ddof_1():
    advantage_GN = group_advantages([[1.0, 0.0, 0.0, 0.0]])
    assert advantage_GN.dtype == np.float32
    np.testing.assert_allclose(advantage_GN[0, 0], 1.4997, atol=5e-5)  # ddof 0 gives 1.7317
    np.testing.assert_allclose(advantage_GN.sum(), 0.0, atol=1e-6)


def test_without_division_it_is_the_distance_from_the_mean():
    advantage_GN = group_advantages([[1.0, 0.0, 0.0, 0.0]], standardise=False)
    np.testing.assert_allclose(advantage_GN, [[0.75, -0.25, -0.25, -0.25]])


@pytest.mark.parametrize("standardise", [True, False])
def test_a_group_without_spread_or_of_one_teaches_nothing(standardise):
    # 0.1 three times: the mean rounds, and a naive deviation would not be 0.
    for reward_GN in ([[1.0] * 4, [0.1] * 4], [[0.1] * 3, [0.7] * 3], [[3.0]]):
        advantage_GN = group_advantages(reward_GN, standardise=standardise)
        assert (advantage_GN == 0.0).all()


def test_groups_do_not_see_one_another():
    rng = np.random.default_rng(0)
    reward_GN = rng.normal(size=(5, 8))
    alone = np.concatenate([group_advantages(row_N[None]) for row_N in reward_GN])
    np.testing.assert_array_equal(group_advantages(reward_GN), alone)


@pytest.mark.parametrize("bad", [np.nan, np.inf, None])
def test_a_reward_that_is_no_number_is_named(bad):
    with pytest.raises(ValueError, match=r"rewards: found .* rollout 1 of group 0"):
        group_advantages([[1.0, bad, 0.0]])


def test_a_vector_is_refused():
    with pytest.raises(ValueError, match=r"found shape \(3,\)"):
        group_advantages([1.0, 0.0, 0.0])
