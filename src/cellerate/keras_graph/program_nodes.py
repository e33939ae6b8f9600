"""The tools that read a model: values that stand for tensors, and nodes made from calls."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from cellerate.keras_graph.activations import activation_name
from cellerate.keras_graph.keras_backend import weight
from cellerate.program import NORMALIZERS, Node, Option

ALL_COUNT = -1
"""The entry in `ProgramValue.masks` for a mask that is True everywhere."""

USE_OTHERS = "Use layers that can be packed, or do its work outside the model."
NAMED = "Use an activation of keras.activations, or a layer such as keras.layers.ReLU."
_ADVICE = {
    "Lambda": "Python code cannot be packed: use layers instead, or do its work outside the model.",
    "PReLU": NAMED,
}


class Refused(Exception):  # noqa: N818  (it is always caught, and becomes a ModelError then)
    """Why a call cannot be part of a program; `to_program` catches and collects these.

    Attributes:
        why: The reason, in words that follow the name of a layer.
        instead: A sentence on what to do.
        where: The path and class of the layer, if it is inside the called layer.
        others: Further reasons from the same call.
    """

    def __init__(self, why: str, instead: str = USE_OTHERS) -> None:
        super().__init__(why)
        self.why, self.instead = why, instead
        self.where: str | None = None
        self.others: tuple[Refused, ...] = ()


def each(*parts: Callable[[], Any]) -> list[Any]:
    """The results of several functions, all called before a refusal is raised.

    Raises:
        Refused: The first reason; its `others` are the rest.
    """
    results: list[Any] = []
    reasons: list[Refused] = []
    for part in parts:
        try:
            results.append(part())
        except Refused as refused:
            reasons += [refused, *refused.others]
    if reasons:
        reasons[0].others = tuple(reasons[1:])
        raise reasons[0]
    return results


@dataclasses.dataclass(frozen=True)
class ProgramValue:
    """The stand-in for a tensor of the graph.

    Attributes:
        number: The node that computes it; None for a boolean tensor that can only serve as a mask.
        shape: (B, ...), with None for a free size.
        mask: The Keras mask on the tensor.
        masks: For a boolean tensor the nodes of the masks that it combines by OR; None for other tensors.
        whole: Whether it is an input of integers.
        boolean: Whether it is a boolean tensor, whose numbers are 1 and 0.
        refused: Why no node computes the numbers of a boolean tensor.
    """

    number: int | None
    shape: tuple[int | None, ...] = ()
    mask: ProgramValue | None = None
    masks: frozenset[int] | None = None
    whole: bool = False
    boolean: bool = False
    refused: Refused | None = None


@dataclasses.dataclass(frozen=True)
class Weight:
    """The origin of a program's array in the Keras model.

    Attributes:
        variable: The Keras variable; it may have another shape than the array, with the same elements in order.
        transposed: Whether its axes are swapped relative to the array.
        update: One half of the low-rank update that is merged into the array; None if there is none.
        part: The index on the variable's first axis that the array holds; None for the whole variable.
        groups: The groups of a convolution. The array holds one block a group, with zeros between the blocks; the
            variable (places of a window, features of a group, N) has no zeros.
    """

    variable: Any
    transposed: bool = False
    update: Any | None = None
    part: int | None = None
    groups: int = 1

    def assign(self, values: np.ndarray) -> None:
        """Assigns values in the shape of the array to the variable; a low-rank update becomes zero."""
        values = values.T if self.transposed else values
        if self.groups > 1:
            values = blocks_of(values, math.prod(self.variable.shape[:-2]), self.groups)
        if self.part is not None:
            whole = np.array(numpy(self.variable))
            whole[self.part] = values
            values = whole
        self.variable.assign(np.reshape(values, self.variable.shape))
        if self.update is not None:
            self.update.assign(np.zeros(self.update.shape, "float32"))


def in_blocks(kernel: np.ndarray, groups: int) -> np.ndarray:
    """The kernel (size, F, N) of a grouped convolution as (size·groups·F, N), with zeros outside each group."""
    size, features, filters = kernel.shape
    whole = np.zeros((size, groups, features, groups, filters // groups), kernel.dtype)
    for group, block in enumerate(np.split(kernel, groups, axis=2)):
        whole[:, group, :, group] = block
    return whole.reshape(-1, filters)


def blocks_of(whole: np.ndarray, size: int, groups: int) -> np.ndarray:
    """The kernel (size, F, N) from the matrix of `in_blocks`."""
    filters = whole.shape[1]
    split = whole.reshape(size, groups, -1, groups, filters // groups)
    return np.concatenate([split[:, group, :, group] for group in range(groups)], axis=2)


class Nodes:
    """The nodes of a program so far, the arrays that they share, and the origin of the arrays.

    Attributes:
        found: The nodes.
        weights: The `id` of an array → its variable; arrays computed from several variables are not here.
    """

    def __init__(self) -> None:
        self.found: list[Node] = []
        self.weights: dict[int, Weight] = {}
        self._arrays: dict[tuple[int, str], np.ndarray] = {}
        self._masks: dict[tuple[Any, ...], ProgramValue] = {}
        self._columns: dict[tuple[int | None, str], ProgramValue] = {}

    def add(
        self,
        op: str,
        name: str,
        inputs: Mapping[str, ProgramValue],
        arrays: Mapping[str, np.ndarray] | None = None,
        **options: Option,
    ) -> ProgramValue:
        """Adds a node. The value has no shape yet; callers that know the shape add it."""
        numbers: dict[str, int] = {}
        for key, value in inputs.items():
            if isinstance(value, ProgramValue) and value.refused is not None:
                raise value.refused
            if not isinstance(value, ProgramValue) or value.number is None:
                raise Refused("computes with something that is not a numeric tensor from the model's inputs")
            numbers[key] = value.number
        self.found.append(Node(op, name, numbers, arrays or {}, options))
        return ProgramValue(len(self.found) - 1)

    def mask(self, op: str, name: str, inputs: Mapping[str, ProgramValue], **options: Option) -> ProgramValue:
        """The node of a mask; an equal existing node is used again."""
        key = (op, *((name, value.number) for name, value in inputs.items()), *options.items())
        if key not in self._masks:
            self._masks[key] = self.add(op, name, inputs, None, **options)
        return self._masks[key]

    def nonzero(self, name: str, value: ProgramValue) -> ProgramValue:
        """The node of the mask that is True where numbers (B, T) are not 0."""
        looked_up = any(node.op == "embedding" and node.inputs["ids"] == value.number for node in self.found)
        if value.whole or looked_up:
            return self.mask("ids_mask", name, {"ids": value})
        if (value.number, name) not in self._columns:
            steps = -1 if value.shape[1] is None else value.shape[1]
            self._columns[value.number, name] = self.add("reshape", name, {"x": value}, shape=(steps, 1))
        return self.mask("features_mask", name, {"x": self._columns[value.number, name]}, mask_value=0.0)

    def array(
        self, owner: Any, name: str, make: Callable[[], Any], weight: Weight | None = None
    ) -> np.ndarray:
        """An array in float32, made once, so that the nodes of a shared layer share it."""
        key = (id(owner), name)
        if key not in self._arrays:
            # A copy, because Keras may return the variable's own memory, which training changes.
            self._arrays[key] = array = np.array(make(), "float32", order="C")
            if weight is not None:
                self.weights[id(array)] = weight
        return self._arrays[key]

    def is_input(self, value: ProgramValue) -> bool:
        """True if a value is an input of the model."""
        return value.number is not None and self.found[value.number].op == "input"


@dataclasses.dataclass(frozen=True)
class ProgramCall:
    """One call of a layer or operation.

    Attributes:
        layer: The layer or operation that is called.
        path: Its path in the model.
        arguments: The arguments by the names in its `call`, with a `ProgramValue` for each tensor.
        mask: The mask that Keras passes.
        shapes: The shapes of the outputs.
        boolean: Whether the outputs are booleans.
        nodes: The nodes to which the call adds its own.
        readers: The readers of layers inside a wrapper.
        time_axis: The time axis of an input sequence; 2 inside a TimeDistributed.
        whole: Whether the outputs are integers.
    """

    layer: Any
    path: str
    arguments: Mapping[str, Any]
    mask: Any
    shapes: tuple[tuple[int | None, ...], ...]
    boolean: bool
    nodes: Nodes
    readers: Readers
    time_axis: int = 1
    whole: bool = False

    @property
    def x(self) -> Any:
        """The first argument."""
        return next(iter(self.arguments.values()))

    def add(
        self,
        op: str,
        inputs: Mapping[str, ProgramValue] | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
        **options: Option,
    ) -> ProgramValue:
        """Adds a node, which reads the first argument if no inputs are given."""
        return self.nodes.add(op, self.path, {"x": self.x} if inputs is None else inputs, arrays, **options)

    def weights(self, owner: Any, *names: str) -> dict[str, np.ndarray]:
        """The variables of a layer or cell by name, without those that it does not have."""
        found = {name: getattr(owner, name, None) for name in names}
        return {
            name: self.nodes.array(owner, name, functools.partial(numpy, variable), Weight(variable))
            for name, variable in found.items()
            if variable is not None
        }

    def used_mask(self) -> ProgramValue | None:
        """The node of the call's mask; None if every step counts.

        Raises:
            Refused: No node makes this mask.
        """
        return self.mask_node(self.mask)

    def mask_node(self, mask: Any) -> ProgramValue | None:
        """The node of a mask on one of the call's tensors; None if every step counts.

        Raises:
            Refused: No node makes this mask.
        """
        if mask is None:
            return None
        masks = mask.masks if isinstance(mask, ProgramValue) else None
        if (
            isinstance(mask, ProgramValue)
            and mask.number is not None
            and masks is None
            and len(mask.shape) == 2
        ):
            # Keras reads numbers as booleans.
            masks = carried(self.nodes.nonzero(self.path, mask)).masks
        if not masks or len(mask.shape) not in (0, 2):
            raise Refused(
                "gets a mask that does not come from an Embedding, a Masking or an input",
                "Make the mask with one of these; an input is booleans, or numbers that are 0 at steps to leave out.",
            )
        if ALL_COUNT in masks:
            return None
        values = [ProgramValue(number) for number in sorted(masks)]
        if len(values) == 1:
            return values[0]
        return self.nodes.mask(
            "any_mask", self.path, {str(index): value for index, value in enumerate(values)}
        )


Read = Callable[[ProgramCall], ProgramValue | list[ProgramValue]]
"""Adds the nodes of a layer's call and returns the values of its outputs; raises Refused if no nodes compute it."""

