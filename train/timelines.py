"""When device, drafter and copies were at work in a few rounds, as the report shows them."""

from collections.abc import Sequence
from itertools import islice

from ngramrl_jax.rollout.timeline import RoundTimes
from train.run_folder import RunFolder

FILE = "timeline.json"
KEPT = 64  # rounds


def keep_timeline(
    folder: RunFolder, step: int, prefetch: str, timeline: Sequence[RoundTimes]
) -> None:
    """Writes the step's last rounds, in milliseconds from the first of them, in place of others.

    Times of drafting are null where there was none.
    """
    rounds = list(islice(timeline, max(len(timeline) - KEPT, 0), None))
    if not rounds:
        return
    zero = min(time for times in rounds for time in times if time)
    told = [
        {
            name: round(1e3 * (time - zero), 4) if time else None
            for name, time in times._asdict().items()
        }
        for times in rounds
    ]
    folder.write_json(FILE, {"step": step, "prefetch": prefetch, "rounds": told})
