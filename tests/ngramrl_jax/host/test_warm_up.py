"""After `warm_up` no kernel of the host core is compiled any more, whatever it is given."""

import importlib
import sys

import numba
import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

compiled = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="kernels are not compiled")


def kernels():
    """Every kernel of the host core, by its module and name."""
    return {
        (module, name): found
        for module, loaded in sys.modules.copy().items()
        if module.startswith("ngramrl_jax.host")
        for name, found in vars(loaded).items()
        if isinstance(found, Dispatcher)
    }


@pytest.fixture
def cold(monkeypatch):
    """The drafter's module in a host core whose kernels nobody has called yet."""
    for name in [name for name in sys.modules if name.startswith("ngramrl_jax")]:
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("ngramrl_jax.host.ngram")
    for name in [name for name in sys.modules if name.startswith("ngramrl_jax")]:
        del sys.modules[name]  # before the modules that were there come back


@compiled
def test_nothing_compiles_after_warm_up(cold):
    """Not for read-only, strided or int64 arrays either, nor for other sizes and rules."""
    before = {key: len(kernel.signatures) for key, kernel in kernels().items()}
    assert not any(before.values())
    cold.warm_up()
    before = {key: len(kernel.signatures) for key, kernel in kernels().items()}
    assert any(before.values())
    use(cold)
    assert {key: len(kernel.signatures) for key, kernel in kernels().items()} == before


def use(ngram):
    """All that a rollout asks of a drafter, with unusual arrays."""
    tokens_BT = np.arange(40 * 20).reshape(40, 20)[:, ::2]
    tokens_BT.flags.writeable = False
    best = ngram.BestTokens(np.ones((10, 6), np.int64)[:, ::2], np.zeros((10, 3)))
    for rows in (4, 40):
        rule = ngram.Rule(own_text=False, laws=False, noise=False)
        drafter = ngram.NgramDrafter(rows, 16, ngram.History(3), rule, stop_ids=(7,))
        count_B = np.where(np.arange(rows) < 4, 10, 0)
        for step in range(5):
            drafter.start_row(step % 4, step, np.arange(9)[::2], np.arange(2, dtype=np.uint32))
            drafter.observe(step, np.arange(30, dtype=np.uint16)[::3], step, best)
            drafter.observe(step, np.arange(30), step)
        drafter.history.restore(drafter.history.snapshot())
        drafter.commit(tokens_BT[:rows], count_B)
        draft_BK, length_B = drafter.propose(np.resize(np.array([3, 16, 99, 0], np.int64), rows))
        drafter.foresee(draft_BK, length_B, 50 * count_B)
        drafter.commit(tokens_BT[:rows], count_B)
        drafter.finish_row(0)
        drafter.end_batch()
    ngram.row_key(1, 2, 3, 4, 5)
