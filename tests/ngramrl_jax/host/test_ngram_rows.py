"""A row is drafted from its own sources, alike in whatever company and by however many threads."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ngramrl_jax.host import ngram
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.snapshot import from_arrays
from ngramrl_jax.types import BestTokens
from tests.support.drafter_reference import START
from tests.support.drafters import best_tokens, drafts

VOCAB = 4  # of each prompt


def crowd(rng, rows, prompts=5):
    """Rows of several prompts, whose tokens and keys differ, as arguments of `start_row`."""
    prompt_B = rng.integers(0, prompts, rows)
    return [
        (
            int(prompt_id),
            rng.integers(0, VOCAB, 6) + 100 * prompt_id,
            rng.integers(0, 2**32, 2, np.uint32) if rng.random() < 0.5 else None,
        )
        for prompt_id in prompt_B
    ]


def told(history, rng, prompt_id, rollouts=6):
    """Each law lists tokens of the prompt that no rollout has, too."""
    for step in range(rollouts):
        tokens_N = rng.integers(0, VOCAB, rng.integers(1, 30)) + 100 * prompt_id
        best = best_tokens(rng, tokens_N % 100, vocab=VOCAB + 4)
        best = BestTokens(best.ids_NR + 100 * prompt_id, best.logps_NR)
        history.observe(prompt_id, tokens_N, step, best if rng.random() < 0.7 else None)


def started(history, rows, said_BT, budget=8):
    threads = 2 if len(rows) >= ngram._ROWS_A_THREAD else 1
    drafter = NgramDrafter(len(rows), budget, history, threads=threads)
    for row, one in enumerate(rows):
        drafter.start_row(row, *one)
    drafter.commit(said_BT, np.full(len(rows), said_BT.shape[1]))
    return drafter


def test_a_row_is_drafted_alike_in_whatever_company():
    """Alone, with others, in another order, in one thread or in two."""
    rng = np.random.default_rng(2)
    history = History()
    for prompt_id in range(5):
        told(history, rng, prompt_id)
    size = 2 * ngram._ROWS_A_THREAD
    rows = crowd(rng, size)
    said_BT = np.array([rng.integers(0, VOCAB, 5) + 100 * one[0] for one in rows])
    limits = rng.integers(0, 9, size)
    together = drafts(started(history, rows, said_BT), limits)
    assert sum(map(len, together)) > 3 * size
    assert drafts(started(history, rows[1:], said_BT[1:]), limits[1:]) == together[1:]
    order = rng.permutation(size)
    mixed = started(history, [rows[b] for b in order], said_BT[order])
    assert drafts(mixed, limits[order]) == [together[b] for b in order]
    for b in range(size):
        alone = started(history, rows[b : b + 1], said_BT[b : b + 1])
        assert drafts(alone, limits[b : b + 1]) == together[b : b + 1]
        assert drafts(alone, limits[b : b + 1]) == together[b : b + 1], "asked again"


@pytest.mark.parametrize(
    ("rows", "threads", "cores", "expected"),
    [
        (63, 0, 4, [63]),
        (64, 0, 4, [32, 32]),
        (192, 0, 4, [48] * 4),
        (64, 0, None, [64]),
        (5, 2, 1, [2, 3]),
    ],
)
def test_as_many_threads_share_the_rows_as_are_worth_waking(
    rows, threads, cores, expected, monkeypatch
):
    monkeypatch.setattr(ngram.os, "cpu_count", lambda: cores)
    ends = np.cumsum(expected).tolist()
    spans = NgramDrafter(rows, 1, History(), threads=threads)._spans
    assert spans == list(zip([0, *ends], ends, strict=False))


def test_what_goes_wrong_in_another_thread_is_raised(monkeypatch):
    """So every thread is waited for, too."""

    def broken(log, rows, rule, first, *_):
        if first > 0:
            raise MemoryError

    monkeypatch.setattr(ngram, "draft_rows", broken)
    with pytest.raises(MemoryError):
        NgramDrafter(2, 1, History(), threads=2).propose(np.ones(2, np.int32))


def test_chains_stay_while_the_texts_fit():
    drafter = NgramDrafter(2, 1, History())
    drafter.start_row(0, 0, np.arange(5))
    chains = drafter._chain_BGS
    drafter.propose(np.ones(2, np.int32))
    assert drafter._chain_BGS is chains


def test_rollouts_of_other_prompts_and_when_they_come_change_nothing():
    rows = crowd(np.random.default_rng(4), 20)
    said_BT = np.array([[100 * one[0], 100 * one[0] + 1] for one in rows])
    found = []
    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 3, 1], [1, 3, 9, 8, 2, 7, 0, 4, 6]):
        history = History()
        for prompt_id in order:
            told(history, np.random.default_rng(prompt_id), prompt_id)
        found.append(drafts(started(history, rows, said_BT), [8] * 20))
    assert found[0] == found[1] == found[2]


@settings(derandomize=True, max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_draft_continues_a_place_of_its_sources(seed):
    """Each token follows the one before it in the prompt's rollouts, in a law of one of them at
    such a place, or in the row's own text; or no such place has the one before."""
    rng = np.random.default_rng(seed)
    history = History(window=4)
    for prompt_id in range(5):
        told(history, rng, prompt_id)
    rows = crowd(rng, 10)
    rollouts = list(from_arrays(history.snapshot()))
    said_BT = np.array([rng.integers(0, VOCAB + 1, 4) + 100 * one[0] for one in rows])
    for (prompt_id, prompt, _), said, draft in zip(
        rows, said_BT, drafts(started(history, rows, said_BT), [8] * 10), strict=True
    ):
        after: dict[int, set[int]] = {}
        for stored in rollouts:
            if stored.prompt_id != prompt_id:
                continue
            ends = np.cumsum(stored.laws.count_N)
            text = [START, *stored.tokens_N.tolist()]
            for n, end in enumerate(ends):
                law = stored.laws.ids_M[end - stored.laws.count_N[n] : end].tolist()
                after.setdefault(text[n], set()).update([text[n + 1], *law])
        own = [*prompt.tolist(), *said.tolist()]
        for one, two in pairwise(own):
            after.setdefault(one, set()).add(two)
        known = {int(said[-1])}.union(*after.values())
        assert all(token // 100 == prompt_id for token in known | set(draft))
        for one, two in pairwise([said[-1], *draft]):
            assert two in after.get(int(one), known)
