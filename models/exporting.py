"""Our checkpoints as Hugging Face folders, one tensor at a time."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorstore as ts
from jax.typing import DTypeLike
from numpy.typing import NDArray

from models import checkpoint, fingerprints
from models.config import ModelConfig
from models.huggingface import pieces
from models.safetensors import write_folder


@dataclass(frozen=True)
class Weights:
    """Parameters in an Orbax folder, alone or among others.

    Attributes:
        folder: The Orbax folder.
        recorded: The folder of its record (`models.fingerprints`): this one or one above.
        record: The record itself.
        prefix: What stands before the parameters' names.
    """

    folder: Path
    recorded: Path
    record: Path
    prefix: str = ""


def export_checkpoint(
    source: Path,
    out: Path,
    *,
    dtype: DTypeLike | None = None,
    shard_bytes: int = 5 << 30,
    weights: Weights | None = None,
) -> ModelConfig:
    """Writes a Hugging Face folder from a checkpoint folder.

    Args:
        source: A checkpoint folder.
        out: The folder to make.
        dtype: Of the written weights; None keeps the stored one.
        shard_bytes: Size of a file at most.
        weights: Others of the same architecture, in place of the folder's own.

    Returns:
        The architecture.

    Raises:
        ValueError: `out` exists, a file of the checkpoint is missing or damaged, or the weights are
            not those of its configuration.
    """
    if out.exists():
        raise ValueError(f"{out}: exists, allowed: a new folder")
    config = ModelConfig.from_json(source / "config.json")
    own = source / "params"
    weights = weights or Weights(own, own, source / fingerprints.RECORD)
    fingerprints.check(weights.recorded, weights.record)
    stored = _Stored(weights)
    shapes = checkpoint.parameter_shapes(config)
    stored.check_shapes(shapes)
    partial = out.absolute().with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in checkpoint.TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, partial / name)
    kind = jnp.dtype(stored.dtype if dtype is None else dtype)
    # what an imported config.json holds beyond our fields goes back with it
    record = json.loads((source / "config.json").read_text(encoding="utf-8"))
    record |= config.to_record() | {"torch_dtype": kind.name}
    text = json.dumps(record, indent=2) + "\n"
    (partial / "config.json").write_text(text, encoding="utf-8")
    place = {piece.name: piece for piece in pieces(config)}

    def shape(name: str) -> tuple[int, ...]:
        piece = place[name]
        ours = shapes[piece.path] if piece.layer is None else shapes[piece.path][1:]
        return ours[::-1] if piece.transposed else ours

    def read(name: str) -> NDArray[Any]:
        piece = place[name]
        return piece.turn(stored.read(piece.path, piece.layer))

    write_folder(partial, {n: shape(n) for n in place}, kind, read, shard_bytes=shard_bytes)
    partial.rename(out)
    return config


class _Stored:
    """The parameters in an Orbax folder, read in parts."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._open: dict[str, Any] = {}
        self.dtype = self._array("embedding_VD").dtype.numpy_dtype

    def check_shapes(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raises ValueError unless every parameter is there in its shape."""
        for path, shape in shapes.items():
            if (found := tuple(self._array(path).shape)) != shape:
                raise ValueError(
                    f"{self._weights.folder}: parameter {path}: found shape {found}, "
                    f"allowed by its configuration: {shape}"
                )

    def read(self, path: str, layer: int | None) -> NDArray[Any]:
        array = self._array(path)
        return np.asarray((array if layer is None else array[layer]).read().result())

    def _array(self, path: str) -> Any:
        if path not in self._open:
            folder = self._weights.folder
            store = {"driver": "ocdbt", "base": f"file://{folder.absolute()}/"}
            name = self._weights.prefix + path.replace("/", ".")
            spec = {"driver": "zarr", "kvstore": store, "path": name}
            try:
                self._open[path] = ts.open(spec, read=True).result()
            except ValueError:  # TensorStore's message is a page
                raise ValueError(
                    f"{folder}: found no parameter {path}, allowed: those of its configuration"
                ) from None
        return self._open[path]
