"""The tools of the reader of a model: values that stand for tensors, and nodes made from calls."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from cellerate.keras_graph.activations import activation_name
from cellerate.keras_graph.keras_backend import weight
from cellerate.program import NORMALIZERS, Node, Option

ALL_COUNT = -1
"""Stands among the masks of a `ProgramValue` for a mask that is True everywhere."""

USE_OTHERS = "Use layers that can be packed, or do its work outside the model."
NAMED = "Use an activation of keras.activations, or a layer such as keras.layers.ReLU."
_ADVICE = {
    "Lambda": "Python code cannot be packed: use layers instead, or do its work outside the model.",
    "PReLU": NAMED,
}


class Refused(Exception):  # noqa: N818  (it is always caught, and becomes a ModelError then)
    """Why a call cannot be part of a program; `to_program` catches and collects these.

    Attributes:
        why: What prevents it; the text follows the name of a layer.
        instead: What to do about it, a sentence.
        where: The path and class of the layer, if it is inside what was called.
        others: Further reasons, of the same call.
    """

    def __init__(self, why: str, instead: str = USE_OTHERS) -> None:
        super().__init__(why)
        self.why, self.instead = why, instead
        self.where: str | None = None
        self.others: tuple[Refused, ...] = ()


def each(*parts: Callable[[], Any]) -> list[Any]:
    """The results of several functions; all of them are called before any refuses.

    Raises:
        Refused: For the first reason, with all others.
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
        number: The node that gives it; None for a tensor of booleans that can only serve as a mask.
        shape: (B, ...), None where a size is free.
        mask: The Keras mask that it carries.
        masks: For a tensor of booleans: the nodes of the masks that it joins by OR; None for anything else.
        whole: Whether it is an input of whole numbers.
        boolean: Whether it is a tensor of booleans: its numbers are 1 and 0.
        refused: Why no node gives the numbers of a tensor of booleans.
    """

    number: int | None
    shape: tuple[int | None, ...] = ()
    mask: "ProgramValue | None" = None
    masks: frozenset[int] | None = None
    whole: bool = False
    boolean: bool = False
    refused: Refused | None = None


@dataclasses.dataclass(frozen=True)
class Weight:
    """Where a model keeps the values of an array in its program.

    Attributes:
        variable: The Keras variable; it may have another shape than the array, with the same elements in order.
        transposed: Whether its axes are swapped relative to the array.
        update: One half of the low-rank update that is merged into the array; None if there is none.
        part: The place on the first axis of the variable that the array is of; None if it is all of it.
        groups: How many blocks the array has that the variable (size, features of a group, N) holds without the zeros
            between them: those of a convolution in groups.
    """

    variable: Any
    transposed: bool = False
    update: Any | None = None
    part: int | None = None
    groups: int = 1

    def assign(self, values: np.ndarray) -> None:
        """Gives the model other values, in the shape of the array; a low-rank update becomes zero."""
        values = values.T if self.transposed else values
        if self.groups > 1:
            values = blocks_of(values, self.variable.shape[0], self.groups)
        if self.part is not None:
            whole = np.array(numpy(self.variable))
            whole[self.part] = values
            values = whole
        self.variable.assign(np.reshape(values, self.variable.shape))
        if self.update is not None:
            self.update.assign(np.zeros(self.update.shape, "float32"))


def in_blocks(kernel: np.ndarray, groups: int) -> np.ndarray:
    """The kernel (size, F, N) of a convolution in groups as (size·groups·F, N), zeros where a filter does not look."""
    size, features, filters = kernel.shape
    whole = np.zeros((size, groups, features, groups, filters // groups), kernel.dtype)
    for group, block in enumerate(np.split(kernel, groups, axis=2)):
        whole[:, group, :, group] = block
    return whole.reshape(-1, filters)


def blocks_of(whole: np.ndarray, size: int, groups: int) -> np.ndarray:
    """The kernel (size, F, N) that `in_blocks` has made a matrix."""
    filters = whole.shape[1]
    split = whole.reshape(size, groups, -1, groups, filters // groups)
    return np.concatenate([split[:, group, :, group] for group in range(groups)], axis=2)


class Nodes:
    """The nodes of a program so far, the arrays that they share, and where those come from.

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
        """A node that makes a mask; the existing node if it was made before."""
        key = (op, *((name, value.number) for name, value in inputs.items()), *options.items())
        if key not in self._masks:
            self._masks[key] = self.add(op, name, inputs, None, **options)
        return self._masks[key]

    def nonzero(self, name: str, value: ProgramValue) -> ProgramValue:
        """The node of the mask that numbers (B, T) make: True where they are not 0."""
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
            # A copy: Keras may give the memory of the variable itself, which training changes.
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
        layer: What is called.
        path: Where it is.
        arguments: By the names that its `call` gives them, with a `ProgramValue` for each tensor.
        mask: What Keras passes as its mask.
        shapes: The shapes of its outputs.
        boolean: Whether it gives booleans.
        nodes: Where its nodes go.
        readers: How the layers inside a wrapper are read.
        time_axis: The axis of time of a sequence that it reads, which is 2 inside a TimeDistributed.
        whole: Whether it gives whole numbers.
    """

    layer: Any
    path: str
    arguments: Mapping[str, Any]
    mask: Any
    shapes: tuple[tuple[int | None, ...], ...]
    boolean: bool
    nodes: Nodes
    readers: "Readers"
    time_axis: int = 1
    whole: bool = False

    @property
    def x(self) -> Any:
        """Its first argument."""
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
        """The node of the mask that the call is given, None if every step counts.

        Raises:
            Refused: No node makes this mask.
        """
        return self.mask_node(self.mask)

    def mask_node(self, mask: Any) -> ProgramValue | None:
        """The node of a mask on one of the call's tensors, None if every step counts.

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
                "is given a mask that comes from something else than an Embedding, a Masking or an input",
                "Make the mask with one of these: an input of booleans, or of numbers that are 0 where a step does not "
                "count.",
            )
        if ALL_COUNT in masks:
            return None
        values = [ProgramValue(number) for number in sorted(masks)]
        if len(values) == 1:
            return values[0]
        return self.nodes.mask(
            "any_mask", self.path, {str(place): value for place, value in enumerate(values)}
        )


