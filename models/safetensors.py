"""Safetensors files, read as views of the mapped file and written one tensor at a time.

A file is the length of its header (8 bytes, little endian), the header (JSON: name to dtype, shape
and place), and the tensors. Format: https://github.com/huggingface/safetensors.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

DTYPES: dict[str, Any] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Safetensors(Mapping[str, NDArray[Any]]):
    """The tensors of a folder: those of `model.safetensors`, or of the files that its index names.

    Raises:
        ValueError: No such file, a damaged one, a dtype that is none of `DTYPES`, or a tensor that
            the index places in a file where it is not.
    """

    def __init__(self, folder: Path) -> None:
        self._tensors: dict[str, NDArray[Any]] = {}
        if (folder / INDEX).is_file():
            place = _index(folder / INDEX)
            for file in sorted(set(place.values())):
                self._tensors |= _map_file(folder / file)
            if wrong := place.keys() ^ self._tensors.keys():
                raise ValueError(f"{folder / INDEX}: {min(wrong)} is not in both index and files")
        else:
            self._tensors = _map_file(folder / SINGLE)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def write_folder(
    folder: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: Any,
    read: Callable[[str], NDArray[Any]],
    *,
    shard_bytes: int = 5 << 30,
) -> None:
    """Writes tensors in order, in one file or, beyond `shard_bytes`, several with an index.

    Args:
        folder: It exists.
        shapes: Of every tensor, by name.
        dtype: One of `DTYPES`' dtypes.
        read: Gives a tensor by its name; asked once for each, when it is written.
        shard_bytes: A file holds no more, unless it holds a single tensor.
    """
    item = np.dtype(dtype).itemsize
    shards: list[list[str]] = [[]]
    filled = 0
    for name, shape in shapes.items():
        size = prod(shape) * item
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    files = [SINGLE]
    if len(shards) > 1:
        files = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
        place = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        total = sum(map(prod, shapes.values())) * item
        index = {"metadata": {"total_size": total}, "weight_map": place}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    for file, names in zip(files, shards, strict=True):
        _write_file(folder / file, {name: shapes[name] for name in names}, np.dtype(dtype), read)


def _write_file(
    file: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: np.dtype[Any],
    read: Callable[[str], NDArray[Any]],
) -> None:
    code = next(code for code, known in DTYPES.items() if known == dtype)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in shapes.items():
        end = start + prod(shape) * dtype.itemsize
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            tensor = np.ascontiguousarray(read(name).astype(dtype))
            assert tensor.shape == shape, f"{name}: {tensor.shape} is not {shape}"
            stream.write(tensor.view(np.uint8).data)


def _index(path: Path) -> dict[str, str]:
    try:
        place = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        good = all(isinstance(name, str) and Path(name).name == name for name in place.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        place, good = {}, False
    if not good or not place:
        raise ValueError(f"{path}: damaged, allowed: an index with a weight_map")
    return place


def _map_file(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise ValueError(f"{path}: not found, allowed: {SINGLE}, or the files that {INDEX} names")
    data = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)
    try:
        length = int.from_bytes(data[:8].tobytes(), "little")
        header: dict[str, Any] = json.loads(data[8 : 8 + length].tobytes())
        header.pop("__metadata__", None)
        body = data[8 + length :]
        return {name: _view(body, **entry) for name, entry in header.items()}
    except _UnknownDtype as error:
        raise ValueError(f"{path}: {error}") from None
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise ValueError(f"{path}: damaged or truncated, allowed: a safetensors file") from None


class _UnknownDtype(Exception):
    pass


def _view(
    body: NDArray[np.uint8], dtype: str, shape: list[int], data_offsets: list[int]
) -> NDArray[Any]:
    if dtype not in DTYPES:
        raise _UnknownDtype(f"found dtype {dtype}, allowed: {', '.join(DTYPES)}")
    start, end = data_offsets
    if not 0 <= start <= end <= len(body):
        raise ValueError("a tensor beyond the end of the file")
    return body[start:end].view(DTYPES[dtype]).reshape(shape)
