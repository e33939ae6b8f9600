"""Divides a native call, which XLA cannot divide itself, among devices by the rows of the batch.

Without this, XLA would gather the batch on every device, and each device would compute all of it.
"""

from __future__ import annotations

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
    """Runs a call so that each device computes its own rows of the batch.

    Args:
        call: Computes results by name from arguments by name and a number of pieces, a divisor of the batch. A result
            with a batch axis has all rows on that axis, or one entry for each piece, whose size depends only on the
            rows of a piece; so the core's reserve for backward can be divided, too.
        given: The arguments, by name. An argument that is not in `rows` is the same on every device.
        rows: The batch axis of each argument and result that has one. Every other result is a sum over the rows.
        leading: The arguments whose sharding decides which device computes which rows. The forward call and its
            backward call must have the same ones, because only the device that wrote a reserve can read it.

    Returns:
        The results, by name.
    """
    devices = jax.device_count()
    if devices == 1:
        return call(given, 1)
    batch = next(given[name].shape[axis] for name, axis in rows.items() if name in given)
    # Each device gets whole pieces.
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
    """A call whose rows are divided among devices.

    Attributes:
        call: As in `by_rows`.
        arguments: The names of its arguments.
        results: The names of its results.
        rows: The batch axis, by name.
        leading: As in `by_rows`.
        batch: The number of rows.
        pieces: The number of pieces.
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
        """The computation of each device, in the form that `custom_partitioning` expects.

        Args:
            mesh: The devices.
            arguments: The shape, dtype and sharding that XLA proposes for each argument.
            results: The shape, dtype and sharding that XLA proposes for each result.

        Returns:
            The mesh, the computation of one device, the shardings of the results, the shardings of the arguments.
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
        """The rule by which Shardy propagates shardings along the row axes; `partition` replicates the other axes."""
        in_piece = self.batch // self.pieces
        # Shardy refuses a factor of size 1 in a compound.
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
        # Shardy needs the sizes only of factors that are not a whole axis somewhere.
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
