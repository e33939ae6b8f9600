"""A packed model's program on the native core: weights are packed once, and the whole graph runs in one call.

The core takes values of the shapes (B, F), (B, T, F) with a time axis, and (B, N, T, F) with one or more axes of
sequences.
`takes` says which programs it supports; other programs, and machines without the core, run one operation at a time
(`runtime.program.interpreter`). Only this module uses the core's `CompiledProgram`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from cellerate.kernels import codes, native
from cellerate.program import MASKED_OUTPUTS, MASKS, NORMALIZERS, Node, Shape, window_steps

Sizes = Any
"""The shapes of a call in the core's form; only the core reads it."""

# A hostile file may share one array between many nodes, each of which packs it again, or have so many nodes that
# linking them takes long. Real models stay far below these limits.
_MOST_GROWTH, _SPARE_BYTES, _MOST_NODES = 4, 1 << 28, 1 << 10


class Row(NamedTuple):
    """A row of the core's own table; `csrc/engine/program_table.h` explains the fields."""

    inputs: tuple[str, ...]
    arrays: tuple[str | None, ...]
    number: str | None
    whole: tuple[str, ...]
    shapes: str


class Way(NamedTuple):
    """The way a node is run.

    Attributes:
        nothing: Whether another node does its work.
        looked_up: Whether it is an embedding whose rows the LSTMs look up themselves.
        tabled: Whether it is an LSTM that looks ids up in a table of embeddings·kernel + bias.
        partner: The number of the LSTM that runs at the same time on other threads, or None.
    """

    nothing: bool
    looked_up: bool
    tabled: bool
    partner: int | None


class CompiledProgram:
    """Nodes of a program, compiled for the core. It never changes; any threads may use it.

    Args:
        nodes: The nodes by number, each after the nodes it reads, as `runtime.program.operations.prepared` returns.
        outputs: The numbers of the nodes whose values `run` writes to its outputs.
        precision: The storage and product type of the matrices, one of `program.PRECISIONS`.

    Attributes:
        inputs: The numbers of the input nodes.
        outputs: The numbers of the output nodes.
        packed_bytes: The size of the packed weights.
        target: The instruction set it runs on.

    Raises:
        ValueError: The packed weights would be many times as large as the weights.
        MemoryError: The packed weights do not fit into memory.
    """

    def __init__(self, nodes: Mapping[int, Node], outputs: Sequence[int], precision: str = "float32") -> None:
        places = {number: place for place, number in enumerate(nodes)}
        self._native = native.core().CompiledProgram(
            [native_node(node, places, rows()) for node in nodes.values()],
            [places[number] for number in outputs],
            precision,
            _MOST_GROWTH * _weight_bytes(nodes.values()) + _SPARE_BYTES,
        )
        self._numbers = tuple(nodes)
        self.outputs = tuple(outputs)
        self.inputs = tuple(number for number, node in nodes.items() if node.op == "input")
        self.packed_bytes: int = self._native.packed_bytes
        self.target: str = self._native.target

    def ways(self, batch: int, sizes: Sizes) -> dict[int, Way]:
        """The way each node runs in a call of `batch` rows."""
        beside = self._native.partners(batch, sizes)
        return {
            number: Way(nothing, looked_up, tabled, self._numbers[partner] if partner >= 0 else None)
            for number, (nothing, looked_up, tabled), partner in zip(
                self._numbers, self._native.links(), beside, strict=True
            )
        }

    def run(
        self,
        sizes: Sizes,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        seconds: np.ndarray | None = None,
    ) -> None:
        """Runs a batch.

        Args:
            sizes: The result of `sizes_of` for the rows of these inputs.
            inputs: The inputs in the order of the attribute, (B, ...), C-contiguous, float32 or int32.
            outputs: The arrays for the results, (B, ...) float32, C-contiguous, in the order of the attribute.
            seconds: (nodes,) float64. The call adds the time that the first thread spends on each node.

        Raises:
            IndexError: An id is not a row of its table.
        """
        self._native.run(len(outputs[0]), sizes, inputs, outputs, seconds)

    def prepared_run(
        self,
        batch: int,
        sizes: Sizes,
        x: int,
        result: int,
        states: Sequence[tuple[int, int, np.ndarray, np.ndarray]] = (),
    ) -> PreparedRun:
        """Prepares everything of a call but its data, for loops over calls of the same sizes.

        Args:
            batch: Rows of a call.
            sizes: As in `run`.
            x: The index in `inputs` of the input that changes from call to call.
            result: The index in `outputs` of the output that each call returns.
            states: For each remaining input: its index in `inputs`, the index of its next value in `outputs`, and two
                arrays (B, H) float32. A call reads the first and writes the second; the next call does the reverse.

        Raises:
            ValueError: An input or output is missing, or an array does not fit.
        """
        return native.core().PreparedRun(self._native, batch, sizes, x, result, list(states))