ReadOne = Callable[[ProgramCall], ProgramValue]
"""Adds the nodes of a call with a single output, and returns its value."""


@dataclasses.dataclass(frozen=True)
class Readers:
    """The readers of layers by class, for each position that a layer may have.

    Attributes:
        anywhere: All layers that programs support.
        per_step: The layers that may be inside a TimeDistributed.
        recurrent: The layers that may be inside a Bidirectional.
    """

    anywhere: Mapping[type, Read]
    per_step: Mapping[type, Read]
    recurrent: Mapping[type, Read]


def carried(mask: ProgramValue) -> ProgramValue:
    """The boolean tensor for a mask's node."""
    return ProgramValue(None, masks=None if mask.number is None else frozenset([mask.number]))


def either(masks: Sequence[ProgramValue]) -> ProgramValue:
    """Masks joined by OR."""
    joined: set[int] = set()
    for mask in masks:
        if mask.masks is None:
            return ProgramValue(None)
        joined |= mask.masks
    return ProgramValue(None, masks=frozenset(joined))


def numpy(variable: Any) -> np.ndarray:
    """The values of a variable or tensor in float32, whatever its dtype."""
    values: np.ndarray = ops.convert_to_numpy(weight(variable))
    return values


def read_layer(call: ProgramCall, table: Mapping[type, Read]) -> list[ProgramValue]:
    """The outputs of a layer whose class, or a base class with the same computation, is in a table.

    Raises:
        Refused: The table has no such class, or a program cannot have the layer's state.
    """
    try:
        outputs = _reader(call, table)(call)
    except Refused as refused:
        for reason in (refused, *refused.others):
            reason.where = reason.where or f"{call.path} ({type(call.layer).__name__})"
        raise
    return outputs if isinstance(outputs, list) else [outputs]


