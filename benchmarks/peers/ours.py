"""Rollouts by our engine, plain and drafting; the drafter learns from every job that it ran.

python ours.py CHECKPOINT SLOTS PROMPT_TOKENS NEW_TOKENS TEMPERATURE     see `serving` for jobs
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np  # noqa: E402

from benchmarks.peers.serving import Job, Responses, serve  # noqa: E402
from models.policy import Params  # noqa: E402
from ngramrl_jax.rollout.engine import RolloutEngine  # noqa: E402
from ngramrl_jax.types import RolloutRequest, Sampling  # noqa: E402
from train.command import use_compilation_cache  # noqa: E402
from train.config_file import load_config  # noqa: E402
from train.workbench import load_policy, plain_engine, training_engine  # noqa: E402


def sampled(engine: RolloutEngine, params: Params, job: Job) -> Responses:
    """Runs a job as one step of training would."""
    requests = [
        RolloutRequest(number, sibling, np.array(prompt, np.int32), job.new_tokens)
        for number, prompt in enumerate(job.prompts)
        for sibling in range(job.group)
    ]
    rollouts, _ = engine.generate(params, requests, seed=0, step=job.number, policy_version=0)
    return [rollout.tokens_N.tolist() for rollout in rollouts]


def main() -> None:
    """Serves both arms."""
    checkpoint, slots, prompt_tokens, new_tokens, temperature = sys.argv[1:6]
    overrides = [
        f"model.checkpoint={checkpoint}",
        f"rollout.slots={slots}",
        f"rollout.max_prompt_tokens={prompt_tokens}",
        f"rollout.max_new_tokens={new_tokens}",
        f"rollout.temperature={temperature}",
        "rollout.draft_length=auto",
        "deterministic=false",
    ]
    config = load_config(None, overrides)
    policy, params, codec = load_policy(config.model, config.data)
    drafting, _ = training_engine(policy, codec, config.rollout, deterministic=False)
    plain = plain_engine(policy, codec, config.rollout, int(slots), Sampling(float(temperature)))
    for engine in (plain, drafting):
        engine.warm_up(params)

    def say_plainly(job: Job) -> Responses:
        if job.temperature:
            return sampled(plain, params, job)
        greedy = plain_engine(policy, codec, config.rollout, 1, Sampling(temperature=0.0))
        return sampled(greedy, params, job)

    serve(
        {"ours, plain": say_plainly, "ours, drafting": lambda job: sampled(drafting, params, job)}
    )


if __name__ == "__main__":
    use_compilation_cache()
    main()