Read = Callable[[ProgramCall], ProgramValue | list[ProgramValue]]
"""Adds the nodes of a layer's call and gives the values of its outputs; raises Refused if no nodes compute it."""

ReadOne = Callable[[ProgramCall], ProgramValue]
"""The same for an operation's call, which has one output."""


@dataclasses.dataclass(frozen=True)
class Readers:
    """The rules by which layers become nodes, by the place where they may be.

    Attributes:
        anywhere: All layers that programs know.
        per_step: Those that may be inside a TimeDistributed.
        recurrent: Those that may be inside a Bidirectional.
    """

    anywhere: Mapping[type, Read]
    per_step: Mapping[type, Read]
    recurrent: Mapping[type, Read]


def carried(mask: ProgramValue) -> ProgramValue:
    """The tensor of booleans that stands for a mask's node."""
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
    """The outputs of a layer whose class is in a table, or is a subclass of one there that computes the same.

    Raises:
        Refused: It is neither, or its state is one that a program cannot have.
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
            "Pack the model as it was before: packing can quantise it.",
        )
    return table[known]


def known_activation(function: Any) -> str:
    """The name by which programs know an activation.

    Raises:
        Refused: Programs do not know it.
    """
    for name in NORMALIZERS:
        if function is keras.activations.get(name):
            return name
    known = activation_name(function, fixed_weights=True)
    if known is None:
        found = getattr(function, "__name__", None) or type(function).__name__
        raise Refused(f"has the activation {found!r}, which cannot be packed", NAMED)
    return known
