"""Qwen3 weights by their Hugging Face names, mapped to our parameter paths.

Legend: L layers, V vocabulary, D model width.

Hugging Face stores projections as `[outputs, inputs]`, one tensor a layer; ours are
`[inputs, outputs]` and stacked over layers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.config import ModelConfig

# Inside one layer: Hugging Face name -> (our module, our leaf). A kernel is transposed.
LAYER_TABLE: dict[str, tuple[str, str]] = {
    "input_layernorm": ("attention_norm", "scale"),
    "self_attn.q_proj": ("query", "kernel"),
    "self_attn.k_proj": ("key", "kernel"),
    "self_attn.v_proj": ("value", "kernel"),
    "self_attn.q_norm": ("query_norm", "scale"),
    "self_attn.k_norm": ("key_norm", "scale"),
    "self_attn.o_proj": ("output", "kernel"),
    "post_attention_layernorm": ("mlp_norm", "scale"),
    "mlp.gate_proj": ("gate", "kernel"),
    "mlp.up_proj": ("up", "kernel"),
    "mlp.down_proj": ("down", "kernel"),
}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def from_huggingface(config: ModelConfig, tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Builds our parameters; every tensor is used exactly once.

    A tied model may bring its head as a copy of the embedding, as some published files do.

    Args:
        config: Architecture that the tensors belong to.
        tensors: Arrays by Hugging Face name.

    Returns:
        Parameters as nested dict, in the dtype of the tensors.

    Raises:
        ValueError: A tensor is missing or left over, or a tied head differs from the embedding.
    """
    left = dict(tensors)

    def take(name: str) -> NDArray[Any]:
        if name not in left:
            raise ValueError(f"{name}: missing among {len(tensors)} tensors")
        return left.pop(name)

    layers: dict[str, Any] = {}
    for name, (module, leaf) in LAYER_TABLE.items():
        stack = [
            take(f"model.layers.{layer}.{name}.weight") for layer in range(config.num_hidden_layers)
        ]
        layers[module] = {leaf: np.stack([w.T if leaf == "kernel" else w for w in stack])}
    params: dict[str, Any] = {
        "embedding_VD": take(EMBEDDING),
        "layers": layers,
        "norm": {"scale": take("model.norm.weight")},
    }
    if not config.tie_word_embeddings:
        params["head"] = {"kernel": take(HEAD).T}
    elif HEAD in left and not np.array_equal(left.pop(HEAD), params["embedding_VD"]):
        raise ValueError(f"{HEAD}: differs from {EMBEDDING}, allowed: equal where they are tied")
    if left:
        raise ValueError(f"{sorted(left)[0]}: unknown tensor, {len(left)} left over in all")
    return params
