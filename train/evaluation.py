"""Held-out accuracy: one response a prompt, scored by the task."""

from collections.abc import Mapping, Sequence

from models.policy import Params
from ngramrl_jax.rollout.engine import RolloutEngine
from train.config import RunConfig
from train.processes import exchange, share
from train.prompts import Prompt, group_requests
from train.tasks.base import Score, Task, checked_scores
from train.text import TextCodec
from train.workbench import Workbench, evaluation_sampling, plain_engine

# Training steps count up from 0, so evaluation noise never repeats a training step's.
EVALUATION_STEP = 2**31 - 1


def evaluate(
    engine: RolloutEngine,
    params: Params,
    task: Task,
    codec: TextCodec,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    seed: int,
) -> list[Score]:
    """Scores of one response to each prompt, in order; each process evaluates its share."""
    own = share(prompts)

    def scores() -> list[Score]:
        requests = group_requests(own, group=1, max_new_tokens=max_new_tokens)
        rollouts, _ = engine.generate(
            params, requests, seed=seed, step=EVALUATION_STEP, policy_version=-1
        )
        texts = [codec.decode(rollout.tokens_N) for rollout in rollouts]
        return checked_scores(task, [prompt.item for prompt in own], texts) if own else []

    return [score for part in exchange(scores) for score in part]


class Judge:
    """Evaluates a policy on all held-out sets, with one engine and its compiled programs."""

    def __init__(self, bench: Workbench, config: RunConfig) -> None:
        """An engine of `evaluation.slots` rows that samples as `evaluation` says."""
        self._bench, self._config = bench, config
        self._engine = plain_engine(
            bench.policy,
            bench.codec,
            config.rollout,
            config.evaluation.slots,
            evaluation_sampling(config.evaluation),
            bench.rollout_mesh,
        )

    def __call__(self, params: Params) -> dict[str, list[Score]]:
        """Scores by held-out set; sets without a prompt are left out."""
        scores = {
            name: evaluate(
                self._engine,
                params,
                self._bench.task,
                self._bench.codec,
                prompts,
                max_new_tokens=self._config.rollout.max_new_tokens,
                seed=self._config.seed,
            )
            for name, prompts in self._bench.heldout.items()
            if prompts
        }
        self._engine.release()
        return scores


def outcomes(scores: Mapping[str, Sequence[Score]], part: str) -> dict[str, list[int]]:
    """Per held-out set, 1 for every item whose named part is full, else 0."""
    return {
        name: [int(score.parts[part] >= 1.0) for score in of_set] for name, of_set in scores.items()
    }
