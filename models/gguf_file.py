"""GGUF files of the same families, as Hugging Face would name their content.

llama.cpp renames every tensor, keeps settings and tokenizer as metadata, and for the Llama family
stores the rows of query and key projections so that rotated pairs are neighbours; here they are
put back by halves. Quantised blocks are decoded by the `gguf` package (the optional extra
`import`), one tensor at a time.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import NDArray

from models.gguf_tokenizer import tokenizer_texts
from models.huggingface import EMBEDDING, HEAD
from models.rope_scaling import RopeScaling

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# config.json's name: GGUF's, behind the architecture
SETTINGS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
}
ROPE_FACTORS = "rope_freqs.weight"
QUANTISED_ALIKE = 0.2  # relative error between two quantisations of one matrix, at most
COMPARED_ROWS = 2048


def open_gguf(
    path: Path,
) -> tuple[dict[str, Any], dict[str, str], Mapping[str, NDArray[Any]], DTypeLike]:
    """Record, tokenizer texts, tensors and dtype, see `models.importing.Source`.

    Raises:
        ValueError: The package `gguf` is missing, the file is none, or it holds another
            architecture or tokenizer.
    """
    try:
        gguf = import_module("gguf")
    except ImportError:
        raise ValueError(f"{path}: needs the package gguf, `pip install gguf`") from None
    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # the package raises anything on a damaged file
        raise ValueError(f"{path}: damaged, allowed: a GGUF file ({error!r:.80})") from None
    meta = {name: field.contents() for name, field in reader.fields.items()}
    record = _record(meta)
    tensors = _Tensors(reader.tensors, gguf.dequantize, record)
    record |= {"vocab_size": tensors.rows_of_embedding, "tie_word_embeddings": tensors.tied}
    if tensors.rope_factors is not None:
        record["rope_scaling"] = _rope_scaling(record, tensors.rope_factors).to_record()
    kinds = {tensor.tensor_type.name for tensor in reader.tensors}
    full = {"F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
    dtype = full[min(kinds - {"F32"}, default="F32")] if kinds <= full.keys() else jnp.bfloat16
    return record, tokenizer_texts(meta), tensors, dtype


def _record(meta: Mapping[str, Any]) -> dict[str, Any]:
    family = meta.get("general.architecture")
    found = {ours: meta.get(f"{family}.{theirs}") for ours, theirs in SETTINGS.items()}
    for name in ("rope_theta", "rms_norm_eps"):  # float32 in the file: 1e-6 is meant
        if found[name] is not None:
            found[name] = float(f"{found[name]:.6g}")
    head = meta.get(f"{family}.attention.key_length", meta.get(f"{family}.rope.dimension_count"))
    kind = meta.get(f"{family}.rope.scaling.type", "none")
    if kind != "none":
        raise ValueError(f"rope.scaling.type: found {kind}, allowed: none")
    return {"model_type": family, **found, **({} if head is None else {"head_dim": head})}


class _Tensors(Mapping[str, NDArray[Any]]):
    """The tensors by Hugging Face name; decoded anew whenever one is asked for."""

    def __init__(
        self, tensors: list[Any], decode: Callable[..., NDArray[Any]], record: Mapping[str, Any]
    ) -> None:
        self._decode, self._record = decode, record
        self._tensors: dict[str, Any] = {}
        for tensor in tensors:
            self._tensors[_rename(tensor.name)] = tensor
        factors = self._tensors.pop(ROPE_FACTORS, None)
        self.rope_factors = None if factors is None else np.asarray(factors.data, np.float64)
        self.tied = HEAD not in self._tensors or self._alike()
        if self.tied and HEAD in self._tensors:
            # two quantisations of one matrix: the output's is the finer, and serves both ends
            self._tensors[EMBEDDING] = self._tensors.pop(HEAD)

    @property
    def rows_of_embedding(self) -> int | None:
        """V, or None where there is no embedding."""
        tensor = self._tensors.get(EMBEDDING)
        return None if tensor is None else int(tensor.shape[-1])  # GGUF's axes are reversed

    def __getitem__(self, name: str) -> NDArray[Any]:
        tensor = self._tensors[name]
        array = self._decode(tensor.data, tensor.tensor_type)
        if self._record["model_type"] == "llama":
            heads = {"q": "num_attention_heads", "k": "num_key_value_heads"}
            if found := re.search(r"self_attn\.([qk])_proj", name):
                return _by_halves(array, self._record[heads[found[1]]])
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _alike(self) -> bool:
        """Whether head and embedding are the same but for what quantising did to them."""
        if EMBEDDING not in self._tensors:
            return False
        ends = [self._tensors[name] for name in (HEAD, EMBEDDING)]
        one, other = (self._decode(t.data[:COMPARED_ROWS], t.tensor_type) for t in ends)
        if one.shape != other.shape:
            return False
        return bool(np.linalg.norm(one - other) < QUANTISED_ALIKE * np.linalg.norm(one))


def _rename(name: str) -> str:
    """The Hugging Face name; a name that is not known stays, and is reported as left over."""
    stem, _, suffix = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    ours = NAMES.get(block[2] if block else stem)
    if ours is None:
        return name
    return f"model.layers.{block[1]}.{ours}.{suffix}" if block else f"{ours}.{suffix}"


def _by_halves(array: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows `0 1 2 3 ...` of each head, pairs side by side, in the order `0 2 4 ... 1 3 5 ...`."""
    rows, rest = array.shape[0], array.shape[1:]
    return array.reshape(heads, rows // heads // 2, 2, *rest).swapaxes(1, 2).reshape(array.shape)


def _rope_scaling(record: Mapping[str, Any], factor_C: NDArray[np.float64]) -> RopeScaling:
    """The settings that these factors come from; llama.cpp writes Llama 3's factors alone.

    Raises:
        ValueError: They are not those of Llama 3.
    """
    width = int(record.get("head_dim") or record["hidden_size"] // record["num_attention_heads"])
    frequency_C = float(record["rope_theta"]) ** (-np.arange(0, width, 2, dtype=np.float64) / width)
    scaling = RopeScaling(float(factor_C.max()), 1.0, 4.0, 8192)
    wanted_C = frequency_C / scaling.scale(frequency_C)
    if factor_C.shape != wanted_C.shape or not np.allclose(factor_C, wanted_C, rtol=1e-4):
        raise ValueError(
            f"{ROPE_FACTORS}: found {json.dumps(factor_C.tolist())[:60]}, allowed: "
            "those of Llama 3 (low 1, high 4, context 8192)"
        )
    return scaling
