"""The parts of the evidence: near-ties, repeats, rounding, the random transformer, drafters."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ngramrl_jax.evidence.drafters import HostileDrafter, ScriptedDrafter
from ngramrl_jax.evidence.independence import NOBODY, WIDE, asked_ids, freedman_tail
from ngramrl_jax.evidence.plain_forward import PlainForward, law
from ngramrl_jax.evidence.random_policy import RandomPolicy
from ngramrl_jax.evidence.rounding import Rounding, last_place, rounding_of, shaken
from ngramrl_jax.evidence.same_tokens import at_edge, is_near_tie, parting
from ngramrl_jax.evidence.table_policy import TablePolicy
from ngramrl_jax.types import Rollout, Sampling


def rollout(prompt, tokens, prompt_id=0, sibling=0):
    count = len(tokens)
    return Rollout(
        prompt_id=prompt_id,
        sibling=sibling,
        prompt_P=np.asarray(prompt, np.int32),
        tokens_N=np.asarray(tokens, np.int32),
        logps_N=np.zeros(count, np.float32),
        drafted_N=np.zeros(count, bool),
        truncated=False,
        policy_version=0,
        step=0,
        rounds=1,
    )


def test_parting_is_the_first_difference_or_the_shorter_end():
    assert parting(rollout([1], [1, 2, 3]), rollout([1], [1, 2, 3])) is None
    assert parting(rollout([1], [1, 2, 3]), rollout([1], [1, 3, 3])) == 1
    assert parting(rollout([1], [1, 2]), rollout([1], [1, 2, 3])) == 2


def test_a_near_tie_depends_on_the_tolerance_alone():
    forward, table = PlainForward(TablePolicy(4), 8), jnp.zeros((4, 4, 4))
    text = rollout([1, 2], [3, 1])
    ties = [is_near_tie(forward, table, Sampling(), 0, text, 1, tie) for tie in (1e-6, 100.0)]
    assert ties == [False, True]


def test_edges_of_top_k_and_top_p():
    logits = np.log(np.asarray([0.5, 0.3, 0.1, 0.1], np.float32))
    assert at_edge(logits, Sampling(top_k=3), 1e-4)
    assert not at_edge(logits, Sampling(top_k=2), 1e-4)
    assert at_edge(logits, Sampling(top_p=0.8), 1e-4)
    assert not at_edge(logits, Sampling(top_p=0.85), 1e-4)
    assert not at_edge(logits, Sampling(), 1e-4)


def test_the_plain_forward_tells_the_law_of_every_position():
    table = jax.random.normal(jax.random.key(0), (5, 5, 5))
    sampling = Sampling(0.7, top_k=3)
    forward = PlainForward(TablePolicy(5), 12)
    texts = [rollout([1, 2], [3, 4, 0]), rollout([4], [2])]
    asked = [np.asarray([[3, 1], [4, NOBODY], [0, 2]], np.int32), np.asarray([[2, 2]], np.int32)]
    told = forward.score(table, texts, asked, sampling)
    contexts = [[(1, 2), (2, 3), (3, 4)], [(0, 4)]]
    for said, ids_NC, pairs in zip(told, asked, contexts, strict=True):
        for at, pair in enumerate(pairs):
            law_V = law(np.asarray(table[pair]), sampling)
            kept = law_V[law_V > 0]
            assert said.entropy_N[at] == pytest.approx(-(kept * np.log(kept)).sum(), abs=1e-5)
            for column, token in enumerate(ids_NC[at]):
                expected = 0.0 if token == NOBODY else law_V[token]
                assert np.exp(said.logp_NC[at, column]) == pytest.approx(expected, abs=1e-6)
    last = forward.next_logits(table, np.asarray([1, 2, 3], np.int32))
    np.testing.assert_array_equal(last, table[2, 3])


def test_what_is_asked_about_a_token():
    first = [rollout([1], [9, 8], 0, s) for s in (0, 1)]
    second = [
        rollout([1], [5, 6, 5], 0, 0),
        rollout([1], [5, 7], 0, 1),
        rollout([1, 1], [3, 4], 1, 0),
        rollout([1, 1], [4], 1, 1),
    ]
    asked = asked_ids(first, second)
    assert asked[0][:, :4].tolist() == [[5, -1, 9, -1], [6, -1, 8, -1], [5, -1, -1, -1]]
    assert asked[1][:, :4].tolist() == [[5, 5, 9, -1], [7, 6, 8, -1]]
    # The second prompt is one token longer: the first one's place there is one further on.
    assert asked[2][:, :4].tolist() == [[3, -1, -1, 6], [4, -1, -1, 5]]
    assert asked[3][0, :4].tolist() == [4, 3, -1, 7]
    earlier = asked[0][:, 3 + WIDE : 5 + WIDE].tolist()
    assert earlier == [[-1, -1], [5, -1], [5, 6]]  # each earlier token once


@pytest.mark.stat
def test_freedman_bounds_the_error_rate_and_still_finds_a_dependence():
    """10,000 right samples: at alpha 0.05 at most 500 alarms are expected, 600 in a bad draw."""
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.01, 0.6, 400)
    variance = float((chance * (1 - chance)).sum())
    hits = (rng.random((10_000, 400)) < chance).sum(1)
    p_values = [freedman_tail(float(hit - chance.sum()), variance) for hit in hits]
    assert np.mean(np.asarray(p_values) < 0.05) < 0.06
    assert freedman_tail(0.4 * float(chance.sum()), variance) < 1e-5
    assert freedman_tail(0.0, variance) == 1.0


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def random_policy(request):
    policy = RandomPolicy(width=32, vocab_size=40, dtype=jnp.dtype(request.param))
    return policy, policy.init_params(jax.random.key(1)), request.param


def test_the_random_transformer_reads_its_cache(random_policy):
    """Whole texts, and the same in pieces with a rejected draft in between, give one law."""
    policy, params, dtype = random_policy
    tokens = jax.random.randint(jax.random.key(2), (2, 12), 0, 40)
    start = jnp.zeros(2, jnp.int32)
    whole, _ = policy.forward(params, tokens, start, policy.init_cache(2, 16), live=16)
    cache = policy.init_cache(2, 16)
    _, cache = policy.forward(params, tokens[:, :5], start, cache, live=8)
    _, cache = policy.forward(params, 39 - tokens[:, 5:9], start + 5, cache, live=16)
    rest, _ = policy.forward(params, tokens[:, 5:], start + 5, cache, live=16)
    np.testing.assert_allclose(rest, whole[:, 5:], atol=1e-4 if dtype == "float32" else 0.3)
    assert jnp.std(whole) > 1.5  # a law worth sampling from


def test_rounding_is_small_in_float32_and_large_in_bfloat16(random_policy):
    policy, params, dtype = random_policy
    forward = PlainForward(policy, 16)
    texts = [rollout([1, 2], list(range(3, 10)))]
    moved = shaken(params, np.float32(last_place(dtype)), jax.random.key(0))
    found = rounding_of(forward, params, moved, texts, Sampling())
    if dtype == "float32":
        assert found == Rounding(1e-4, 1e-4)
    else:
        assert 2e-3 < found.rms < found.tie < 4.0


def test_shaking_leaves_whole_numbers_alone():
    params = {"ids": jnp.arange(3), "half": jnp.ones(4, jnp.bfloat16)}
    moved = shaken(params, np.float32(2.0**-7), jax.random.key(0))
    np.testing.assert_array_equal(moved["ids"], params["ids"])
    assert moved["half"].dtype == jnp.bfloat16
    assert set(np.asarray(moved["half"], np.float32)) <= {1 - 2**-7, 1 + 2**-7}


def test_a_script_goes_on_as_the_row_does():
    drafter = ScriptedDrafter(2, 3, {4: np.asarray([7, 8, 9, 6], np.int32)})
    drafter.start_row(0, 4, np.zeros(1, np.int32))
    draft, length = drafter.propose(np.asarray([3, 0], np.int32))
    assert (draft[0].tolist(), length.tolist()) == ([7, 8, 9], [3, 0])
    drafter.commit(np.zeros((2, 4), np.int32), np.asarray([2, 0], np.int32))
    draft, length = drafter.propose(np.asarray([3, 0], np.int32))
    assert (draft[0].tolist(), length.tolist()) == ([9, 6, 0], [2, 0])


def test_hostile_drafts_leave_the_vocabulary():
    drafter = HostileDrafter(64, 3, vocab_size=4, seed=0)
    drafts, lengths = drafter.propose(np.full(64, 2, np.int32))
    assert (drafts.min(), drafts.max()) == (-1, 4)
    assert set(lengths) == {0, 1, 2}


def test_positions_of_float32_products_on_other_devices(monkeypatch):
    eps = {}
    for backend in ("cpu", "gpu", "tpu"):
        monkeypatch.setattr(jax, "default_backend", lambda name=backend: name)
        eps[backend] = last_place("float32")
    assert eps == {"cpu": 2.0**-23, "gpu": 2.0**-10, "tpu": 2.0**-7}
    assert last_place("bfloat16") == 2.0**-7
    with jax.default_matmul_precision("highest"):
        assert last_place("float32") == 2.0**-23


def test_rollouts_of_other_identities_are_never_compared():
    one = rollout([1], [1])
    with pytest.raises(AssertionError):
        parting(one, replace(one, sibling=1))
