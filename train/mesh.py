"""Where a run's arrays lie: one mesh for training, another of this process's devices for rollouts.

Training splits weights over all devices (fsdp), because each is read a few times a step. Decoding
reads all weights every round, so there they are whole in every group of `rollout_tensor` devices,
and rows are split over the groups. Between the two the weights are cast and moved once a step.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.typing import DTypeLike

from models.policy import Params
from models.sharding import (
    CACHE_AXES,
    MESH_AXES,
    batch_sharding,
    make_mesh,
    partition_spec,
    shardings,
)
from ngramrl_jax.rollout.layout import RowLayout
from train.config import MeshConfig

ROW_AXES = ("data", "fsdp")
MICRO_AXES = ("micro", "batch")  # of a batch's arrays `[M, B, ...]`


def training_mesh(section: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh of the update: all devices, or in a single process the first few of them.

    Raises:
        ValueError: The sizes do not fit the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = (section.data, section.fsdp, section.tensor)
    used, alone = int(np.prod(sizes)), jax.process_count() == 1
    if len(devices) % used or (used < len(devices) and not alone):
        allowed = "a divisor of it" if alone else "all of them"
        raise ValueError(
            f"mesh: found data={sizes[0]} fsdp={sizes[1]} tensor={sizes[2]}, product {used}, with "
            f"{len(devices)} devices, allowed: {allowed}"
        )
    return make_mesh(*sizes, devices=devices[:used])


def rollout_mesh(section: MeshConfig, mesh: Mesh) -> Mesh:
    """The mesh that this process samples on: its own devices of the training mesh.

    Raises:
        ValueError: `mesh.rollout_tensor` does not divide them.
    """
    own = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    tensor = section.rollout_tensor or section.tensor
    if len(own) % tensor:
        raise ValueError(
            f"mesh.rollout_tensor: found {tensor}, allowed: a divisor of {len(own)}, the devices "
            "of one process"
        )
    return _rows_and_tensor(own, tensor)


def rollout_layout(mesh: Mesh) -> RowLayout:
    """How an engine's arrays lie on the rollout mesh."""
    return RowLayout(mesh, ROW_AXES, partition_spec(CACHE_AXES))


def micro_batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch's `[M, B, ...]` arrays: rows over data and fsdp."""
    return batch_sharding(mesh, MICRO_AXES)


class WeightMover:
    """Brings the master weights into the type and the layout of rollouts."""

    def __init__(self, dtype: DTypeLike, training: Mesh, rollout: Mesh) -> None:
        """From the training mesh to this process's rollout mesh, in the policy's compute type."""
        self._dtype, self._training, self._rollout = jnp.dtype(dtype), training, rollout
        self._cast = jax.jit(lambda params: jax.tree.map(lambda x: x.astype(self._dtype), params))

    def __call__(self, params: Params) -> Params:
        """The same weights for rollouts; not copied where type and layout are those of training.

        They are cast first, so that as little as possible is moved. Where there are several
        processes, each ends up with arrays of its own.
        """
        if self._dtype != jnp.float32:
            params = self._cast(params)
        if self._training.size == 1:
            return params
        groups = _rows_and_tensor(self._training.devices.flat, self._rollout.shape["tensor"])
        moved = jax.device_put(params, shardings(params, groups))
        return jax.tree.map(self._own, moved, shardings(params, self._rollout))

    @staticmethod
    def _own(x: jax.Array, sharding: NamedSharding) -> jax.Array:
        """This process's part of an array of all processes, as an array of its own."""
        shards = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, shards)


def _rows_and_tensor(devices: Any, tensor: int) -> Mesh:
    by_process = sorted(devices, key=lambda device: device.process_index)
    grid = np.array(by_process).reshape(-1, 1, tensor)
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))
