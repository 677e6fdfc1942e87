"""Weights by their Hugging Face names, piece by piece to our parameters and back.

Hugging Face stores projections as `[outputs, inputs]`, one tensor a layer; ours are
`[inputs, outputs]` and stacked over layers. A piece says where one tensor goes, so that a model
can be moved one tensor at a time in either direction.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.config import Family, ModelConfig

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Piece:
    """One tensor of a Hugging Face checkpoint, and where it lies in our parameters.

    Attributes:
        name: Its Hugging Face name.
        path: The path of our parameter, as the sharding table writes it.
        layer: Its index on the parameter's layer axis; None where there is no such axis.
        transposed: Whether the two axes change places.
    """

    name: str
    path: str
    layer: int | None = None
    transposed: bool = False

    def turn(self, tensor: NDArray[Any]) -> NDArray[Any]:
        """The tensor as the other side has it: a view."""
        return tensor.T if self.transposed else tensor


def pieces(config: ModelConfig) -> Iterator[Piece]:
    """Every tensor of an architecture, each parameter of ours completed before the next."""
    yield Piece(EMBEDDING, "embedding_VD")
    for name, path in _layer_names(config.family):
        for layer in range(config.num_hidden_layers):
            full = f"model.layers.{layer}.{name}"
            yield Piece(full, f"layers/{path}", layer, path.endswith("kernel"))
    yield Piece("model.norm.weight", "norm/scale")
    if not config.tie_word_embeddings:
        yield Piece(HEAD, "head/kernel", transposed=True)


def _layer_names(family: Family) -> Iterator[tuple[str, str]]:
    """Hugging Face name and our path of everything inside one layer."""
    yield "input_layernorm.weight", "attention_norm/scale"
    for theirs, ours in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")):
        yield f"self_attn.{theirs}.weight", f"{ours}/kernel"
        if family.qkv_bias:
            yield f"self_attn.{theirs}.bias", f"{ours}/bias"
    if family.qk_norm:
        yield "self_attn.q_norm.weight", "query_norm/scale"
        yield "self_attn.k_norm.weight", "key_norm/scale"
    yield "self_attn.o_proj.weight", "output/kernel"
    yield "post_attention_layernorm.weight", "mlp_norm/scale"
    for theirs, ours in (("gate_proj", "gate"), ("up_proj", "up"), ("down_proj", "down")):
        yield f"mlp.{theirs}.weight", f"{ours}/kernel"


def move(
    config: ModelConfig, tensors: Mapping[str, NDArray[Any]]
) -> Iterator[tuple[Piece, NDArray[Any]]]:
    """Every piece with its tensor in our orientation; each tensor is read once, and used.

    A tied model may bring its head as a copy of the embedding, as some published files do.

    Args:
        config: Architecture that the tensors belong to.
        tensors: Arrays by Hugging Face name; may be read lazily.

    Raises:
        ValueError: A tensor is missing or left over, or a tied head differs from the embedding.
    """
    wanted = {piece.name: piece for piece in pieces(config)}
    if missing := [name for name in wanted if name not in tensors]:
        raise ValueError(f"{missing[0]}: missing among {len(tensors)} tensors")
    left = [name for name in tensors if name not in wanted]
    if config.tie_word_embeddings and HEAD in left:
        left.remove(HEAD)
        if not np.array_equal(tensors[HEAD], tensors[EMBEDDING]):
            raise ValueError(f"{HEAD}: differs from {EMBEDDING}, allowed: equal where tied")
    if left:
        raise ValueError(f"{sorted(left)[0]}: unknown tensor, {len(left)} left over in all")
    for piece in wanted.values():
        yield piece, piece.turn(tensors[piece.name])


def from_huggingface(config: ModelConfig, tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Builds our parameters in memory.

    Returns:
        Parameters as nested dict, in the dtype of the tensors.

    Raises:
        ValueError: As `move`.
    """
    gathered: dict[str, list[NDArray[Any]]] = {}
    stacked = set()
    for piece, tensor in move(config, tensors):
        gathered.setdefault(piece.path, []).append(tensor)
        if piece.layer is not None:
            stacked.add(piece.path)
    params: dict[str, Any] = {}
    for path, parts in gathered.items():
        *modules, leaf = path.split("/")
        node = params
        for module in modules:
            node = node.setdefault(module, {})
        node[leaf] = np.stack(parts) if path in stacked else parts[0]
    return params
