"""Whether files are byte for byte those that were written.

A record, one JSON file, holds size and CRC-32 of every file of a folder. Orbax itself does not
notice a flipped byte, and reports a truncated file in the middle of its asynchronous reads.
"""

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK_BYTES = 1 << 24
RECORD = "files.json"
_BESIDE = "../"


def write(folder: Path, record: Path, beside: Path | None = None) -> None:
    """Records the files under a folder, and one beside it; the record may lie there too."""
    prints = _fingerprints(folder, record)
    if beside is not None:
        prints[_BESIDE + beside.name] = _fingerprint(beside)
    record.write_text(json.dumps(prints, indent=1) + "\n", encoding="utf-8")


def check(folder: Path, record: Path) -> None:
    """Compares the files under a folder with their record.

    Raises:
        ValueError: The record, or a file in it, is missing or damaged, or a file is not in it.
    """
    found = _fingerprints(folder, record)
    wanted = {k: v for k, v in _read(record).items() if not k.startswith(_BESIDE)}
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            raise ValueError(f"{folder}/{name}: missing, the checkpoint is incomplete")
        if found[name] != wanted.get(name):
            raise ValueError(
                f"{folder}/{name}: damaged, found size and checksum {found[name]}, "
                f"allowed: {wanted.get(name)}"
            )


def is_recorded(beside: Path, record: Path) -> bool:
    """Whether the file beside the folder is the one that was recorded.

    Raises:
        ValueError: There is no record, or it is damaged.
    """
    return _read(record).get(_BESIDE + beside.name) == _fingerprint(beside)


def _read(record: Path) -> dict[str, list[int]]:
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{record}: not found, the checkpoint is incomplete") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"{record}: damaged, allowed: a JSON object")
    return content


def _fingerprints(folder: Path, record: Path) -> dict[str, list[int]]:
    """[size in bytes, CRC-32] by relative path; the checksums of large files run in parallel."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file != record)
    with ThreadPoolExecutor() as pool:
        prints = pool.map(_fingerprint, files)
        return {
            file.relative_to(folder).as_posix(): found
            for file, found in zip(files, prints, strict=True)
        }


def _fingerprint(file: Path) -> list[int]:
    checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return [file.stat().st_size, checksum]
