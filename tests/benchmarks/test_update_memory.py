"""What an update holds beside its state: little, at sizes of real models, and less in pieces."""

from dataclasses import replace

import pytest

from benchmarks.training.update_memory import show, update_memory
from models import feed_forward, qwen3
from models.config import PRESETS

# in the proportions of Qwen3-0.6B with 8 x 1,024 tokens, but for its vocabulary
SMALL = replace(
    PRESETS["tiny"],
    vocab_size=256,
    hidden_size=128,
    intermediate_size=512,
    num_hidden_layers=24,
    num_attention_heads=2,
    num_key_value_heads=1,
)


@pytest.mark.parametrize("name", ["qwen3_0_6b", "qwen3_8b"])
def test_an_update_of_8192_tokens_holds_little_beside_its_state_and_one_gradient(name):
    """0.6B: 1.49 x (parameters + optimizer + chunk), 8B: 1.43, of which the gradient makes 1.33.

    The rest is what one layer and the layers' inputs need; the logits alone would be 5 GB.
    """
    of = update_memory(PRESETS[name], rows=8, tokens=1024, chunk=256)
    assert of.donated > 2.99 * of.parameters  # parameters and both moments
    assert of.ratio < 1.5


def test_pieces_more_than_halve_what_is_not_held_or_gradient(monkeypatch, capsys):
    def measured():
        of = update_memory(SMALL, rows=2, tokens=512, chunk=64)
        return of, of.peak - of.held - of.parameters

    in_pieces, rest = measured()
    monkeypatch.setattr(qwen3, "parts_pay", lambda *_: False)  # the planted faults
    monkeypatch.setattr(feed_forward, "SLICES", 1)
    whole, rest_of_whole = measured()
    assert whole.flops == in_pieces.flops
    assert rest < 0.5 * rest_of_whole
    show({"small": in_pieces}, "small")
    assert f"{in_pieces.ratio:.2f}" in capsys.readouterr().out
