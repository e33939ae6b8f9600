"""Describes an algorithm of the native core for the bridges, and calls it on NumPy arrays.

Each `CoreOperation` is defined with its algorithm: `kernels.lstm.cpu.LSTM`, `kernels.dense.DENSE`. A bridge binds any
of them to its framework.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cellerate.kernels.native import call, core, empty

# The options of a call, in the core's order.
Codes = tuple[int, ...]
# Arrays or tensors by the names of the arguments; absent arguments have no entry.
Given = Mapping[str, Any]


def _accept(given: Given) -> None:
    del given


@dataclasses.dataclass(frozen=True, eq=False)
class CoreOperation:
    """An algorithm of the native core with two calls, `<name>_forward` and `<name>_backward`.

    Attributes:
        name: The name in the core.
        arguments: The arguments, in the core's order.
        differentiable: The arguments with gradients, in the core's order. A gradient has its argument's shape and
            dtype.
        results: The results, in the core's order.
        typed_by: The results have the dtype of the first of these arguments that is present.
        shapes: Returns the shapes of the results, by name.
        batch_axes: The batch axis of each argument and result that has one.
        reached_through: The source of an argument → the argument computed from it. If a call has both, the source gets
            its gradient through the computed argument, and none from backward.
        saved: The results that backward reads.
        sizes: Returns the sizes that decide the size of the reserve, in the core's order; None for no reserve.
        check: Raises `ConfigError` for NumPy arrays that do not fit, with a clearer message than the core's.
    """

    name: str
    arguments: tuple[str, ...]
    differentiable: tuple[str, ...]
    results: tuple[str, ...]
    typed_by: tuple[str, ...]
    shapes: Callable[[Given, Codes], dict[str, tuple[Any, ...]]]
    batch_axes: Mapping[str, int]
    reached_through: Mapping[str, str] = dataclasses.field(default_factory=dict)
    saved: tuple[str, ...] = ()
    sizes: Callable[[Given], tuple[int, ...]] | None = None
    check: Callable[[Given], None] = _accept

    @property
    def kept(self) -> tuple[str, ...]:
        """The values that forward keeps for backward: some of its results, and the reserve."""
        return (*self.saved, "reserve") if self.sizes else self.saved

    @property
    def forward_results(self) -> tuple[str, ...]:
        """The results of forward, in the core's order."""
        return (*self.results, "reserve") if self.sizes else self.results

    @property
    def backward_arguments(self) -> tuple[str, ...]:
        """The inputs of backward, in the core's order: arguments, kept values, and cotangents of the results."""
        return (*self.arguments, *self.kept, *[f"d_{name}" for name in self.results])

    def with_gradients(self, given: Given) -> tuple[str, ...]:
        """The arguments of a call whose gradients backward computes, in the core's order."""
        return tuple(
            name
            for name in self.differentiable
            if name in given and self.reached_through.get(name) not in given
        )

    def read(self, given: Given) -> tuple[str, ...]:
        """The arguments of a call whose values are read; other arguments serve only their gradients."""
        unread = {through for source, through in self.reached_through.items() if source in given}
        return tuple(name for name in given if name not in unread)

    def like(self, given: Given) -> Any:
        """The argument that decides the dtype of the results; None if it is absent."""
        return next((given[name] for name in self.typed_by if name in given), None)

    def reserve_bytes(self, given: Given, codes: Codes, dtype: str) -> int:
        """The bytes that forward keeps for backward, for results of a dtype with NumPy's name."""
        if self.sizes is None:
            return 0
        return int(core().reserve_bytes(f"{self.name}_forward", dtype, codes, self.sizes(given)))


def forward(
    operation: CoreOperation,
    given: Mapping[str, np.ndarray],
    codes: Codes = (),
    *,
    keep: bool = True,
    dtype: Any = None,
) -> dict[str, np.ndarray]:
    """Runs an operation.

    Args:
        operation: The kernel to run.
        given: Its arguments that are there; copied where they are not contiguous.
        codes: Its options.
        keep: Whether to keep what `backward` needs.
        dtype: The dtype of the results if no argument has it.

    Returns:
        Its results by name, with `keep` also the "reserve".

    Raises:
        ConfigError: An argument does not fit.
        BackendError: The core is not installed.
        MemoryError: The working memory could not be allocated.
    """
    given = contiguous(given)
    operation.check(given)
    like = operation.like(given)
    storage = np.dtype(like.dtype if like is not None else dtype or np.float32)
    found = {name: empty(shape, storage) for name, shape in operation.shapes(given, codes).items()}
    if keep and operation.sizes:
        found["reserve"] = empty((operation.reserve_bytes(given, codes, storage.name),), np.uint8)
    _call("forward", operation, codes, given, operation.arguments, found, operation.forward_results)
    return found


def backward(
    operation: CoreOperation,
    given: Mapping[str, np.ndarray],
    done: Mapping[str, np.ndarray],
    cotangents: Mapping[str, np.ndarray],
    codes: Codes = (),
) -> dict[str, np.ndarray]:
    """The gradients of the arguments that are there and have one, by name.

    Args:
        operation: The kernel to run.
        given: As `forward` was given them.
        done: What `forward` gave, at least what is `kept`.
        cotangents: Those of the results that are not zeros, by the names of the results.
        codes: As `forward` was given them.

    Raises:
        ConfigError, BackendError, MemoryError: As `forward`.
    """
    given = contiguous(given)
    reads = {**given, **{name: done[name] for name in operation.kept if name in done}}
    reads |= {f"d_{name}": array for name, array in contiguous(cotangents).items()}
    found = {n: empty(given[n].shape, given[n].dtype) for n in operation.with_gradients(given)}
    writes = {f"d_{name}": array for name, array in found.items()}
    names = [f"d_{name}" for name in operation.differentiable]
    _call("backward", operation, codes, reads, operation.backward_arguments, writes, names)
    return found


def contiguous(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays as the core takes them."""
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _call(
    direction: str,
    operation: CoreOperation,
    codes: Codes,
    reads: Given,
    arguments: Any,
    writes: Given,
    results: Any,
) -> None:
    inputs = tuple([reads.get(name) for name in arguments])
    call(f"{operation.name}_{direction}", inputs, tuple([writes.get(name) for name in results]), codes)
