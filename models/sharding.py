"""Which mesh axis splits which axis of which array: one logical table, apart from the modules.

Two steps: a parameter's path gives the logical names of its axes (`AXES`), and a logical name
gives the mesh axes that split it (`RULES`). The mesh is `(data, fsdp, tensor)`: batches split over
data and fsdp, weights over fsdp and tensor, heads and feed-forward width over tensor.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor")
MeshAxes = str | tuple[str, ...] | None

RULES: Mapping[str, MeshAxes] = {
    "batch": ("data", "fsdp"),
    "micro": None,
    "embed": "fsdp",
    "vocab": "tensor",
    "query_heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "layers": None,
    "time": None,
    "width": None,
    "position": None,
    "head_dim": None,
    "norm": None,
}

AXES: Mapping[str, tuple[str, ...]] = {
    "embedding_VD": ("vocab", "embed"),
    "layers/attention_norm/scale": ("layers", "norm"),
    "layers/query/kernel": ("layers", "embed", "query_heads"),
    "layers/query/bias": ("layers", "query_heads"),
    "layers/key/kernel": ("layers", "embed", "kv_heads"),
    "layers/key/bias": ("layers", "kv_heads"),
    "layers/value/kernel": ("layers", "embed", "kv_heads"),
    "layers/value/bias": ("layers", "kv_heads"),
    "layers/query_norm/scale": ("layers", "norm"),
    "layers/key_norm/scale": ("layers", "norm"),
    "layers/output/kernel": ("layers", "query_heads", "embed"),
    "layers/mlp_norm/scale": ("layers", "norm"),
    "layers/gate/kernel": ("layers", "embed", "mlp"),
    "layers/up/kernel": ("layers", "embed", "mlp"),
    "layers/down/kernel": ("layers", "mlp", "embed"),
    "norm/scale": ("norm",),
    "head/kernel": ("embed", "vocab"),
}
CACHE_AXES = ("layers", "batch", "kv_heads", "position", "head_dim")
TOKEN_AXES = ("batch", "time")
HIDDEN_AXES = ("batch", "time", "width")  # activations: their width is whole everywhere
LOGIT_AXES = ("batch", "time", "vocab")
TABLE_AXES = ("vocab", "width")  # of the embedding where it is used


def make_mesh(
    data: int = 1, fsdp: int = 1, tensor: int = 1, *, devices: Sequence[Any] | None = None
) -> Mesh:
    """A `(data, fsdp, tensor)` mesh over the given devices, all of them by default.

    Raises:
        ValueError: The sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = (data, fsdp, tensor)
    if min(sizes) < 1 or data * fsdp * tensor != len(devices):
        raise ValueError(f"mesh {sizes}: allowed: sizes of product {len(devices)}, the devices")
    return jax.make_mesh(sizes, MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)


def partition_spec(axes: Sequence[str], rules: Mapping[str, MeshAxes] = RULES) -> PartitionSpec:
    """The mesh axes of an array whose axes have these logical names.

    Raises:
        ValueError: A name has no rule, or one mesh axis would split two axes of the array.
    """
    unknown = [axis for axis in axes if axis not in rules]
    if unknown:
        raise ValueError(f"logical axis {unknown[0]!r}: allowed: {', '.join(rules)}")
    chosen = [rules[axis] for axis in axes]
    used = [name for entry in chosen for name in _names(entry)]
    if len(used) != len(set(used)):
        raise ValueError(f"axes {tuple(axes)}: colliding mesh axes {tuple(chosen)}")
    return PartitionSpec(*chosen)


def shardings(params: Any, mesh: Mesh) -> Any:
    """The sharding of every parameter.

    Args:
        params: Parameters as nested dict, of arrays or of `jax.ShapeDtypeStruct`.
        mesh: With axes `MESH_AXES`.

    Returns:
        The same tree with a `NamedSharding` for every leaf.

    Raises:
        ValueError: A path is not in the table, or an axis does not divide among its devices.
    """

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = parameter_path(path)
        if name not in AXES:
            raise ValueError(f"parameter {name!r}: not in the sharding table")
        return _checked(name, leaf.shape, AXES[name], mesh)

    return jax.tree.map_with_path(place, params)


def cache_shardings(cache: Any, mesh: Mesh) -> Any:
    """The sharding of a key/value cache: rows over data and fsdp, heads over tensor.

    Raises:
        ValueError: Rows or key/value heads do not divide among their devices.
    """
    return jax.tree.map(lambda leaf: _checked("cache", leaf.shape, CACHE_AXES, mesh), cache)


def batch_sharding(mesh: Mesh, axes: Sequence[str] = TOKEN_AXES) -> NamedSharding:
    """The sharding of `tokens_BT`, or of another array by its logical axes."""
    return NamedSharding(mesh, partition_spec(axes))


def parameter_path(path: tuple[Any, ...]) -> str:
    """The name of a parameter in the table, from its key path in the nested dict."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _names(entry: MeshAxes) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else entry


def _checked(name: str, shape: tuple[int, ...], axes: tuple[str, ...], mesh: Mesh) -> NamedSharding:
    """A named sharding, after making sure that every axis divides evenly."""
    spec = partition_spec(axes)
    for size, axis, entry in zip(shape, axes, spec, strict=True):
        parts = int(np.prod([mesh.shape[mesh_axis] for mesh_axis in _names(entry)], dtype=int))
        if size % parts:
            raise ValueError(f"{name}: axis {axis!r} of size {size} does not divide by {parts}")
    return NamedSharding(mesh, spec)
