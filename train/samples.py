"""A few rollouts of the first and of the last step, as the report shows them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ngramrl_jax.types import Rollout
from train.run_folder import RunFolder
from train.text import TextCodec
from train.trainer import StepOutcome
from train.workbench import Workbench

FILE = "samples.json"
COUNT = 3  # of a step


@dataclass(frozen=True)
class Sample:
    """A rollout as the report shows it.

    Attributes:
        prompt: Its text.
        step: Training step.
        reward: Of the rollout.
        tokens: Text of each token and whether it was an accepted draft.
        gold: A right response.
    """

    prompt: str
    step: int
    reward: float
    tokens: Sequence[dict[str, Any]]
    gold: str


def keep_samples(folder: RunFolder, bench: Workbench, outcome: StepOutcome) -> None:
    """Adds rollouts of the step to those in the run folder, in place of later ones there."""
    kept: list[Any] = folder.read_json(FILE) or []
    kept = [sample for sample in kept if sample["step"] < outcome.row["step"]]
    prompts = {prompt.item.index: prompt for prompt in bench.train}
    apart = max(1, len(outcome.rollouts) // COUNT)
    for rollout, score in list(zip(outcome.rollouts, outcome.scores, strict=True))[::apart]:
        item = prompts[rollout.prompt_id].item
        sample = Sample(
            prompt=bench.task.prompt(item),
            step=rollout.step,
            reward=score.reward,
            tokens=_tokens(bench.codec, rollout),
            gold=bench.task.response(item) or "not known",
        )
        kept.append(asdict(sample))
    folder.write_json(FILE, kept)


def _tokens(codec: TextCodec, rollout: Rollout) -> Sequence[dict[str, Any]]:
    texts = codec.pieces(rollout.tokens_N)
    return [
        {"text": text, "drafted": bool(drafted)}
        for text, drafted in zip(texts, rollout.drafted_N, strict=True)
    ]
