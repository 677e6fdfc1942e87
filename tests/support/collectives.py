"""What a compiled module sends between devices."""

import re


def collectives(text: str) -> list[tuple[str, tuple[int, ...]]]:
    """(kind, shape) of every array that a collective of the compiled module makes."""
    found = []
    for line in text.splitlines():
        match = re.search(r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all)\(", line)
        if match:
            shapes = re.findall(r"\w+\[([\d,]*)\]", match[1])
            found += [(match[2], tuple(map(int, filter(None, s.split(","))))) for s in shapes]
    return found
