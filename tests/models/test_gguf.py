"""GGUF files: pairs put back by halves, two quantisations of one matrix, the tokenizer."""

import json
import math

import numpy as np
import pytest
from tokenizers import Tokenizer

from models import checkpoint
from models.exporting import export_checkpoint
from models.importing import import_checkpoint
from models.rope_scaling import RopeScaling

gguf = pytest.importorskip("gguf")

TOKENS = [*"abcdefghijklmnopqrstuvwxyz", "ab", "<|im_end|>", "[PAD28]", "[PAD29]"]
KINDS = [1] * 27 + [3, 5, 5]
THEIRS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
D, F, H, J, E = 32, 64, 4, 2, 8


def side_by_side(weight, heads):
    """llama.cpp's order of the rows of query and key, written out row by row."""
    rows = []
    for head in range(heads):
        for i in range(E // 2):
            rows += [weight[head * E + i], weight[head * E + E // 2 + i]]
    return np.stack(rows)


@pytest.fixture
def tensors():
    rng = np.random.default_rng(0)
    shapes = {
        "self_attn.q_proj": (H * E, D),
        "self_attn.k_proj": (J * E, D),
        "self_attn.v_proj": (J * E, D),
        "self_attn.o_proj": (D, H * E),
        "mlp.gate_proj": (F, D),
        "mlp.up_proj": (F, D),
        "mlp.down_proj": (D, F),
        "input_layernorm": (D,),
        "post_attention_layernorm": (D,),
    }
    found = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found["embed"] = rng.standard_normal((len(TOKENS), D)).astype(np.float32)
    found["norm"] = rng.standard_normal(D).astype(np.float32)
    return found


def write(path, tensors, family, head=None, extra=None, theta=1e5, rope_factors=None):
    writer = gguf.GGUFWriter(path, family)
    writer.add_embedding_length(D)
    writer.add_feed_forward_length(F)
    writer.add_block_count(1)
    writer.add_head_count(H)
    writer.add_head_count_kv(J)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(TOKENS.index("<|im_end|>"))
    writer.add_chat_template("{{ messages }}")
    for ours, theirs in THEIRS.items():
        weight = tensors[ours]
        if family == "llama" and theirs in ("attn_q", "attn_k"):
            weight = side_by_side(weight, H if theirs == "attn_q" else J)
        writer.add_tensor(f"blk.0.{theirs}.weight", weight)
    quantised = gguf.quants.quantize(tensors["embed"], gguf.GGMLQuantizationType.Q8_0)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("token_embd.weight", quantised, raw_dtype=kind)
    writer.add_tensor("output_norm.weight", tensors["norm"])
    if head is not None:
        writer.add_tensor("output.weight", head)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(rope_factors, np.float32))
    if extra is not None:
        writer.add_tensor(extra, np.ones(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_rows_of_query_and_key_are_put_back(tmp_path, tensors):
    write(tmp_path / "m.gguf", tensors, "llama")
    config = import_checkpoint(tmp_path / "m.gguf", tmp_path / "c", dtype=np.float32)
    assert (config.rms_norm_eps, config.rope_theta, config.head_dim) == (1e-5, 1e5, E)
    assert config.tie_word_embeddings
    _, params = checkpoint.load(tmp_path / "c")
    for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v")):
        wanted = tensors[f"self_attn.{theirs}_proj"].T
        np.testing.assert_array_equal(params["layers"][ours]["kernel"][0], wanted)
    np.testing.assert_allclose(params["embedding_VD"], tensors["embed"], atol=0.03)


def test_a_finer_output_serves_both_ends_and_another_one_is_a_head(tmp_path, tensors):
    write(tmp_path / "tied.gguf", tensors, "llama", head=tensors["embed"])
    config = import_checkpoint(tmp_path / "tied.gguf", tmp_path / "tied", dtype=np.float32)
    assert config.tie_word_embeddings
    embedding = checkpoint.load(tmp_path / "tied")[1]["embedding_VD"]
    np.testing.assert_array_equal(embedding, tensors["embed"])
    write(tmp_path / "untied.gguf", tensors, "llama", head=tensors["embed"][::-1].copy())
    config = import_checkpoint(tmp_path / "untied.gguf", tmp_path / "untied", dtype=np.float32)
    assert not config.tie_word_embeddings
    head = checkpoint.load(tmp_path / "untied")[1]["head"]["kernel"]
    np.testing.assert_array_equal(head, tensors["embed"][::-1].T)


def test_the_tokenizer_leaves_out_padding(tmp_path, tensors):
    write(tmp_path / "m.gguf", tensors, "llama")
    import_checkpoint(tmp_path / "m.gguf", tmp_path / "c")
    tokenizer = Tokenizer.from_file(str(tmp_path / "c" / "tokenizer.json"))
    assert tokenizer.encode("abc<|im_end|>").tokens == ["ab", "c", "<|im_end|>"]
    assert max(tokenizer.get_vocab().values()) == 27
    generation = json.loads((tmp_path / "c" / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [27]}


def llama3_factors(theta, factor, low=1.0, high=4.0, context=8192):
    """What Llama 3.1's rule divides each frequency by, written out pair by pair."""
    found = []
    for i in range(0, E, 2):
        wavelength = 2 * math.pi * theta ** (i / E)
        kept = min(max((context / wavelength - low) / (high - low), 0.0), 1.0)
        found.append(1.0 / (kept + (1.0 - kept) / factor))
    return found


def test_stretched_frequencies_are_read_back_from_their_factors(tmp_path, tensors):
    factors = llama3_factors(2e5, factor=32.0)
    assert factors[0] == 1.0 < factors[2] < 32.0 == factors[3]
    write(tmp_path / "m.gguf", tensors, "llama", theta=2e5, rope_factors=factors)
    config = import_checkpoint(tmp_path / "m.gguf", tmp_path / "c")
    assert config.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
    export_checkpoint(tmp_path / "c", tmp_path / "theirs")
    record = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert record["rope_scaling"]["factor"] == 32.0


@pytest.mark.parametrize("wrong", [[1.0, 1.0, 2.0, 32.0], [1.0, 32.0]])
def test_factors_of_another_kind_are_refused(tmp_path, tensors, wrong):
    write(tmp_path / "m.gguf", tensors, "llama", rope_factors=wrong)
    with pytest.raises(ValueError, match=r"rope_freqs\.weight: found \[1\.0, .*those of Llama 3"):
        import_checkpoint(tmp_path / "m.gguf", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_what_cannot_be_imported_is_named(tmp_path, tensors):
    (tmp_path / "none.gguf").write_bytes(b"GGUF")
    cases = [("none.gguf", "damaged"), ("qwen2.gguf", "bias: missing"), ("left.gguf", "odd.weight")]
    write(tmp_path / "qwen2.gguf", tensors, "qwen2")
    write(tmp_path / "left.gguf", tensors, "llama", extra="odd.weight")
    for name, message in cases:
        with pytest.raises(ValueError, match=message):
            import_checkpoint(tmp_path / name, tmp_path / "c")
    assert not (tmp_path / "c").exists()
