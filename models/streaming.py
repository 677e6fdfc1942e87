"""Parameters written to an Orbax folder one tensor at a time.

Orbax saves whole trees from memory. Here it saves a tree of the same names with empty leaves'
stand-ins of one element, which makes all its bookkeeping; TensorStore, which Orbax itself stores
with, then puts the real arrays in their place, and the recorded shapes are corrected.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from jax.typing import DTypeLike
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 25  # a device that restores its shard of a parameter reads whole chunks


class ParamsWriter:
    """An Orbax folder of parameters that are filled in one layer at a time.

    Memory: the tensors being written, plus TensorStore's copies of their chunks.
    """

    def __init__(
        self, folder: Path, shapes: Mapping[str, tuple[int, ...]], dtype: DTypeLike
    ) -> None:
        """Makes the folder.

        Args:
            folder: It must not exist.
            shapes: Of every parameter, by its path, e.g. `layers/query/kernel`.
            dtype: Of all of them.
        """
        self._shapes, self._dtype = dict(shapes), jnp.dtype(dtype)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(folder, self._stand_ins())
        self._chunks = {path: _chunk(shape, self._dtype.itemsize) for path, shape in shapes.items()}
        self._correct(folder)
        self._store = {"driver": "ocdbt", "base": f"file://{folder}/"}
        self._context = ts.Context()
        self._open: dict[str, Any] = {}

    def write(self, path: str, layer: int | None, tensor: NDArray[Any]) -> None:
        """Stores a parameter, or its part for one layer.

        Raises:
            ValueError: The shape is not that of the parameter.
        """
        shape = self._shapes[path] if layer is None else self._shapes[path][1:]
        if tensor.shape != shape:
            raise ValueError(f"found shape {tensor.shape}, allowed by the configuration: {shape}")
        array = self._array(path)
        place = array if layer is None else array[layer]
        place.write(np.ascontiguousarray(tensor.astype(self._dtype))).result()

    def _array(self, path: str) -> Any:
        if path not in self._open:
            self._open[path] = ts.open(
                {"driver": "zarr", "kvstore": self._store, "path": path.replace("/", ".")},
                create=True,
                delete_existing=True,
                context=self._context,
                dtype=ts.dtype(self._dtype.name),
                shape=self._shapes[path],
                chunk_layout=ts.ChunkLayout(chunk_shape=self._chunks[path]),
            ).result()
        return self._open[path]

    def _stand_ins(self) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for path, shape in self._shapes.items():
            *modules, leaf = path.split("/")
            node = tree
            for module in modules:
                node = node.setdefault(module, {})
            node[leaf] = jnp.zeros((1,) * len(shape), self._dtype)
        return tree

    def _correct(self, folder: Path) -> None:
        """Puts the real shapes into Orbax's records."""
        record = json.loads((folder / "_METADATA").read_text(encoding="utf-8"))
        for entry in record["tree_metadata"].values():
            path = "/".join(part["key"] for part in entry["key_metadata"])
            entry["value_metadata"]["write_shape"] = self._shapes[path]
        (folder / "_METADATA").write_text(json.dumps(record), encoding="utf-8")
        for file in (folder / "array_metadatas").iterdir():
            record = json.loads(file.read_text(encoding="utf-8"))
            for entry in record["array_metadatas"]:
                path = entry["array_metadata"]["param_name"].replace(".", "/")
                entry["array_metadata"] |= {
                    "write_shape": self._shapes[path],
                    "chunk_shape": self._chunks[path],
                }
            file.write_text(json.dumps(record), encoding="utf-8")


def _chunk(shape: tuple[int, ...], item_bytes: int) -> list[int]:
    """One layer, halved along its longest axis until it is small enough."""
    chunk = [1, *shape[1:]] if len(shape) == 3 else list(shape)
    while np.prod(chunk, dtype=np.int64) * item_bytes > CHUNK_BYTES:
        longest = int(np.argmax(chunk))
        chunk[longest] = -(-chunk[longest] // 2)
    return chunk
