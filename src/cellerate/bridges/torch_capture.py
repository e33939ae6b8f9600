"""A training step of Keras on torch as a CUDA graph: captured once for each shape of batch, then replayed.

A small model on a GPU spends most of a step in Python, which starts kernels one by one; a graph starts all of them at
once. What the step computes stays the same.

A captured step runs no Python, so nothing in it may depend on values. A step that reads a number from the GPU runs
uncaptured.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from cellerate.bridges.torch_draws import Draws, NotCapturableError, SeedStates

Step = Callable[[Any], Any]
# Makes a step take its generators from `Draws.generator`, instead of seeding them with numbers from the device.
Seeding = Callable[[Draws], AbstractContextManager[None]]
# The first steps of a shape run uncaptured: the optimizer makes its variables, kernels are compiled and measured.
_FIRST_STEPS = 3
# How many graphs are kept, one a shape; each holds the memory of a step. Two, as the last batch of an epoch is often
# smaller. The least recently used one gives way to a new shape that comes several times in a row.
_MOST_GRAPHS = 2
# Arrays of up to this many numbers are written number by number.
_MOST_NUMBERS = 16


class Graph(Protocol):
    """The recorder of a step: `CudaGraph`, or its replacement in tests."""

    def capture(self, work: Callable[[], Any]) -> Any:
        """Records the work, which computes nothing yet; returns tensors that `replay` fills."""
        ...

    def replay(self) -> None:
        """Does the work."""
        ...


class CudaGraph:
    """A CUDA graph made by torch."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, work: Callable[[], Any]) -> Any:
        """Records the work."""
        # Other threads, such as those that load data, may go on meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            return work()

    def replay(self) -> None:
        """Does the work."""
        self._graph.replay()


class CapturedStep:
    """Stands in for the training function of a Keras model.

    Args:
        step: That function: takes a list with one batch, returns logs (tensors by name).
        device: Where the model is.
        seeding: Makes the step draw its random numbers in a way that can be captured.
        new_graph: Makes a graph.

    Attributes:
        refused: Why the step runs uncaptured; None while it is captured, or may still be.
    """

    def __init__(
        self,
        step: Step,
        device: torch.device | str,
        seeding: Seeding,
        new_graph: Callable[[], Graph] = CudaGraph,
    ) -> None:
        self._step, self._device = step, torch.device(device)
        self._seeding, self._new_graph = seeding, new_graph
        self._states = SeedStates()
        self._seen: dict[Any, int] = {}
        self._in_a_row: tuple[Any, int] = (None, 0)
        self._recorded: dict[Any, _Recorded] = {}
        self.refused: str | None = None

    def __call__(self, data: Any) -> Any:
        """Trains on a batch."""
        leaves, structure = pytree.tree_flatten(data)
        if self.refused is not None or not all(leaf is None or type(leaf) is torch.Tensor for leaf in leaves):
            return self._step(data)
        key = (str(structure), tuple(None if leaf is None else (leaf.shape, leaf.dtype) for leaf in leaves))
        last, steps = self._in_a_row
        self._in_a_row = key, steps + 1 if key == last else 1
        if key in self._recorded:
            recorded = self._recorded[key] = self._recorded.pop(key)
            return recorded.run(leaves)
        self._seen[key] = self._seen.get(key, 0) + 1
        full = len(self._recorded) == _MOST_GRAPHS
        if (self._in_a_row[1] if full else self._seen[key]) <= _FIRST_STEPS:
            return self._step(data)
        if full:
            del self._recorded[next(iter(self._recorded))]
        try:
            recorded = self._record(leaves, structure)
        # What cannot be captured can still run uncaptured; if the step is wrong as well, that run raises.
        except Exception as error:
            self.refused = _reason(error)
            return self._step(data)
        self._recorded[key] = recorded
        return recorded.run(leaves)

    def _record(self, leaves: list[Any], structure: Any) -> _Recorded:
        given = [None if leaf is None else leaf.detach().to(self._device, copy=True) for leaf in leaves]
        data, draws = pytree.tree_unflatten(given, structure), Draws(self._states)

        def work() -> Any:
            with self._seeding(draws), _NothingFromTheHost(self._device, draws):
                return self._step(data)

        return _Recorded(work, given, draws, self._new_graph())


