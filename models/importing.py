"""Other projects' checkpoints become ours, one tensor at a time.

A source brings three things: a `config.json` record as Hugging Face writes it, the texts of the
tokenizer's files, and tensors by Hugging Face name that are read when they are asked for. What is
held in memory is one tensor in its own dtype and in the one that it is stored in.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from numpy.typing import NDArray

from models import checkpoint
from models.config import ModelConfig
from models.gguf_file import open_gguf
from models.huggingface import EMBEDDING, move
from models.safetensors import Safetensors
from models.streaming import ParamsWriter

TEMPLATE_FILE = "chat_template.jinja"  # newer folders keep the template there


@dataclass(frozen=True)
class Source:
    """A checkpoint to import.

    Attributes:
        record: Content of its `config.json`.
        texts: Content of the tokenizer's files, by the names of `checkpoint.TOKENIZER_FILES`.
        tensors: Arrays by Hugging Face name, read when asked for.
        dtype: What its weights are best stored in.
    """

    record: Mapping[str, Any]
    texts: Mapping[str, str]
    tensors: Mapping[str, NDArray[Any]]
    dtype: DTypeLike


def import_checkpoint(source: Path, out: Path, *, dtype: DTypeLike | None = None) -> ModelConfig:
    """Writes a checkpoint folder from a Hugging Face folder or a GGUF file.

    Args:
        source: The folder or the file.
        out: The checkpoint folder to make.
        dtype: Stored dtype; None takes the source's own, bfloat16 where it is quantised.

    Returns:
        The architecture.

    Raises:
        ValueError: `out` exists; a file is missing or damaged; an architecture that is not
            implemented; a tensor is missing, left over or of another shape.
    """
    found = Source(*open_gguf(source)) if source.is_file() else open_folder(source)
    try:
        config = ModelConfig.from_record(dict(found.record))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None
    with checkpoint.writing(out) as partial:
        partial.mkdir(parents=True)
        record = json.dumps({**found.record, **config.to_record()}, indent=2) + "\n"
        (partial / "config.json").write_text(record, encoding="utf-8")
        for name, text in found.texts.items():
            (partial / name).write_text(text, encoding="utf-8")
        shapes = checkpoint.parameter_shapes(config)
        writer = ParamsWriter(partial / "params", shapes, dtype or found.dtype)
        for piece, tensor in move(config, found.tensors):
            try:
                writer.write(piece.path, piece.layer, tensor)
            except ValueError as error:
                raise ValueError(f"{source}: {piece.name}: {error}") from None
    return config


def open_folder(folder: Path) -> Source:
    """A Hugging Face folder: `config.json`, safetensors, tokenizer.

    The chat template goes into `tokenizer_config.json`, wherever it lay.

    Raises:
        ValueError: A file is missing or damaged.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: not found, allowed: a Hugging Face folder or a GGUF file")
    needed = ("config.json", *checkpoint.TOKENIZER_FILES[:2])
    record, tokenizer, settings = (_read_object(folder / name) for name in needed)
    if (folder / TEMPLATE_FILE).is_file():
        settings["chat_template"] = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    texts: dict[str, str] = dict(
        zip(checkpoint.TOKENIZER_FILES, map(_json, (tokenizer, settings)), strict=False)
    )
    if (folder / checkpoint.TOKENIZER_FILES[2]).is_file():
        generation = _read_object(folder / checkpoint.TOKENIZER_FILES[2])
        texts[checkpoint.TOKENIZER_FILES[2]] = _json(generation)
    tensors = Safetensors(folder)
    if EMBEDDING not in tensors:
        raise ValueError(f"{folder}: {EMBEDDING}: missing among {len(tensors)} tensors")
    return Source(record, texts, tensors, tensors[EMBEDDING].dtype)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: not found, a Hugging Face checkpoint has one") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: damaged, allowed: a JSON object")
    return content


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def stored_dtype(name: str) -> DTypeLike:
    """A dtype to store weights in, by name; raises ValueError for another one."""
    allowed = {"float32": np.float32, "bfloat16": jnp.bfloat16, "float16": np.float16}
    if name not in allowed:
        raise ValueError(f"dtype: found {name}, allowed: {', '.join(allowed)}")
    return allowed[name]
