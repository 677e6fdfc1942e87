"""What a configuration needs: bytes on each device and operations, without a single weight.

Rollout round and update are compiled ahead of time for abstract arguments of the longest shapes,
on as many devices as the mesh has. On a CPU and its virtual devices they are compiled in float32
whatever `model.dtype` is: a CPU has no bfloat16 products and would keep float32 copies of all
weights. So what is temporary is an upper bound there, up to twice too high; what is kept between
programs is counted in its own type.

Legend: M micro-batches, B rows, T tokens of a row, R response positions, K draft budget.
"""

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from models.config import ModelConfig
from models.policy import Qwen3Policy
from ngramrl_jax.rollout.programs import Programs
from ngramrl_jax.rollout.round import DecodeRule
from ngramrl_jax.rollout.state import empty_state
from train.batching import Batch, ladder_length
from train.config import RunConfig
from train.flops import matmul_flops
from train.mesh import micro_batch_sharding, rollout_layout, rollout_mesh, training_mesh
from train.workbench import compute_dtype, make_learner, rollout_sampling


@dataclass(frozen=True)
class Plan:
    """Bytes are those of one device, operations those of all devices together.

    Attributes:
        devices: How many.
        parameters: Bytes of the master weights.
        optimizer: Bytes of the optimizer's state.
        rollout_weights: Bytes of the weights that are sampled from; 0 where they are the same.
        cache: Bytes of the rows' cache.
        prefixes: Bytes of the prompts' cache.
        evaluation: Bytes of the caches with which held-out prompts are answered, while nothing is
            sampled.
        round_temporary: Bytes that a round needs beside its arguments.
        update_temporary: The same of an update, gradients included.
        round_flops: Operations of a round of all slots.
        update_flops: Operations of an update on all rollouts of a step, recomputation included.
        groups: Groups of devices that rows are split over.
        slots: As configured.
    """

    devices: int
    parameters: int
    optimizer: int
    rollout_weights: int
    cache: int
    prefixes: int
    evaluation: int
    round_temporary: int
    update_temporary: int
    round_flops: float
    update_flops: float
    groups: int
    slots: int

    @property
    def state(self) -> int:
        """Bytes of parameters and optimizer: there all the time."""
        return self.parameters + self.optimizer

    @property
    def rollout_peak(self) -> int:
        """Bytes while sampling or answering held-out prompts."""
        caches = max(self.cache + self.prefixes, self.evaluation)
        return self.state + self.rollout_weights + caches + self.round_temporary

    @property
    def update_peak(self) -> int:
        """Bytes while training: the engines have given their caches back."""
        return self.state + self.update_temporary

    @property
    def peak(self) -> int:
        """The larger one."""
        return max(self.rollout_peak, self.update_peak)

    def most_slots(self, limit: int) -> int:
        """Slots for which `limit` bytes would do, everything else as it is; 0 where none would.

        Each row takes its cache, a prompt's cache and its part of what is temporary in a round.
        """
        rows = self.slots // self.groups
        a_row = (self.cache + self.prefixes + self.round_temporary) / rows
        sampling = limit - self.state - self.rollout_weights
        if max(self.update_peak, self.state + self.rollout_weights + self.evaluation) > limit:
            return 0
        return max(0, int(sampling / a_row)) * self.groups


def make_plan(config: RunConfig, model: ModelConfig) -> Plan:
    """Compiles round and update of a run on the devices that there are.

    Raises:
        ValueError: The mesh fits neither devices nor model, or another entry is out of range.
    """
    mesh = training_mesh(config.mesh)
    dtype = compute_dtype(config.model)
    compiled = jnp.float32 if jax.default_backend() == "cpu" else dtype
    policy = Qwen3Policy(model, compiled)
    params = _abstract(policy, jnp.float32, policy.shardings(mesh))
    learner = make_learner(policy, config, mesh)
    traced_update = learner.trace(params, _longest_batch(config, micro_batch_sharding(mesh)))
    update = traced_update.lower().compile()

    sampling_mesh = rollout_mesh(config.mesh, mesh)
    layout, rollout = rollout_layout(sampling_mesh), config.rollout
    capacity = rollout.max_prompt_tokens + rollout.max_new_tokens + rollout.draft_tokens
    weights = _abstract(policy, compiled, policy.shardings(sampling_mesh))
    state = _placed(
        jax.eval_shape(partial(empty_state, policy, rollout.slots, capacity)),
        layout.state_shardings(),
    )
    rule = DecodeRule(rollout_sampling(rollout), (0,), "coupled", rollout.best_tokens)
    programs = Programs(policy, rule, rollout.plain_rounds, rollout.draft_tokens, layout)
    drafts = jax.ShapeDtypeStruct((rollout.slots, 1 + rollout.draft_tokens), jnp.int32)
    traced_round = programs.speculative.trace(weights, state=state, drafts_BX=drafts, live=capacity)
    round_ = traced_round.lower().compile()

    shrink = jnp.dtype(compiled).itemsize // jnp.dtype(dtype).itemsize
    cache, groups = _bytes(state.cache) // shrink, layout.groups
    entries = -(-max(rollout.prefix_entries, rollout.slots) // groups)
    place_bytes = cache * groups // rollout.slots // capacity  # on each device of the row's group
    a_prompt = place_bytes * rollout.max_prompt_tokens
    same, held = mesh.size == 1 and dtype == jnp.float32, _bytes(params)
    answering = -(-config.evaluation.slots // groups)
    return Plan(
        devices=mesh.size,
        parameters=held,
        optimizer=_bytes(learner.abstract_state(params)) - held,
        rollout_weights=0 if same else _bytes(weights) // shrink,
        cache=cache,
        prefixes=entries * a_prompt,
        evaluation=answering * (2 * a_prompt + place_bytes * rollout.max_new_tokens),
        round_temporary=temporary_bytes(round_),
        update_temporary=temporary_bytes(update),
        round_flops=matmul_flops(traced_round.jaxpr),
        update_flops=matmul_flops(traced_update.jaxpr),
        groups=groups,
        slots=rollout.slots,
    )


def _longest_batch(config: RunConfig, sharding: NamedSharding) -> Batch:
    rows = config.train.micro_batch
    micro = -(-config.train.prompts_per_step * config.train.group // rows)
    longest = config.rollout.max_prompt_tokens + config.rollout.max_new_tokens
    T, R = ladder_length(longest), ladder_length(config.rollout.max_new_tokens)
    return Batch.abstract(micro, rows, T, R, sharding)


def _abstract(policy: Qwen3Policy, dtype: Any, places: Any) -> Any:
    return _placed(
        jax.eval_shape(partial(policy.init_params, dtype=dtype), jax.random.key(0)), places
    )


def _placed(tree: Any, places: Any) -> Any:
    """Abstract arrays with shardings, which may be a pytree prefix."""
    places = jax.tree.broadcast(places, tree)
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, places
    )


def _bytes(tree: Any) -> int:
    """Bytes of a tree of abstract arrays on one device."""
    return sum(
        x.dtype.itemsize * prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(tree)
    )


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
    """Bytes beside the arguments: scratch, and outputs that are not written over arguments."""
    memory: Any = compiled.memory_analysis()
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.temp_size_in_bytes + max(0, outputs)
