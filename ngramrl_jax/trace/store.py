"""A trace on disk: a header, and blocks of steps of which the oldest are deleted whole.

    trace.json          the header
    000000000/ ...      blocks, each named by its first step; see `ngramrl_jax.trace.block`

One process writes; any number may read meanwhile and see whole steps only.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from ngramrl_jax.trace.block import (
    BlockWriter,
    block_folders,
    block_name,
    bytes_of,
    commit_index,
    delete_block,
    read_block,
    read_index,
)
from ngramrl_jax.trace.columns import best_width, to_columns
from ngramrl_jax.trace.records import TracedStep, TraceHeader

HEADER = "trace.json"
LEAST_BYTES = 2**16
_BLOCK_SHARE = 16  # a block holds at most about this part of the bound
_BLOCK_BYTES = 2**24


class TraceWriter:
    """Writes the steps of a run from `first_step` on.

    Attributes:
        folder: Where the trace lies.
        max_bytes: Bound on its size after every `append`.
    """

    def __init__(
        self, folder: Path, header: TraceHeader, *, max_bytes: int = 2**30, first_step: int = 0
    ) -> None:
        """Opens the folder, or makes it.

        Args:
            folder: May hold a trace already: its steps before `first_step` stay, those from it on,
                left by a run that got further than its last checkpoint, are removed.
            header: Replaces the one there.
            max_bytes: Whole blocks go, oldest first, to keep to it; a step that does not fit
                alone is not kept.
            first_step: The first one that will be appended.

        Raises:
            ValueError: `max_bytes` is too small, or an index there is damaged.
        """
        if max_bytes < LEAST_BYTES:
            raise ValueError(f"max_bytes: found {max_bytes}, allowed: {LEAST_BYTES} or more")
        self.folder = folder.resolve()
        self.max_bytes = max_bytes
        self._block_bytes = min(_BLOCK_BYTES, max_bytes // _BLOCK_SHARE)
        self.folder.mkdir(parents=True, exist_ok=True)
        _cut(self.folder, first_step)
        self._closed = {block: bytes_of(block) for block in block_folders(self.folder)}
        self._block: BlockWriter | None = None
        scratch = self.folder / f"{HEADER}.tmp"
        scratch.write_text(header.to_json())
        os.replace(scratch, self.folder / HEADER)

    def append(self, step: TracedStep) -> None:
        """Writes one step, later than all before it, and commits it.

        Raises:
            ValueError: Its rollouts differ in the width of their best tokens, or TensorStore could
                not write (a full disk among others).
            OSError: The index could not be written.
        """
        best = best_width(step)
        block = self._block
        if block is None or block.nbytes >= self._block_bytes or block.index.best != best:
            if block is not None:
                self._closed[block.path] = block.nbytes
            block = self._block = BlockWriter(self.folder / block_name(step.step), best)
        block.append(step.step, to_columns(step))
        self._fit(block)

    def _fit(self, newest: BlockWriter) -> None:
        while self._closed and newest.nbytes + sum(self._closed.values()) > self.max_bytes:
            oldest = next(iter(self._closed))
            delete_block(oldest)
            del self._closed[oldest]
        if newest.nbytes > self.max_bytes:
            delete_block(newest.path)
            self._block = None


class Trace:
    """Reads a trace, of a run that goes on or has ended.

    Attributes:
        folder: Where it lies.
        header: As the run wrote it.
    """

    def __init__(self, path: Path) -> None:
        """Opens the trace at `path`, or the one in the run folder `path`.

        Raises:
            ValueError: There is none, or its header is damaged.
        """
        folders = [path, path / "traces"]
        self.folder = next((f for f in folders if (f / HEADER).is_file()), path)
        stored = self.folder / HEADER
        try:
            self.header = TraceHeader.from_json(stored.read_text())
        except OSError as error:
            raise ValueError(
                f"{path}: found no trace, allowed: a folder with {HEADER}, or a run folder"
            ) from error
        except ValueError as error:
            raise ValueError(f"{stored}: {str(error).splitlines()[0]}") from error

    def step_numbers(self) -> list[int]:
        """The whole steps that are there now, rising."""
        indices = (read_index(block) for block in block_folders(self.folder))
        return [step for index in indices if index is not None for step in index.steps]

    def steps(self) -> Iterator[TracedStep]:
        """The whole steps in the order of training, one block in memory at a time.

        Raises:
            ValueError: A block is damaged.
        """
        for block in block_folders(self.folder):
            index = read_index(block)
            if index is None:
                continue
            try:
                read = read_block(block, index)
            except ValueError as error:
                if read_index(block) is None:
                    continue  # its turn to go came while it was read
                raise ValueError(f"{block}: found a damaged block: {_brief(error)}") from error
            yield from read


def _cut(folder: Path, first_step: int) -> None:
    """Removes the steps from `first_step` on, and what a killed writer left."""
    for block in block_folders(folder):
        index = read_index(block)
        kept = index and index.before(first_step)
        if not kept or not kept.steps:
            delete_block(block)
        elif kept != index:
            commit_index(block, kept)


def _brief(error: Exception) -> str:
    """TensorStore's messages end in its whole specification."""
    return str(error).splitlines()[0].split(" [")[0]
