"""The report's headlines: what a run showed, in sentences that its figures support."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from train.metrics import reward_parts
from train.progress import label, verdict

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Headline:
    """A figure in large type and the sentence that says what it means."""

    figure: str
    sentence: str


def headlines(summary: Summary) -> list[Headline]:
    """Speculation, learning, held-out sets and time; what the run lacks is left out."""
    found = [_speculation(summary), _learning(summary), _heldout(summary), _time(summary)]
    return [headline for headline in found if headline]


def _speculation(summary: Summary) -> Headline | None:
    cold, warm = summary["cold"], summary["warm"]
    if "tokens_per_forward" not in warm:
        return None
    kept = warm["tokens_per_forward"]
    sentence = (
        f"tokens per forward once warm, {cold['tokens_per_forward']:.2f} in the first epoch; "
        "plain decoding keeps 1."
    )
    if warm.get("drafted_per_round"):
        sentence += (
            f" A warm row-round drafted {warm['drafted_per_round']:.1f} tokens"
            f" and {warm.get('accepted_per_round', 0.0):.1f} of them were accepted."
        )
    return Headline(f"{kept:.2f}×", sentence)


def _learning(summary: Summary) -> Headline | None:
    epochs = summary["epochs"]
    name = next(
        (n for n in [*reward_parts(summary["cold"]), "reward_mean"] if n in summary["cold"]), None
    )
    if name is None or name not in epochs[-1]:
        return None
    first, last = epochs[0][name], epochs[-1][name]
    if len(epochs) == 1:
        return Headline(f"{first:.2f}", f"{label(name)} in the only epoch: nothing to compare yet.")
    change = "fell" if last < first else "rose"
    if round(last - first, 2) == 0:
        change = "stayed the same"
    sentence = f"{label(name)} of the sampled rollouts {change}: "
    sentence += f"{first:.2f} in the first epoch, {last:.2f} in the last."
    return Headline(f"{last - first:+.2f}", sentence)


def _heldout(summary: Summary) -> Headline | None:
    results = [r for r in summary["heldout"].values() if "end" in r]
    if not results:
        return None
    better, worse = (sum(verdict(r) == word for r in results) for word in ("better", "worse"))
    sentence = (
        f"held-out sets are better at the end beyond the 95 % interval; {worse or 'none'} "
        f"{'are' if worse > 1 else 'is'} significantly worse."
    )
    return Headline(f"{better} of {len(results)}", sentence)


def _time(summary: Summary) -> Headline | None:
    times = {s: summary["warm"].get(f"time_{s}_s", 0.0) for s in summary["time_s"]}
    total = sum(times.values())
    if not total:
        return None
    share = times.get("rollout", 0.0) / total
    longest = max(times, key=lambda stage: times[stage])
    name = "update" if longest == "train" else longest
    sentence = f"of a warm step ({total:.1f} s) goes into rollouts. "
    if longest == "rollout":
        sentence += "They are the longest stage here, the one that speculation shortens."
    else:
        sentence += (
            f"Here, on {summary.get('device', 'this device')}, the {name} takes longest "
            f"({times[longest] / total:.0%}): even free rollouts would shorten a step by no more "
            f"than {share:.0%}."
        )
    return Headline(f"{share:.0%}", sentence)
