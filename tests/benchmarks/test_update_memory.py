"""What an update holds beside its state: little, at sizes of real models, and less in pieces."""

from dataclasses import replace

import pytest

from benchmarks.training.update_memory import show, update_memory
from models import qwen3
from models.config import PRESETS

SMALL = replace(
    PRESETS["tiny"], vocab_size=256, hidden_size=64, intermediate_size=512, num_hidden_layers=24
)


@pytest.mark.parametrize("name", ["qwen3_0_6b", "qwen3_8b"])
def test_an_update_of_8192_tokens_holds_little_beside_its_state_and_one_gradient(name):
    """0.6B: 1.49 x (parameters + optimizer + chunk), 8B: 1.40, of which the gradient makes 1.33.

    The rest is what one layer and the layers' inputs need; the logits alone would be 5 GB.
    """
    of = update_memory(PRESETS[name], rows=8, tokens=1024, chunk=256)
    assert of.donated > 2.99 * of.parameters  # parameters and both moments
    assert of.ratio < 1.5


def test_pieces_take_less_memory_and_no_more_operations(monkeypatch, capsys):
    shape = {"rows": 4, "tokens": 512, "chunk": 64}
    in_pieces = update_memory(SMALL, **shape)
    monkeypatch.setattr(qwen3, "LONG_ROW", shape["tokens"] + 1)  # the planted fault
    whole = update_memory(SMALL, **shape)
    assert in_pieces.held == whole.held
    assert in_pieces.peak < 0.8 * whole.peak
    show({"small": in_pieces}, "small")
    assert f"{in_pieces.ratio:.2f}" in capsys.readouterr().out