def _reader(call: ProgramCall, table: Mapping[type, Read]) -> Read:
    layer, kind = call.layer, type(call.layer)
    known = next((base for base in kind.__mro__ if base in table), None)
    changed = [
        name
        for name in ("__call__", "call", "compute_mask", "inner_loop")
        if known is not None and getattr(kind, name, None) is not getattr(known, name, None)
    ]
    if known is None or (changed and kind.__module__.startswith("keras.")):
        wrapper = {
            id(call.readers.per_step): " inside a TimeDistributed",
            id(call.readers.recurrent): " inside a Bidirectional",
        }
        raise Refused(
            f"is not a layer that can be packed{wrapper.get(id(table), '')}",
            _ADVICE.get(kind.__name__, USE_OTHERS),
        )
    if changed:
        raise Refused(f"overrides `{changed[0]}`", f"Use {known.__name__} itself.")
    if getattr(layer, "quantization_mode", None) is not None:
        raise Refused(
            f"is quantised ({layer.quantization_mode})",
            "Pack the model from before quantisation: packing can quantise it.",
        )
    return table[known]


def known_activation(function: Any) -> str:
    """The name of an activation in programs.

    Raises:
        Refused: Programs do not support the activation.
    """
    for name in NORMALIZERS:
        if function is keras.activations.get(name):
            return name
    known = activation_name(function, fixed_weights=True)
    if known is None:
        found = getattr(function, "__name__", None) or type(function).__name__
        raise Refused(f"has the activation {found!r}, which cannot be packed", NAMED)
    return known
