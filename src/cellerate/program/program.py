"""A graph of operations; its nodes obey the rules of their operations."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Mapping

import numpy as np

from cellerate import activations
from cellerate.errors import ModelError
from cellerate.program.node import MASKED_OUTPUTS, NORMALIZERS, Node
from cellerate.program.operation import is_whole
from cellerate.program.table import OPERATIONS, RECURRENT

# No real model has larger whole numbers, and array libraries choke on them.
_LARGEST = 2**31 - 1
# A hostile file of many tiny nodes would be slow to read. Models have about ten nodes a layer and a few outputs.
_MOST_NODES, _MOST_OUTPUTS = 1 << 14, 1 << 10
_LONGEST_NAME = 1 << 10
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Program:
    """A graph of operations.

    Attributes:
        nodes: Each comes after the nodes it reads.
        outputs: The name of an output → the number of the node that gives it, in the model's order.

    Raises:
        ModelError: A node breaks its rule in `OPERATIONS`, or reads a node that does not come before it; the
            shapes of its weights do not fit together; a weight is not finite; an option has an impossible
            value; two inputs have the same name; there are too many nodes or outputs.
    """

    nodes: tuple[Node, ...]
    outputs: Mapping[str, int]

    def __post_init__(self) -> None:
        if not self.outputs:
            raise ModelError("a program has at least one output, got none.")
        if len(self.nodes) > _MOST_NODES or len(self.outputs) > _MOST_OUTPUTS:
            raise ModelError(
                f"a program has at most {_MOST_NODES:,} nodes and {_MOST_OUTPUTS:,} outputs, got {len(self.nodes):,} "
                f"and {len(self.outputs):,}."
            )
        # The ids of arrays already found finite, so that an array that nodes share is searched only once.
        finite: set[int] = set()
        for number, node in enumerate(self.nodes):
            _check(number, node, self.nodes, finite)
        if len(self.inputs) < sum(node.op == "input" for node in self.nodes):
            raise ModelError("each input of a program has a name of its own, got two of one name.")
        for name, number in self.outputs.items():
            _check_name("an output", name)
            if not is_whole(number) or not 0 <= number < len(self.nodes):
                raise ModelError(f"output {name!r}: expected the number of a node, got {number!r}.")

    @property
    def inputs(self) -> dict[str, int]:
        """The name of each input → the number of its node, in order."""
        return {node.name: number for number, node in enumerate(self.nodes) if node.op == "input"}


def _check(number: int, node: Node, nodes: tuple[Node, ...], finite: set[int]) -> None:
    """Raises `ModelError` unless a node fits its operation; `finite` holds the ids of arrays known to be finite."""
    operation = OPERATIONS.get(node.op)
    if operation is None:
        raise ModelError(f"{node.name}: there is no operation {node.op!r}.")
    _check_name("a node", node.name)
    _check_names(node, "input", set(node.inputs), operation.inputs)
    for name, source in node.inputs.items():
        if not is_whole(source) or not 0 <= source < number:
            raise ModelError(f"{node.name}: input {name!r} must be an earlier node, not {source!r}.")
    _check_names(node, "array", set(node.arrays), tuple(operation.arrays))
    sizes: dict[str, int] = {}
    for name, axes in operation.arrays.items():
        array = node.arrays.get(name.removesuffix("?"))
        if array is not None:
            _check_array(node, name.removesuffix("?"), array, axes, sizes)
            if id(array) not in finite:
                _check_finite(node, name.removesuffix("?"), array)
                finite.add(id(array))
    if "G" in sizes and sizes["G"] != operation.gates * sizes["H"]:
        raise ModelError(
            f"{node.name}: recurrent_kernel must have {operation.gates} columns a row, not {sizes}."
        )
    _check_names(node, "option", set(node.options), tuple(operation.options))
    for name, kind in operation.options.items():
        value = node.options[name]
        # To Python a bool is an int, but an option is either one or the other.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ModelError(f"{node.name}: option {name!r} cannot be {value!r}.")
    _check_values(node, nodes)


def _check_name(what: str, name: str) -> None:
    """Refuses names that would flood or garble a terminal when a message shows them."""
    if len(name) > _LONGEST_NAME or any(unicodedata.category(character) == "Cc" for character in name):
        raise ModelError(
            f"the name of {what} must have at most {_LONGEST_NAME:,} characters and no control characters, not "
            f"{name[:40]!r}; rename it."
        )


def _check_names(node: Node, what: str, found: set[str], expected: tuple[str, ...]) -> None:
    if expected == ("*",):
        allowed = required = {str(n) for n in range(max(1, len(found)))}
    else:
        allowed = {name.removesuffix("?") for name in expected}
        required = {name for name in expected if not name.endswith("?")}
    if not required <= found <= allowed:
        raise ModelError(
            f"{node.name}: {node.op} has the {what}s {', '.join(expected) or 'none'}; got "
            f"{', '.join(sorted(found)) or 'none'}."
        )


def _check_array(node: Node, name: str, array: np.ndarray, axes: str, sizes: dict[str, int]) -> None:
    if array.dtype != np.float32 or array.ndim != len(axes) or 0 in array.shape:
        raise ModelError(
            f"{node.name}: {name} must be float32 with {len(axes)} axes and elements, not {array.dtype} "
            f"{array.shape}."
        )
    for axis, size in zip(axes, array.shape, strict=True):
        if sizes.setdefault(axis, size) != size:
            raise ModelError(
                f"{node.name}: {name} has the shape {array.shape}, its other weights say {sizes}."
            )


def _check_finite(node: Node, name: str, array: np.ndarray) -> None:
    if not np.isfinite(array).all():
        raise ModelError(
            f"{node.name}: {name} holds a NaN or an infinity, so the model's training has diverged: go back to "
            "an earlier checkpoint."
        )


def _check_values(node: Node, nodes: tuple[Node, ...]) -> None:
    """Checks what the types of the options cannot express."""
    options = node.options
    known = {
        "masked_output": MASKED_OUTPUTS,
        "state": ("h", "c"),
        "dtype": ("float32", "int32"),
    }
    for name, values in known.items():
        if name in options and options[name] not in values:
            raise ModelError(
                f"{node.name}: {name} must be one of {', '.join(values)}, not {options[name]!r}."
            )
    for name in ("activation", "recurrent_activation"):
        normalizes = node.op not in RECURRENT and options.get(name) in NORMALIZERS
        if name in options and not normalizes and not activations.is_activation(options[name]):
            raise ModelError(f"{node.name}: {name}: {activations.expected(options[name])}")
    for name, value in options.items():
        for number in value if isinstance(value, tuple) else (value,):
            largest = _LARGEST_FLOAT if isinstance(number, float) else _LARGEST
            # Written with `not` because every comparison with NaN is False.
            if isinstance(number, int | float) and not abs(number) <= largest:
                raise ModelError(f"{node.name}: {name} must be at most {largest:.9g}, not {number!r}.")
    if isinstance(epsilon := options.get("epsilon"), float) and epsilon < 0:
        raise ModelError(f"{node.name}: epsilon must be at least 0, not {epsilon!r}.")
    if isinstance(soft_cap := options.get("soft_cap"), float) and soft_cap <= 0:
        raise ModelError(f"{node.name}: soft_cap must be above 0, not {soft_cap!r}.")
    row = OPERATIONS[node.op]
    row.check(node)
    if row.state_of:
        read = nodes[node.inputs[row.inputs[0]]].op
        if read not in row.state_of:
            raise ModelError(
                f"{node.name}: {node.op} must read a node of {' or '.join(row.state_of)}, not {read}."
            )
