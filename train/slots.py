"""Slots from memory: how many rows of cache a device holds beside everything else.

`rollout.slots: 0` asks for it. What the run needs is what its plan says (`train.planning`), and the
limit is what the device reports, not what happens to be free: so a run that goes on, on the same
kind of device, has the same slots. Rollouts do not depend on them.
"""

from dataclasses import replace
from math import ceil
from typing import Any

import jax

from models.config import ModelConfig
from train.config import RunConfig
from train.mesh import rollout_layout, rollout_mesh, training_mesh
from train.planning import make_plan

RESERVE = 0.05  # of a device's memory: what the allocator loses between its blocks
TRIAL_ROWS = 8  # of each group of devices, in the plan from which the slots are derived


def with_slots(config: RunConfig, model: ModelConfig, limit: int | None = None) -> RunConfig:
    """The configuration with its number of slots, derived from memory where `rollout.slots` is 0.

    There are never more than a process samples rollouts in a step: further ones would be idle.

    Args:
        config: Of the run.
        model: Its architecture.
        limit: Bytes of one device; None asks the devices.

    Raises:
        ValueError: The devices do not report their memory, or not one row fits.
    """
    if config.rollout.slots:
        return config
    usable = int((1.0 - RESERVE) * (device_bytes() if limit is None else limit))
    groups = rollout_layout(rollout_mesh(config.mesh, training_mesh(config.mesh))).groups
    plan = make_plan(_with(config, TRIAL_ROWS * groups), model)
    rows = plan.most_slots(usable) // groups
    if not rows:
        raise ValueError(
            f"rollout.slots: found 0 (from memory), but no row fits {usable:,} bytes of a device: "
            f"parameters and optimizer take {plan.state:,}, and more: an update "
            f"{plan.update_temporary:,}, evaluation {plan.rollout_weights + plan.evaluation:,}; "
            "allowed: more devices, or smaller micro-batches"
        )
    prompts = ceil(config.train.prompts_per_step / jax.process_count())
    needed = ceil(prompts * config.train.group / groups)
    return _with(config, min(rows, needed) * groups)


def device_bytes() -> int:
    """The memory that the smallest of this process's devices lets JAX use.

    Raises:
        ValueError: One does not say.
    """
    stats: list[Any] = [device.memory_stats() for device in jax.local_devices()]
    if not all(stats) or not all("bytes_limit" in of_device for of_device in stats):
        raise ValueError(
            "rollout.slots: found 0 (from memory), but JAX does not know the memory of this "
            f"{jax.default_backend()} device; allowed: 1 or more"
        )
    return min(of_device["bytes_limit"] for of_device in stats)


def _with(config: RunConfig, slots: int) -> RunConfig:
    return replace(config, rollout=replace(config.rollout, slots=slots))
