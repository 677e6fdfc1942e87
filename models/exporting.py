"""Our checkpoints as Hugging Face folders, one tensor at a time."""

import json
import shutil
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


def export_checkpoint(
    source: Path, out: Path, *, dtype: DTypeLike | None = None, shard_bytes: int = 5 << 30
) -> ModelConfig:
    """Writes a Hugging Face folder from a checkpoint folder.

    Args:
        source: A checkpoint folder.
        out: The folder to make.
        dtype: Of the written weights; None keeps the stored one.
        shard_bytes: Size of a file at most.

    Returns:
        The architecture.

    Raises:
        ValueError: `out` exists, or a file of the checkpoint is missing or damaged.
    """
    if out.exists():
        raise ValueError(f"{out}: exists, allowed: a new folder")
    config = ModelConfig.from_json(source / "config.json")
    fingerprints.check(source / "params", source / fingerprints.RECORD)
    stored = _Stored(source / "params")
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
    shapes = checkpoint.parameter_shapes(config)

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

    def __init__(self, folder: Path) -> None:
        self._store = {"driver": "ocdbt", "base": f"file://{folder.absolute()}/"}
        self._open: dict[str, Any] = {}
        self.dtype = self._array("embedding_VD").dtype.numpy_dtype

    def read(self, path: str, layer: int | None) -> NDArray[Any]:
        array = self._array(path)
        return np.asarray((array if layer is None else array[layer]).read().result())

    def _array(self, path: str) -> Any:
        if path not in self._open:
            name = path.replace("/", ".")
            spec = {"driver": "zarr", "kvstore": self._store, "path": name}
            self._open[path] = ts.open(spec, read=True).result()
        return self._open[path]
