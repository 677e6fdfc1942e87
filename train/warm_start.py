"""Supervised warm start: a fresh policy learns the task's own responses until RL can take over.

RL needs a policy that is sometimes right. Training stops early, as soon as sampling is right often
enough, because a policy that has learnt everything leaves nothing to improve.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np

from models import checkpoint
from models.config import preset
from models.policy import Qwen3Policy
from ngramrl_jax.types import Int32Array
from train.batching import Batch, supervised_batch
from train.chat import open_codec
from train.config import RunConfig, WarmStartConfig
from train.disk import naming
from train.evaluation import evaluate
from train.learner import Learner, OptimizerSettings
from train.objectives import supervised
from train.prompts import Prompt, encode_prompts
from train.tasks.base import Item, Task
from train.text import TextCodec
from train.tokenizer import save_tokenizer, train_tokenizer
from train.workbench import compute_dtype, plain_engine, rollout_sampling

WARMUP_STEPS = 20
WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class Lesson:
    """A prompt and the response to be learnt."""

    prompt: Prompt
    response_N: Int32Array


def ensure_checkpoint(config: RunConfig, task: Task, *, quiet: bool = False) -> None:
    """Makes `model.checkpoint` where it is missing and `warm_start.enabled` allows it."""
    if config.warm_start.enabled and not Path(config.model.checkpoint).exists():
        if jax.process_count() > 1:
            raise ValueError(
                f"model.checkpoint: found no {config.model.checkpoint}, allowed with several "
                "processes: one that train/sft.py made before"
            )
        make_checkpoint(config, task, quiet=quiet)


def make_checkpoint(config: RunConfig, task: Task, *, quiet: bool = False) -> None:
    """Trains from scratch and writes `model.checkpoint`, weights in bfloat16.

    Raises:
        ValueError: The folder exists, or the configuration or the data cannot be used.
    """
    out, warm = Path(config.model.checkpoint), config.warm_start
    if out.exists():
        raise ValueError(f"model.checkpoint: {out} exists, allowed: a new folder")
    above = next(path for path in out.absolute().parents if path.exists())
    if not (above.is_dir() and os.access(above, os.W_OK)):  # rather now than after the training
        raise ValueError(f"model.checkpoint: found {out}, allowed: a folder that can be made")
    with TemporaryDirectory() as scratch:
        tokenizer = Path(warm.tokenizer or scratch)
        if not warm.tokenizer:
            save_tokenizer(train_tokenizer(_texts(task), warm.vocab_size), tokenizer)
        codec = open_codec(tokenizer, config.data)
        policy = Qwen3Policy(
            replace(preset(warm.preset), vocab_size=codec.vocab_size), compute_dtype(config.model)
        )
        lessons = _lessons(task, codec, config.rollout.max_prompt_tokens)
        params = _learn(config, task, codec, policy, lessons, quiet)
        with naming(out):
            checkpoint.save(out, policy.config, params, tokenizer, dtype=jnp.bfloat16)
    if not quiet:
        print(f"checkpoint: {out}")


def _learn(
    config: RunConfig,
    task: Task,
    codec: TextCodec,
    policy: Qwen3Policy,
    lessons: Sequence[Lesson],
    quiet: bool,
) -> dict:
    warm = config.warm_start
    optimizer = OptimizerSettings(
        warm.learning_rate, warmup_steps=WARMUP_STEPS, weight_decay=WEIGHT_DECAY
    )
    sampling = replace(rollout_sampling(config.rollout), temperature=1.0)
    learner = Learner(policy, optimizer, supervised(), sampling)
    state = learner.init(policy.init_params(jax.random.key(config.seed)))
    probe = plain_engine(
        policy, codec, config.rollout, config.evaluation.slots, rollout_sampling(config.rollout)
    )
    own = encode_prompts(task, codec, task.train_items, config.rollout.max_prompt_tokens)
    asked = [own[i] for i in _spread(len(own), warm.probe_items)]
    updates = 0
    for batches in _between_probes(lessons, warm, codec.stop_ids[0], config.seed):
        start, losses = perf_counter(), []
        for batch in batches:
            state, metrics = learner.update(state, batch)
            losses.append(metrics["loss"])
        updates += len(losses)
        scores = evaluate(
            probe,
            state.params,
            task,
            codec,
            asked,
            max_new_tokens=config.rollout.max_new_tokens,
            seed=config.seed + updates,
        )
        accuracy = float(np.mean([score.parts[task.accuracy_part] for score in scores]))
        if not quiet:
            loss = float(np.mean(jax.device_get(losses)))
            print(
                f"warm start, {updates} updates: loss {loss:.3f}, right when sampled "
                f"{accuracy:.2f}, {perf_counter() - start:.0f} s",
                flush=True,
            )
        if accuracy >= warm.stop_accuracy:
            break
    return state.params


def _between_probes(
    lessons: Sequence[Lesson], warm: WarmStartConfig, stop_id: int, seed: int
) -> Iterator[list[Batch]]:
    """All epochs, cut into stretches of `probe_every` updates, or of one epoch."""
    batches = chain.from_iterable(
        _epoch(lessons, warm, stop_id, [seed, epoch]) for epoch in range(warm.epochs)
    )
    every = warm.probe_every or -(-len(lessons) // warm.batch)
    while stretch := list(islice(batches, every)):
        yield stretch


def _epoch(
    lessons: Sequence[Lesson], warm: WarmStartConfig, stop_id: int, seed: list[int]
) -> Iterator[Batch]:
    """One shuffled pass; sequences of a batch have about the same length, to waste no padding."""
    rng = np.random.default_rng(seed)
    length = np.asarray([len(one.prompt.tokens_P) + len(one.response_N) for one in lessons])
    by_length = np.argsort(length + rng.uniform(0, 8, len(lessons)), kind="stable")
    batches = [by_length[i : i + warm.batch] for i in range(0, len(lessons), warm.batch)]
    for index in rng.permutation(len(batches)):
        chosen = [lessons[i] for i in batches[index]]
        yield supervised_batch(
            [one.prompt.tokens_P for one in chosen],
            [one.response_N for one in chosen],
            stop_id=stop_id,
            micro_rows=warm.batch,
        )


def _spread(items: int, count: int) -> np.ndarray:
    """`count` indices evenly over `items`, all of them where there are fewer."""
    return np.unique(np.linspace(0, items - 1, min(count, items)).astype(int))


def _lessons(task: Task, codec: TextCodec, longest: int) -> list[Lesson]:
    prompts = encode_prompts(task, codec, _items(task), longest)
    if not prompts:
        raise ValueError(f"rollout.max_prompt_tokens: found {longest}, no prompt is that short")
    return [Lesson(prompt, codec.encode(_response(task, prompt.item))) for prompt in prompts]


def _response(task: Task, item: Item) -> str:
    response = task.response(item)
    if response is None:
        raise ValueError(
            f"warm start: found no response to item {item.index}, allowed: one to each"
        )
    return response


def _items(task: Task) -> list[Item]:
    return [*task.train_items, *task.warm_start_items]


def _texts(task: Task) -> Iterator[str]:
    for item in _items(task):
        yield task.prompt(item)
        yield _response(task, item)
