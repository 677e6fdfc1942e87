"""A disk that is full: errors name their file, and what is a mere view of the run is let go."""

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from tensorboardX.record_writer import register_writer_factory

SCHEME = "best-effort"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives errors of the file system inside the block this path, where they have none.

    TensorStore, below Orbax, reports such errors as ValueError with the number in its text.

    Raises:
        OSError: With number, reason and file name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except ValueError as error:
        if found := re.search(r"os_error_code='(\d+)'", str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


def write_whole(file: FileIO, content: bytes) -> None:
    """Writes to an unbuffered file; OSError also where the disk takes only a part."""
    if file.write(content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def best_effort(folder: Path) -> str:
    """The folder as a `logdir` for tensorboardX that a full disk does not harm.

    Its own files are written by a thread, which such an error would end; the next events would then
    wait for it forever. These files say so once and take no more events.
    """
    return f"{SCHEME}:{folder}"


class _BestEffortFile:
    """What tensorboardX asks of a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: FileIO | None = None
        with self._giving_up():
            self._file = FileIO(path, "wb")

    def write(self, content: bytes) -> None:
        if self._file is not None:
            with self._giving_up():
                write_whole(self._file, content)

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            print(
                f"{self._path}: {error.strerror}; the run goes on without TensorBoard events",
                file=sys.stderr,
                flush=True,
            )


class _BestEffortFiles:
    """The factory that tensorboardX finds by the scheme."""

    def open(self, path: str) -> _BestEffortFile:
        return _BestEffortFile(path.removeprefix(f"{SCHEME}:"))

    def directory_check(self, path: str) -> None:
        Path(path.removeprefix(f"{SCHEME}:")).mkdir(parents=True, exist_ok=True)


register_writer_factory(SCHEME, _BestEffortFiles())
