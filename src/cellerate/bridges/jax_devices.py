"""A call that XLA knows nothing of, on several devices: each computes its own rows of the batch.

Without this, XLA would gather the batch on every device, and each would compute all of it.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
from jax.custom_batching import sequential_vmap
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    CompoundFactor,
    SdyShardingRule,
    custom_partitioning,
)
from jax.sharding import NamedSharding, PartitionSpec

Arrays = Mapping[str, Any]
Call = Callable[[Arrays, int], dict[str, Any]]


def by_rows(call: Call, given: Arrays, rows: Mapping[str, int], leading: Iterable[str]) -> dict[str, Any]:
    """Makes a call such that devices that share the batch compute each its own rows.

    Args:
        call: Computes results by name from arguments by name and a number of pieces, a divisor of the batch. A result
            that belongs to rows has either all rows on its axis of the batch or one entry for each piece, of a size
            that depends only on the rows of a piece: so what the core keeps for backward can be shared, too.
        given: Its arguments, by name. Those without an axis in `rows` are the same on every device.
        rows: The axis of the batch in each argument and result that has one. The others of the results are sums over
            the rows.
        leading: The arguments whose placement decides which device computes which rows. A call and the one that goes
            back through it must have the same, for each device keeps what only it can read.

    Returns:
        The results, by name.
    """
    devices = jax.device_count()
    if devices == 1:
        return call(given, 1)
    batch = next(given[name].shape[axis] for name, axis in rows.items() if name in given)
    # Each share of the batch is whole pieces.
    pieces = math.gcd(batch, devices)
    results = jax.eval_shape(lambda given: call(given, pieces), dict(given))
    shared = _Shared(call, tuple(given), tuple(results), rows, frozenset(leading), batch, pieces)
    operation = custom_partitioning(shared.whole)
    operation.def_partition(
        partition=shared.partition,
        sharding_rule=shared.rule([*given.values()], [*results.values()]),
    )
    return dict(zip(results, sequential_vmap(operation)(*given.values()), strict=True))


@dataclasses.dataclass(frozen=True, eq=False)
class _Shared:
    """A call and how its rows are shared.

    Attributes:
        call: As `by_rows` takes it.
        arguments: The names of its arguments.
        results: The names of its results.
        rows: The axis of the batch, by name.
        leading: As `by_rows` takes it.
        batch: All rows.
        pieces: The pieces of all rows.
    """

    call: Call
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    rows: Mapping[str, int]
    leading: frozenset[str]
    batch: int
    pieces: int

    def whole(self, *arrays: Any) -> list[Any]:
        """The results for all rows."""
        return self._of_share(arrays, 1)

    def partition(self, mesh: Any, arguments: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        """The computation of each device, as `custom_partitioning` asks for it.

        Args:
            mesh: The devices.
            arguments: What XLA would like each argument to be: a shape, a dtype and a sharding.
            results: The same of each result.

        Returns:
            The mesh, the computation of one device, the shardings of the results and those of the arguments.
        """
        axes = self._mesh_axes(mesh, arguments)
        shares = math.prod(mesh.shape[axis] for axis in axes)

        def of_device(*arrays: Any) -> list[Any]:
            found = self._of_share(arrays, shares)
            if not axes:
                return found
            return [
                array if name in self.rows else jax.lax.psum(array, axes)
                for name, array in zip(self.results, found, strict=True)
            ]

        def place(names: Sequence[str], arrays: Sequence[Any]) -> list[Any]:
            pairs = zip(names, arrays, strict=True)
            return [NamedSharding(mesh, self._spec(name, array.ndim, axes)) for name, array in pairs]

        return mesh, of_device, place(self.results, results), tuple(place(self.arguments, arguments))

    def rule(self, arguments: Sequence[Any], results: Sequence[Any]) -> SdyShardingRule:
        """The rule for Shardy, which propagates shardings: the row axes. `partition` makes the others whole."""
        in_piece = self.batch // self.pieces
        # Shardy takes no factor of size 1 beside another.
        rows: Any = (
            "piece" if in_piece == 1 else "row" if self.pieces == 1 else CompoundFactor("piece", "row")
        )
        others = itertools.count()

        def mapping(name: str, array: Any) -> ArrayMapping:
            factors = [f"other{next(others)}" for _ in array.shape]
            if name in self.rows:
                axis = self.rows[name]
                whole_batch = array.shape[axis] == self.batch
                factors[axis] = rows if whole_batch else "piece" if self.pieces > 1 else factors[axis]
            return ArrayMapping(*factors)

        taken, given = (
            tuple(mapping(name, array) for name, array in zip(names, arrays, strict=True))
            for names, arrays in ((self.arguments, arguments), (self.results, results))
        )
        # The sizes are those of the factors that are not an axis by themselves.
        alone = set(itertools.chain(*taken, *given))
        sizes = {"piece": self.pieces, "row": in_piece} if isinstance(rows, CompoundFactor) else {}
        return SdyShardingRule(
            taken, given, **{name: size for name, size in sizes.items() if name not in alone}
        )

    def _of_share(self, arrays: Sequence[Any], shares: int) -> list[Any]:
        found = self.call(dict(zip(self.arguments, arrays, strict=True)), self.pieces // shares)
        return [found[name] for name in self.results]

    def _mesh_axes(self, mesh: Any, arguments: Sequence[Any]) -> tuple[str, ...]:
        """The axes of the mesh along which the rows are shared."""
        for name, array in zip(self.arguments, arguments, strict=True):
            if name in self.leading and name in self.rows and isinstance(array.sharding, NamedSharding):
                found = array.sharding.spec[self.rows[name]]
                if found is not None:
                    axes = (found,) if isinstance(found, str) else tuple(found)
                    return axes if self.pieces % math.prod(mesh.shape[axis] for axis in axes) == 0 else ()
        return ()

    def _spec(self, name: str, ndim: int, axes: tuple[str, ...]) -> PartitionSpec:
        return PartitionSpec(*[axes if axes and self.rows.get(name) == n else None for n in range(ndim)])
