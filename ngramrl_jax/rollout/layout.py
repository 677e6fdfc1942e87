"""Where the arrays of an engine lie on a mesh of devices.

Rows are independent of each other, so a round runs on each group of devices for the rows that lie
there (`jax.shard_map` over the row axes), and nothing but the packed result crosses between groups.
Left to itself the compiler would gather keys, values and whole logits for every round, because it
cannot split scatters and `top_k` by rows. The other axes of the mesh stay the compiler's: there it
follows how the parameters and the cache are split.

Legend: B rows, X columns of a packed result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ngramrl_jax.rollout.state import DecodeState


@dataclass(frozen=True)
class RowLayout:
    """A mesh, the axes of it that split rows, and how the policy's cache lies on it.

    Attributes:
        mesh: Of this process's own devices.
        row_axes: Its axes that split rows.
        cache: Spec of every leaf of the policy's cache, or a pytree prefix of such specs.
    """

    mesh: Mesh
    row_axes: tuple[str, ...]
    cache: Any

    @property
    def groups(self) -> int:
        """Into how many parts rows are split."""
        return prod(self.mesh.shape[axis] for axis in self.row_axes)

    @property
    def everywhere(self) -> NamedSharding:
        """The whole array on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def cache_shardings(self) -> Any:
        """Shardings of the cache, or a pytree prefix of them."""
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self.cache, is_leaf=_spec)

    def state_shardings(self, *, forced: bool = False) -> DecodeState:
        """Shardings of the decode state, with recorded tokens if `forced`."""
        rows: Any = NamedSharding(self.mesh, PartitionSpec(self.row_axes))
        return DecodeState(rows, rows, rows, rows, self.cache_shardings(), rows if forced else None)

    def by_rows(self, work: Callable[..., tuple[DecodeState, jax.Array]]) -> Callable[..., Any]:
        """Makes `work(params, state, *tables) -> (state, packed_BX)` run where its rows lie.

        Tables have rows as their first axis, but for scalars, which are the same everywhere.
        """

        def split(params: Any, state: DecodeState, *tables: jax.Array) -> Any:
            rows: Any = PartitionSpec(self.row_axes)
            cache = jax.tree.map(self._rows_of, self.cache, is_leaf=_spec)
            of_forced = None if state.forced_BS is None else rows
            of_state = DecodeState(rows, rows, rows, rows, cache, of_forced)
            of_tables = [rows if table.ndim else PartitionSpec() for table in tables]
            return jax.shard_map(
                work,
                mesh=self.mesh,
                in_specs=(PartitionSpec(), of_state, *of_tables),
                out_specs=(of_state, rows),
                axis_names=set(self.row_axes),
                check_vma=False,
            )(params, state, *tables)

        return split

    def _rows_of(self, spec: PartitionSpec) -> PartitionSpec:
        """The part of a spec that splits rows."""
        return PartitionSpec(*(entry if entry == self.row_axes else None for entry in spec))


def _spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)
