"""Arguments of the commands that move checkpoints; a mistake is one line."""

import argparse
from pathlib import Path
from typing import NoReturn


class Arguments(argparse.ArgumentParser):
    """A parser whose mistakes are a `ValueError` instead of several lines."""

    def error(self, message: str) -> NoReturn:
        """Raises the ValueError."""
        raise ValueError(message)


def source_and_out(usage: str, *, source: str, out: str) -> Arguments:
    """A parser of `SOURCE OUT [--dtype DTYPE]`; the texts are those of `--help`."""
    parser = Arguments(description=usage, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help=source)
    parser.add_argument("out", type=Path, help=out)
    parser.add_argument("--dtype", help="stored dtype; the source's own by default")
    return parser
