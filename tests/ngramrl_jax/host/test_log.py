"""The log keeps every rollout whole, and its chains lead to every place of a text."""

import numpy as np

from ngramrl_jax.host import log as logs
from ngramrl_jax.host.log import GRAMS, NONE, START


def filled(capacity=4096, rollouts=40, laws=True, seed=0):
    """A log of random rollouts of three prompts, with what was put in."""
    rng = np.random.default_rng(seed)
    log, told = logs.allocate(capacity), []
    for _ in range(rollouts):
        size = int(rng.integers(1, 20))
        tokens_N = rng.integers(0, 3, size, np.int32)
        laws_N = rng.integers(0, 3 if laws else 1, size, np.int32)
        ids_M = rng.integers(0, 9, laws_N.sum(), np.int32)
        probs_M = rng.integers(0, 2**16, laws_N.sum(), np.uint16)
        prompt_id = int(rng.integers(3))
        begin = logs.append(log, prompt_id, tokens_N, laws_N, ids_M, probs_M)
        told.append((begin, prompt_id, tokens_N, laws_N, ids_M, probs_M))
    return log, told


def assert_stored(log, told):
    for begin, prompt_id, tokens_N, laws_N, ids_M, probs_M in told:
        end = begin + 1 + tokens_N.size
        assert log.tokens_C[begin] == START
        np.testing.assert_array_equal(log.tokens_C[begin + 1 : end], tokens_N)
        assert (log.owner_C[begin:end] == prompt_id).all()
        np.testing.assert_array_equal(np.diff(log.law_C[begin:end]), laws_N)
        entries = slice(log.law_C[begin], log.law_C[end])
        np.testing.assert_array_equal(log.ids_E[entries], ids_M)
        np.testing.assert_array_equal(log.probs_E[entries], probs_M)


def grams(log, told, gram):
    """Places, newest first, of each prompt and gram: all back to START where that is nearer."""
    places = {}
    for begin, prompt_id, tokens_N, *_ in reversed(told):
        text = [START, *tokens_N.tolist()]
        for n in range(tokens_N.size - 1, -1, -1):
            last = tuple(text[max(0, n + 1 - gram) : n + 1])
            places.setdefault((prompt_id, last), []).append(begin + n)
    return places


def assert_chained(log, told):
    """Each chain passes through all places of a gram, newest first, and through few others."""
    for size, gram in enumerate(GRAMS):
        strangers = 0
        for (prompt_id, _), places in grams(log, told, gram).items():
            bucket = logs.bucket_of(
                log.tokens_C, 0, places[0] + 1, gram, prompt_id, log.bucket_GH.shape[1]
            )
            chain, position = [], log.bucket_GH[size, bucket]
            while position != NONE:
                chain.append(int(position))
                position = log.chain_GC[size, position]
            assert chain == sorted(set(chain), reverse=True)
            assert [position for position in chain if position in set(places)] == places
            strangers += len(chain) - len(places)
        assert strangers < 0.2 * log.used[0]


def test_every_rollout_is_kept_with_its_laws_and_its_places_are_chained():
    log, told = filled()
    assert_stored(log, told)
    assert_chained(log, told)


def test_a_text_and_a_rollout_with_the_same_end_have_the_same_bucket():
    """START included, wherever either of them stands."""
    text = np.array([7, 7, 1, 2, 3, 4, 5], np.int32)
    other = np.array([START, 1, 2, 3, 4, 5], np.int32)
    for gram in (1, 4):
        for size in range(6):
            one = logs.bucket_of(text, 2, 2 + size, gram, 9, 2**16)
            assert one == logs.bucket_of(other, 0, 1 + size, gram, 9, 2**16)
            assert one != logs.bucket_of(other, 0, 1 + size, gram, 8, 2**16)


def test_moving_together_keeps_what_is_named_and_nothing_else():
    log, told = filled()
    kept = told[3::3]
    begin_R = np.array([one[0] for one in kept], np.int32)
    size_R = np.array([one[2].size for one in kept], np.int32)
    logs.move_together(log, begin_R, size_R)
    logs.chain_all(log)
    kept = [(int(begin), *one[1:]) for begin, one in zip(begin_R, kept, strict=True)]
    assert log.used.tolist() == [sum(size_R) + len(kept), sum(one[4].size for one in kept)]
    assert_stored(log, kept)
    assert_chained(log, kept)
    smaller = logs.resized(log, int(log.used[0]))
    logs.chain_all(smaller)
    assert_stored(smaller, kept)
    logs.move_together(log, np.zeros(0, np.int32), np.zeros(0, np.int32))
    logs.chain_all(log)
    assert log.used.tolist() == [0, 0]
    assert (log.bucket_GH == NONE).all()


def test_a_log_takes_no_more_bytes_than_stated():
    for capacity in (0, 1, 2, 3, 64, 1000, 1023, 1024, 1025):
        most = logs.POSITION_BYTES * capacity + logs.EMPTY_BYTES
        assert logs.allocate(capacity).nbytes <= most