def _reason(error: Exception) -> str:
    """Why a step could not be captured; Keras wraps the original error in others of the same class."""
    root, inner = error, error.__context__
    while inner is not None:
        if isinstance(inner, NotCapturableError):
            root = inner
        inner = inner.__context__
    return str(root) or type(root).__name__


class _Recorded:
    """One graph, and the tensors that its step reads and writes."""

    def __init__(
        self, work: Callable[[], Any], given: list[torch.Tensor | None], draws: Draws, graph: Graph
    ) -> None:
        self._given, self._draws, self._graph = given, draws, graph
        self._logs = graph.capture(work)

    def run(self, leaves: list[Any]) -> Any:
        for place, leaf in zip(self._given, leaves, strict=True):
            if place is not None:
                place.copy_(leaf, non_blocking=True)
        self._draws.draw()
        self._graph.replay()
        self._draws.advance()
        # The next run writes to the same tensors.
        return pytree.tree_map_only(torch.Tensor, torch.clone, self._logs)


class _NothingFromTheHost(TorchFunctionMode):
    """Makes constants on the device, forbids reading values from it, and has random numbers drawn outside the graph."""

    _READS = frozenset(
        {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__array__"}
    )
    _MAKES = frozenset({"tensor", "as_tensor"})

    def __init__(self, device: torch.device, draws: Draws) -> None:
        super().__init__()
        self._device, self._draws = device, draws
        # Tensor → the function that makes it again, for tensors filled with one number; used during the capture.
        self._constants: dict[torch.Tensor, Callable[[], torch.Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in self._READS and isinstance(args[0], torch.Tensor) and self._is_ours(args[0].device):
            raise NotCapturableError(f"the step reads a value from the GPU ({name}), as conditions do")
        if name in self._MAKES and self._is_ours(torch.device(kwargs.get("device") or "cpu")):
            made = _constant(args[0], kwargs.get("dtype"), self._device)
            if made is not None:
                return made
        if kwargs.get("generator") is not None:
            return self._draws.record(func, args, kwargs, self._constants)
        # Keras's SGD gives the learning rate as a tensor in place of a number, and torch would read its value.
        if name == "_foreach_add_" and isinstance(scale := kwargs.get("alpha"), torch.Tensor):
            sums, terms = args
            return torch._foreach_addcmul_(
                sums, terms, [scale.to(term.dtype).expand_as(term) for term in terms]
            )
        result = func(*args, **kwargs)
        if name == "full":
            self._constants[result] = functools.partial(func, *args, **kwargs)
        return result

    def _is_ours(self, device: torch.device) -> bool:
        """True if a device is the step's. Keras says "cuda", without a number, for the current device."""
        return device.type == self._device.type and device.index in (None, self._device.index)


def _constant(value: Any, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor | None:
    """Python numbers as a tensor that is made without a copy from the host; None for anything else."""
    shape, numbers = _numbers(value)
    if numbers is None:
        return None
    dtype = dtype or torch.tensor(value).dtype
    filled = [torch.full((), number, dtype=dtype, device=device) for number in numbers]
    return filled[0] if shape == () else torch.stack(filled).view(shape) if filled else None


def _numbers(value: Any) -> tuple[tuple[int, ...], list[float] | None]:
    """The shape of nested lists of numbers, and the numbers; None in their place for anything else or larger."""
    if isinstance(value, np.ndarray) and value.size <= _MOST_NUMBERS:
        value = value.tolist()
    if isinstance(value, bool | int | float):
        return (), [value]
    if not isinstance(value, list | tuple):
        return (), None
    parts = [_numbers(part) for part in value]
    shapes: Iterator[tuple[int, ...]] = (shape for shape, _ in parts)
    if not parts or any(numbers is None for _, numbers in parts) or len(set(shapes)) > 1:
        return (), None
    found = [numbers for _, numbers in parts if numbers is not None]
    return (len(parts), *parts[0][0]), list(itertools.chain.from_iterable(found))
