"""Short ladders of lengths, so that a run compiles few programs."""

from bisect import bisect_left


def length_ladder(longest: int, first: int = 64) -> tuple[int, ...]:
    """Doubling lengths from `first` on, ending at `longest` exactly.

    Args:
        longest: The last rung, at least 1.
        first: The first rung where it is shorter than `longest`.

    Returns:
        Rungs in rising order.
    """
    rungs = []
    rung = first
    while rung < longest:
        rungs.append(rung)
        rung *= 2
    return (*rungs, longest)


def rung_for(length: int, ladder: tuple[int, ...]) -> int:
    """The first rung that is at least `length`; the last where none is."""
    return ladder[min(bisect_left(ladder, length), len(ladder) - 1)]
