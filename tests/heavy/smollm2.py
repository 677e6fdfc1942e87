"""A real pretrained model: greedy text under drafting equals plain decoding.

Needs runs/checkpoints/smollm2_135m, see train/import_checkpoint.py; skips without it. A minute.
"""

from pathlib import Path

import numpy as np
import pytest

from ngramrl_jax.types import RolloutRequest, Sampling
from train.config_file import load_config
from train.workbench import load_policy, plain_engine, training_engine

CHECKPOINT = Path(__file__).resolve().parents[2] / "runs" / "checkpoints" / "smollm2_135m"
QUESTIONS = [
    "What is the capital of France?",
    "Repeat three times: the quick brown fox jumps over the lazy dog.",
    "List the numbers from one to twelve.",
]
NEW_TOKENS = 48


@pytest.mark.skipif(not CHECKPOINT.is_dir(), reason=f"needs {CHECKPOINT}")
def test_greedy_text_under_drafting_is_that_of_plain_decoding():
    config = load_config(
        None,
        [
            f"model.checkpoint={CHECKPOINT}",
            "data.chat=true",
            "rollout.temperature=0",
            "rollout.slots=3",
            "rollout.draft_tokens=4",
            f"rollout.max_new_tokens={NEW_TOKENS}",
        ],
    )
    policy, params, codec = load_policy(config.model, config.data)
    requests = [
        RolloutRequest(i, 0, codec.encode_prompt(text), NEW_TOKENS)
        for i, text in enumerate(QUESTIONS)
    ]
    plain = plain_engine(policy, codec, config.rollout, 3, Sampling(temperature=0.0))
    wanted, _ = plain.generate(params, requests, seed=0, step=0, policy_version=0)
    assert "Paris" in codec.decode(wanted[0].tokens_N)
    engine, history = training_engine(policy, codec, config.rollout)
    for step in range(2):  # without history, then with that of the first time
        found, _ = engine.generate(params, requests, seed=1, step=step, policy_version=0)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one.tokens_N, other.tokens_N)
    assert history.history_tokens > 0
