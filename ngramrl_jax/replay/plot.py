"""What replay finds, as one picture a trace."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ngramrl_jax.replay.report import Report

KINDS = (".png", ".svg")


def plot(reports: Sequence[Report], path: Path) -> None:
    """Draws a row of panels a trace; the kind of file follows from the name.

    Raises:
        ValueError: matplotlib is not installed, or cannot write such a file there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("--plot: found no matplotlib, allowed: pip install matplotlib") from error
    figure = Figure(figsize=(15, 3.6 * len(reports)), layout="constrained")
    axes = figure.subplots(len(reports), 4, squeeze=False)
    for report, (forward, position, draft, match) in zip(reports, axes, strict=True):
        for name, found in report["drafters"].items():
            by_step = found["tokens_per_forward_by_step"]
            forward.plot(list(by_step), list(by_step.values()), label=name)
            rates = [np.nan if r is None else r for r in found["acceptance_by_position"]]
            position.plot(range(1, len(rates) + 1), rates, label=name)
            draft.plot(found["draft_lengths"], label=name)
            if found["match_lengths"]:
                match.plot(found["match_lengths"], label=name)
        forward.set(title=report["trace"]["path"], xlabel="step", ylabel="tokens per forward")
        position.set(title="acceptance by position", xlabel="draft token", ylim=(0, 1))
        draft.set(title="draft lengths", xlabel="tokens", ylabel="row-rounds")
        match.set(title="match lengths", xlabel="tokens, the last place: or more")
        forward.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--plot: found {path}: {error}, allowed: a file {', '.join(KINDS)}"
        ) from error