class PreparedRun(Protocol):
    """A call of the core that lacks only its data."""

    def run(self, x: Any, result: Any) -> bool:
        """Runs the call; without states, several threads may run it at once.

        Returns:
            False, without running, unless x and result are C-contiguous arrays of the prepared shapes and dtypes that
            share no memory.

        Raises:
            IndexError: An id is not a row of its table; nothing has run.
            MemoryError: The results do not fit into memory.
        """

    def time(self, x: Any, result: Any, count: int) -> list[float]:
        """Runs the call `count` times without Python in between; returns the seconds of each run.

        Raises:
            ValueError: `run` would return False.
        """


def sizes_of(
    nodes: Mapping[int, Node], shapes: Mapping[int, Shape], known: Mapping[str, Row] | None = None
) -> Sizes:
    """The shapes of a call in the core's form; None if the core does not support them.

    Args:
        nodes: As in `CompiledProgram`.
        shapes: The shape of a row of each node.
        known: The core's rows of the operations; None for the operations of packed models.
    """
    known = rows() if known is None else known
    sizes, begins = [], []
    for number, node in nodes.items():
        shape = shapes[number]
        read = {name: shapes[source] for name, source in node.inputs.items()}
        whole = _gives_ids_or_mask(node)
        if len(shape) != 1 if whole else not shape:
            return None
        if not _TAKEN[known[node.op].shapes](node, shape, read):
            return None
        sizes.append((shape[0], 1, 0) if whole else _size(shape))
        begins.append(_begin(node, read))
    # For each value its steps (0 without a time axis), features and sequences (0 without that axis); and the begins.
    return native.core().ProgramSizes(sizes, begins)


def _size(shape: Shape) -> tuple[int, int, int]:
    *outer, features = shape
    return (math.prod(outer) if outer else 0), features, math.prod(outer[:-1]) if len(outer) > 1 else 0


def _begin(node: Node, read: Mapping[str, Shape]) -> int:
    """The first step of a crop; the padding before a sequence; 1 for an operation along the features."""
    options = node.options
    if node.op == "crop":
        return range(read["x"][0])[options["begin"] :].start if options["begin"] else 0
    if node.op == "pad":
        return int(options["before"])
    if "padding" in options:
        return window_steps(node, read["x"][-2])[1]
    if node.op == "permute":
        return int(_swap(options["axes"]) == 0)
    return int(node.op in _ALONG and options["axis"] in (-1, len(read["x"])))


def _swap(axes: Sequence[int]) -> int | None:
    """The axes behind the two neighbours that are swapped; None if that is not all that the axes say."""
    moved = [place for place, axis in enumerate(axes, 1) if place != axis]
    return len(axes) - moved[1] if len(moved) == 2 and moved[1] - moved[0] == 1 else None


def _few_axes(shape: Shape, read: Mapping[str, Shape]) -> bool:
    """True if every value has at most a time axis and a feature axis."""
    return max(map(len, (shape, *read.values()))) <= 2


def _alike(node: Node, shape: Shape, read: Mapping[str, Shape]) -> bool:
    return len(shape) <= 3 and all(
        each == (shape[:1] if name == "mask" else shape) for name, each in read.items()
    )


