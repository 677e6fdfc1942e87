"""A block of steps on disk: one TensorStore array a column, and an index committed last.

    <first step>/index.json     the steps that are whole, and where each ends in every column
    <first step>/<column>/      zarr3, chunked and compressed, every chunk with a checksum

The arrays are endless: a step is written behind the one before, and only the index says how far
they are filled. So nothing is ever resized, a reader never looks past what it was promised, and
what a killed writer has left behind the last whole step is as if it were not there.

Legend: R best tokens, F numbers of a rollout.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorstore as ts

from ngramrl_jax.trace.columns import (
    EXTENT_OF,
    EXTENTS,
    ROLLOUT_FIELDS,
    Columns,
    from_columns,
)
from ngramrl_jax.trace.records import TracedStep

_ENDLESS = 2**40
_CHUNK_ENTRIES = 2**14
_DTYPES = {"rewards": "float32", "logps": "float32", "best_logps": "float32", "drafted": "bool"}


@dataclass(frozen=True)
class BlockIndex:
    """The whole steps of a block.

    Attributes:
        best: R, 0 where there are no best tokens.
        steps: Their numbers, rising.
        ends: For every step where it ends in the columns of each of `EXTENTS`.
    """

    best: int
    steps: tuple[int, ...] = ()
    ends: tuple[tuple[int, ...], ...] = ()

    @property
    def end(self) -> tuple[int, ...]:
        """Where the last whole step ends."""
        return self.ends[-1] if self.ends else (0,) * len(EXTENTS)

    def added(self, step: int, columns: Columns) -> "BlockIndex":
        """With one more step."""
        assert step > max(self.steps, default=-1), "steps come in order"
        sizes = {EXTENT_OF[name]: len(column) for name, column in columns.items()}
        end = tuple(at + sizes[extent] for at, extent in zip(self.end, EXTENTS, strict=True))
        return BlockIndex(self.best, (*self.steps, step), (*self.ends, end))

    def before(self, step: int) -> "BlockIndex":
        """With the steps before `step` alone."""
        kept = sum(number < step for number in self.steps)
        return BlockIndex(self.best, self.steps[:kept], self.ends[:kept])


def block_name(first_step: int) -> str:
    """Names sort as the steps do."""
    return f"{first_step:09d}"


def block_folders(folder: Path) -> list[Path]:
    """The blocks in a trace, oldest first, unfinished ones included."""
    return sorted(path for path in folder.glob("[0-9]" * 9) if path.is_dir())


def read_index(block: Path) -> BlockIndex | None:
    """What is whole in the block; None where nothing is.

    Raises:
        ValueError: The index is damaged.
    """
    path = block / "index.json"
    try:
        found = json.loads(path.read_text())
        steps, ends = tuple(found["steps"]), tuple(map(tuple, found["ends"]))
        index = BlockIndex(found["best"], steps, ends)
        whole = len(steps) == len(ends) and all(len(end) == len(EXTENTS) for end in ends)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: found a damaged index, allowed: one that is whole") from error
    if not whole:
        raise ValueError(f"{path}: found {len(steps)} steps, {len(ends)} ends, allowed: as many")
    return index


def commit_index(block: Path, index: BlockIndex) -> None:
    """Replaces the index at once: from now on its steps are there for readers."""
    scratch = block / "index.json.tmp"
    content = {"best": index.best, "steps": index.steps, "ends": index.ends}
    scratch.write_text(json.dumps(content))
    os.replace(scratch, block / "index.json")


def delete_block(block: Path) -> None:
    """First the index, so that a reader sees all of it or nothing."""
    (block / "index.json").unlink(missing_ok=True)
    shutil.rmtree(block, ignore_errors=True)


def bytes_of(block: Path) -> int:
    """Bytes of its files."""
    files = (os.path.join(where, name) for where, _, names in os.walk(block) for name in names)
    return sum(os.path.getsize(file) for file in files)


class BlockWriter:
    """Appends steps to a new block.

    Attributes:
        path: Its folder.
        index: What is whole.
        nbytes: Bytes on disk after the last `append`.
    """

    def __init__(self, path: Path, best: int) -> None:
        """An empty block in place of what was there; `best` is R."""
        delete_block(path)
        self.path = path
        self.index = BlockIndex(best)
        self.nbytes = 0
        self._arrays = {
            name: ts.open(_new(path / name, name, best), create=True, open=True).result()
            for name in _names(best)
        }

    def append(self, step: int, columns: Columns) -> None:
        """Writes a step behind the last one and commits it."""
        index = self.index.added(step, columns)
        begin = dict(zip(EXTENTS, self.index.end, strict=True))
        end = dict(zip(EXTENTS, index.end, strict=True))
        writes = []
        for name, column in columns.items():
            extent = EXTENT_OF[name]
            if len(column):
                place = slice(begin[extent], end[extent])
                writes.append(self._arrays[name][place].write(column))
        for write in writes:
            write.result()
        commit_index(self.path, index)
        self.index = index
        self.nbytes = bytes_of(self.path)


def read_block(path: Path, index: BlockIndex) -> list[TracedStep]:
    """The steps of the index.

    Raises:
        ValueError: A chunk is missing or damaged.
    """
    end = dict(zip(EXTENTS, index.end, strict=True))
    columns = {}
    for name in _names(index.best):
        array = ts.open(_existing(path / name), open=True).result()
        columns[name] = array[: end[EXTENT_OF[name]]].read().result()
    begins = ((0,) * len(EXTENTS), *index.ends[:-1])
    return [
        from_columns(step, _cut(columns, begin, end))
        for step, begin, end in zip(index.steps, begins, index.ends, strict=True)
    ]


def _cut(columns: Columns, begin: tuple[int, ...], end: tuple[int, ...]) -> Columns:
    place = {extent: slice(*ends) for extent, *ends in zip(EXTENTS, begin, end, strict=True)}
    return {name: column[place[EXTENT_OF[name]]] for name, column in columns.items()}


def _names(best: int) -> list[str]:
    return [name for name in EXTENT_OF if best or not name.startswith("best")]


def _existing(path: Path) -> dict[str, Any]:
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path)},
        "fill_missing_data_reads": False,  # a lost chunk is an error, not zeros
    }


def _new(path: Path, name: str, best: int) -> dict[str, Any]:
    inner = {"rollouts": (len(ROLLOUT_FIELDS),), "best_ids": (best,), "best_logps": (best,)}
    tail = inner.get(name, ())
    dtype = _DTYPES.get(name, "int32")
    grid = {"name": "regular", "configuration": {"chunk_shape": [_CHUNK_ENTRIES, *tail]}}
    order = {"configuration": {"endian": "little"}} if dtype != "bool" else {}
    packing = {"cname": "zstd", "clevel": 3, "shuffle": "shuffle"}
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path)},
        # A killed process loses nothing that it wrote; only a power cut could, and waiting for the
        # disk at every chunk takes longer than everything else together.
        "context": {"file_io_sync": False},
        "store_data_equal_to_fill_value": True,  # so that a missing chunk is a lost one
        "metadata": {
            "shape": [_ENDLESS, *tail],
            "data_type": dtype,
            "chunk_grid": grid,
            "codecs": [
                {"name": "bytes", **order},
                {"name": "blosc", "configuration": packing},
                {"name": "crc32c"},
            ],
        },
    }
