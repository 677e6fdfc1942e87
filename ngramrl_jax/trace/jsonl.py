"""Rollouts of a model without training, as JSON lines: one prompt and its group a line.

`{"prompt_ids": [...], "rollouts": [[...], ...], "rewards": [...]}`; other entries are ignored.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ngramrl_jax.trace.records import TracedStep
from ngramrl_jax.types import Rollout


def read_jsonl(path: Path) -> list[TracedStep]:
    """One step a line; the prompt id is the number of the line, from 0.

    Log-probabilities are not in such a file: they are NaN.

    Raises:
        ValueError: The file is missing, holds nothing, or a line is not as above.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}, allowed: a file of JSON lines") from error
    if not lines:
        raise ValueError(f"{path}: found nothing, allowed: one object a line")
    return [_step(path, number, line) for number, line in enumerate(lines)]


def _step(path: Path, number: int, line: bytes) -> TracedStep:
    try:
        found = json.loads(line)
        prompt_P = _ids(found["prompt_ids"])
        group = [_ids(tokens) for tokens in found["rollouts"]]
        reward_N = np.asarray(found["rewards"], np.float32)
        if not group or reward_N.shape != (len(group),):
            raise ValueError(f"found {len(group)} rollouts and rewards of {reward_N.shape}")
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{path}: line {number + 1}: found {error}, allowed: an object with prompt_ids, "
            "rollouts (lists of ids, none empty) and as many rewards"
        ) from error
    rollouts = [
        Rollout(
            prompt_id=number,
            sibling=sibling,
            prompt_P=prompt_P,
            tokens_N=tokens_N,
            logps_N=np.full(len(tokens_N), np.nan, np.float32),
            drafted_N=np.zeros(len(tokens_N), bool),
            truncated=False,
            policy_version=0,
            step=number,
            rounds=len(tokens_N),
        )
        for sibling, tokens_N in enumerate(group)
    ]
    return TracedStep(number, rollouts, reward_N)


def _ids(found: Any) -> np.ndarray:
    ids_N = np.asarray(found)
    if ids_N.ndim != 1 or not ids_N.size or ids_N.dtype.kind != "i" or ids_N.min() < 0:
        raise ValueError(f"{found!s:.40} as token ids")
    return ids_N.astype(np.int32)
