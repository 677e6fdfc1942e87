"""What the drafter buys on the rollouts of a real model, replayed offline."""

import json

import numpy as np
import pytest

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter


def tokens_per_forward(history_window, shared_data):
    """Offline replay of the published rollouts with the seven siblings of each as history."""
    tokens = rounds = 0
    trace = shared_data / "traces" / "qwen2.5_coder_0.5b_spider.jsonl"
    for line in trace.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for number, target in enumerate(record["rollouts"]):
            drafter = NgramDrafter(1, 16, History(history_window))
            siblings = record["rollouts"][:number] + record["rollouts"][number + 1 :]
            for sibling in siblings:
                drafter.observe(0, sibling, 0)
            drafter.start_row(0, 0, record["prompt_ids"])
            position = 0
            while position < len(target):
                draft_BK, length_B = drafter.propose(np.array([len(target) - position - 1]))
                draft = draft_BK[0, : length_B[0]].tolist()
                accepted = 0
                while accepted < len(draft) and draft[accepted] == target[position + accepted]:
                    accepted += 1
                new = target[position : position + accepted + 1]
                drafter.commit(np.array([new]), np.array([len(new)]))
                position += len(new)
                tokens += len(new)
                rounds += 1
    return tokens / rounds


def test_tokens_per_forward_on_published_rollouts(shared_data):
    """Of a real model without training, of which neither laws nor keys are known.

    NOTICE.md gives 2.8 for a longest-suffix drafter, and 1.07 for prompt look-up.
    """
    assert tokens_per_forward(16, shared_data) == pytest.approx(3.023, abs=0.002)
    assert tokens_per_forward(0, shared_data) == pytest.approx(1.185, abs=0.002)