def _stretched(shape: Shape, read: Mapping[str, Shape]) -> bool:
    """True if each value has the positions of the result, or those of its last axes, and its features or one."""
    own = shape[:-1]
    fitting = [(1,) * axis + own[axis:] for axis in range(len(shape))]
    return all((1,) * (len(shape) - len(each)) + each[:-1] in fitting for each in read.values())


def _last(node: Node, shape: Shape, read: Mapping[str, Shape]) -> bool:
    return node.options["axis"] in (-1, len(shape))


# The rules that rows name, which `csrc/engine/program_table.h` explains.
_TAKEN: Mapping[str, Callable[[Node, Shape, Mapping[str, Shape]], bool]] = {
    "any": lambda node, shape, read: _few_axes(shape, read),
    "positions": lambda node, shape, read: True,
    "alike": _alike,
    "stretched": lambda node, shape, read: _stretched(shape, read),
    "flipped": lambda node, shape, read: len(shape) > 1 and _TAKEN["joined"](node, shape, read),
    "features": _last,
    "joined": lambda node, shape, read: (
        _last(node, shape, read) or (node.options["axis"] == 1 and len(shape) == 2)
    ),
    "time": lambda node, shape, read: len(read["x"]) == 2 and _few_axes(shape, read),
    "either": lambda node, shape, read: node.options["axis"] in (len(read["x"]), max(len(read["x"]) - 1, 1)),
    "swapped": lambda node, shape, read: True,
}
_ALONG = ("sum", "mean", "max", "min", "softmax", "take")


def takes(nodes: Collection[Node]) -> bool:
    """True if the core supports all of the operations; `sizes_of` checks the shapes."""
    if len(nodes) > _MOST_NODES:
        return False
    for node in nodes:
        row = rows().get(node.op)
        if row is None or (row.shapes == "time" and node.options.get("axis", 1) != 1):
            return False
        if row.shapes == "swapped" and _swap(node.options["axes"]) not in (0, 1):
            return False
        if node.op == "input" and node.options["dtype"] == "float32" and len(node.options["shape"]) < 2:
            return False
    return True


@functools.cache
def rows() -> dict[str, Row]:
    """The operations of packed models that the core supports."""
    return {name: Row(*row) for name, row in native.own_list("PROGRAM_OPERATIONS", {}).items()}


def _gives_ids_or_mask(node: Node) -> bool:
    return node.op in MASKS or node.options.get("dtype") == "int32"


def native_node(node: Node, places: Mapping[int, int], known: Mapping[str, Row]) -> tuple[Any, ...]:
    """A node in the form of the core's constructors.

    Args:
        node: The node.
        places: The index in the core of each node, by its number.
        known: The core's rows of the operations.
    """
    row = known[node.op]
    many = map(str, range(len(node.inputs)))
    names = many if row.inputs == ("*",) else (name.removesuffix("?") for name in row.inputs)
    inputs = [places[node.inputs[name]] if name in node.inputs else -1 for name in names]
    arrays = tuple(None if name is None else node.arrays.get(name) for name in row.arrays)
    option: Any = node.options.get
    activation = option("activation", "linear")
    return (
        node.op,
        inputs,
        arrays,
        (
            codes.of_activation("linear" if activation in NORMALIZERS else activation),
            codes.of_activation(option("recurrent_activation", "sigmoid")),
            activation if activation in NORMALIZERS else "",
            option("masked_output", MASKED_OUTPUTS[0]),
        ),
        (
            option("go_backwards", False),
            option("return_sequences", True),
            option("dtype") == "int32",
            option("state") == "c",
        ),
        option(row.number) or 0.0,
        [int(number) for name in row.whole for number in _numbers(option(name))],
    )


def _numbers(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        return (codes.of_function(value),)
    return value if isinstance(value, tuple) else (value,)


def _weight_bytes(nodes: Iterable[Node]) -> int:
    """The bytes of all weights; a shared array counts once."""
    return sum({id(array): array.nbytes for node in nodes for array in node.arrays.values()}.values())
