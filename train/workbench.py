"""What every command works with, built from a configuration: task, policy, prompts, engines."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from models import checkpoint
from models.policy import Params, Qwen3Policy
from ngramrl_jax.host import ngram, ngram_trees
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.ngram_trees import NgramTreeDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.host.outcomes import Budget
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import DraftLengthName, EngineSettings
from ngramrl_jax.types import Sampling
from train.chat import open_codec
from train.config import (
    DataConfig,
    EvaluationConfig,
    ModelSection,
    ObjectiveConfig,
    RolloutConfig,
    RunConfig,
)
from train.correction import Correction
from train.learner import Learner, OptimizerSettings
from train.mesh import micro_batch_sharding, rollout_layout, rollout_mesh, training_mesh
from train.objectives import OBJECTIVES, Objective
from train.prompts import Prompt, encode_prompts
from train.tasks.base import Task
from train.text import TextCodec

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
RL_OBJECTIVES = ("grpo", "dr_grpo", "dapo", "gspo", "cispo")


@dataclass(frozen=True)
class Workbench:
    """A task and a policy that fit each other.

    Attributes:
        task: The workload; closed by whoever made the workbench.
        codec: The checkpoint's tokenizer.
        policy: The model.
        mesh: Where it is trained.
        rollout_mesh: Where this process samples from it.
        params: Its starting parameters, float32, on the training mesh.
        train: Training prompts that fit the cache.
        heldout: The same for each held-out set.
        left_out: Items of all sets whose prompt is too long.
    """

    task: Task
    codec: TextCodec
    policy: Qwen3Policy
    mesh: Mesh
    rollout_mesh: Mesh
    params: Params
    train: list[Prompt]
    heldout: Mapping[str, list[Prompt]]
    left_out: int


def open_workbench(config: RunConfig, task: Task) -> Workbench:
    """Loads the checkpoint and encodes the task's prompts with its tokenizer.

    Raises:
        ValueError: Checkpoint missing or unusable, tokenizer that does not match, no prompt that
            fits, a mesh that does not fit the devices or the policy.
    """
    mesh = training_mesh(config.mesh)
    policy, params, codec = load_policy(config.model, config.data, mesh)
    longest = config.rollout.max_prompt_tokens
    train = encode_prompts(task, codec, task.train_items, longest)
    heldout = {
        name: encode_prompts(task, codec, items, longest) for name, items in task.heldout.items()
    }
    if not train:
        raise ValueError(f"rollout.max_prompt_tokens: found {longest}, no prompt is that short")
    items = len(task.train_items) + sum(map(len, task.heldout.values()))
    left_out = items - len(train) - sum(map(len, heldout.values()))
    sampling_mesh = rollout_mesh(config.mesh, mesh)
    return Workbench(task, codec, policy, mesh, sampling_mesh, params, train, heldout, left_out)


def load_policy(
    section: ModelSection, data: DataConfig, mesh: Mesh | None = None
) -> tuple[Qwen3Policy, Params, TextCodec]:
    """Policy, float32 parameters and tokenizer of a checkpoint folder."""
    folder, dtype = Path(section.checkpoint), compute_dtype(section)
    model_config, params = checkpoint.load(folder, dtype=jnp.float32, mesh=mesh)
    codec = open_codec(folder, data)
    if codec.vocab_size > model_config.vocab_size:
        raise ValueError(
            f"tokenizer: found {codec.vocab_size} tokens, allowed: at most the model's "
            f"{model_config.vocab_size}"
        )
    checkpoint.check_tokenizer(folder)
    return Qwen3Policy(model_config, dtype, tokens=codec.vocab_size), params, codec


def compute_dtype(section: ModelSection) -> DTypeLike:
    """`model.dtype` as JAX names it; raises ValueError for another one."""
    if section.dtype not in DTYPES:
        raise ValueError(f"model.dtype: found {section.dtype}, allowed: {', '.join(DTYPES)}")
    return DTYPES[section.dtype]


def rollout_sampling(config: RolloutConfig) -> Sampling:
    """The adjusted distribution that rollouts are drawn from and trained on."""
    return Sampling(config.temperature, config.top_k, config.top_p)


def evaluation_sampling(config: EvaluationConfig) -> Sampling:
    """The adjusted distribution that held-out answers are drawn from."""
    return Sampling(config.temperature, config.top_k, config.top_p)


def training_engine(
    policy: Qwen3Policy,
    codec: TextCodec,
    config: RolloutConfig,
    mesh: Mesh | None = None,
    *,
    deterministic: bool = True,
) -> tuple[RolloutEngine, History]:
    """The drafting engine of the training loop and the history that it drafts from.

    A deterministic one leaves nothing to the clock: its draft length is fixed, and what a look-up
    costs is not measured.
    """
    history = History(window=config.window, max_bytes=config.history_mb << 20)
    kind = NgramTreeDrafter if config.draft_shape == "tree" else NgramDrafter
    drafter = kind(
        config.slots,
        config.draft_tokens,
        history,
        budget=Budget(config.prefetch_candidates),
        stop_ids=codec.stop_ids,
    )
    ngram.warm_up()
    if config.draft_shape == "tree":
        ngram_trees.warm_up()
    settings = engine_settings(codec, config)
    if not deterministic:
        length = cast(DraftLengthName, config.draft_length)  # checked by EngineSettings
        settings = replace(settings, draft_length=length, look_up_share=None)
    layout = None if mesh is None else rollout_layout(mesh)
    return RolloutEngine(policy, drafter, settings, layout), history


def plain_engine(
    policy: Qwen3Policy,
    codec: TextCodec,
    config: RolloutConfig,
    slots: int,
    sampling: Sampling,
    mesh: Mesh | None = None,
) -> RolloutEngine:
    """An engine that decodes plainly, for prompts that have no history and come up once."""
    plain = replace(config, slots=slots, draft_tokens=0, best_tokens=0, prefix_entries=0)
    settings = replace(engine_settings(codec, plain), sampling=sampling)
    layout = None if mesh is None else rollout_layout(mesh)
    return RolloutEngine(policy, NoDrafter(slots), settings, layout)


def engine_settings(codec: TextCodec, config: RolloutConfig) -> EngineSettings:
    """The engine's own settings, out of the run's."""
    return EngineSettings(
        slots=config.slots,
        draft_tokens=config.draft_tokens,
        max_prompt_tokens=config.max_prompt_tokens,
        max_new_tokens=config.max_new_tokens,
        stop_ids=codec.stop_ids,
        sampling=rollout_sampling(config),
        verifier=config.verifier,  # pyright: ignore[reportArgumentType]: checked by EngineSettings
        draft_shape=config.draft_shape,  # pyright: ignore[reportArgumentType]: likewise
        plain_rounds=config.plain_rounds,
        wave=config.wave,
        prefix_entries=config.prefix_entries,
        best_tokens=config.best_tokens,
        prefetch=config.prefetch,  # pyright: ignore[reportArgumentType]: likewise
        prefetch_candidates=config.prefetch_candidates,
    )


def make_learner(policy: Qwen3Policy, config: RunConfig, mesh: Mesh) -> Learner:
    """The learner of the RL loop on a mesh.

    Raises:
        ValueError: A micro-batch does not split evenly over the mesh.
    """
    parts = mesh.size // mesh.shape["tensor"]
    if config.train.micro_batch % parts:
        raise ValueError(
            f"train.micro_batch: found {config.train.micro_batch}, allowed: a multiple of {parts}, "
            "mesh.data times mesh.fsdp"
        )
    optimizer = OptimizerSettings(
        learning_rate=config.optimizer.learning_rate,
        warmup_steps=config.optimizer.warmup_steps,
        weight_decay=config.optimizer.weight_decay,
        clip_norm=config.optimizer.max_grad_norm,
    )
    return Learner(
        replace(policy, mesh=mesh) if mesh.size > 1 else policy,
        optimizer,
        make_objective(config.objective, config.rollout.max_new_tokens),
        rollout_sampling(config.rollout),
        correction=make_correction(config.objective),
        chunk_tokens=config.train.logprob_chunk,
        remat=config.train.remat,
        param_shardings=policy.shardings(mesh),
        batch_sharding=micro_batch_sharding(mesh),
    )


def make_objective(config: ObjectiveConfig, max_new_tokens: int) -> Objective:
    """The configured objective, with its own clip bounds unless others are given.

    Raises:
        ValueError: Unknown name, or a bound outside its range.
    """
    if config.name not in RL_OBJECTIVES:
        raise ValueError(
            f"objective.name: found {config.name}, allowed: {', '.join(RL_OBJECTIVES)}"
        )
    constant = {"max_length": max_new_tokens} if config.name == "dr_grpo" else {}
    objective = OBJECTIVES[config.name](kl=config.kl, **constant)
    given = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    return replace(objective, **{k: v for k, v in given.items() if v is not None})


def make_correction(config: ObjectiveConfig) -> Correction:
    """The configured correction of the gap between rollout and training.

    Raises:
        ValueError: See `Correction`.
    """
    return Correction(config.correction, config.correction_level, config.correction_cap)
