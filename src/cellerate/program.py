"""The language of a packed model: a small graph of operations from a fixed list, with its weights.

It is the common language of the code that builds a program from a Keras model, the code that writes and reads
the `.cell` file, and the code that runs it. It imports none of them.

A program is a tuple of nodes; each node comes after those it reads. Nodes take and give float32 arrays of
shape (B, ...), ids (B, T) int32 and masks (B, T) bool. B and T can be any size unless a node says otherwise.
Axes are counted as in NumPy, the batch included.
"""

import dataclasses
import unicodedata
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from cellerate import activations
from cellerate.errors import ModelError

MASKED_OUTPUTS = ("previous_output", "previous_state", "zero")
"""The outputs at steps where the mask is False. The native core knows each by its index here."""

PRECISIONS = ("float32", "bfloat16", "int8")
"""The types of a packed model's matrices and products. The native core knows each by its index here."""

Option = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | None
"""The value of an option: a plain JSON value, with tuples for lists."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """The inputs, weights and options that a node of one kind has.

    Attributes:
        inputs: The names of its inputs; those that end in "?" are optional. ("*",) stands for one or more,
            named "0", "1", ...
        arrays: Its weights: name → axes. Names that end in "?" are optional.
        options: Its options: name → required type.
    """

    inputs: tuple[str, ...]
    arrays: Mapping[str, str]
    options: Mapping[str, type | tuple[type, ...]]


def _operation(
    *inputs: str, arrays: Mapping[str, str] | None = None, **options: type | tuple[type, ...]
) -> Operation:
    return Operation(inputs, MappingProxyType(dict(arrays or {})), MappingProxyType(options))


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        # An input of the model. shape starts with the batch and has -1 for any size; dtype is "float32" or "int32".
        "input": _operation(shape=tuple, dtype=str),
        # (B, T) ids -> (B, T, E); negative ids count from the end.
        "embedding": _operation("ids", arrays={"embeddings": "VE"}),
        # (B, ..., E) -> (B, ..., V): a tied head, the product with the transposed table. soft_cap may be None.
        "unembedding": _operation("x", arrays={"embeddings": "VE"}, soft_cap=(float, type(None))),
        # ids -> mask: True where the id is not 0.
        "ids_mask": _operation("ids"),
        # (B, T, F) -> mask: True where any feature is not mask_value.
        "features_mask": _operation("x", mask_value=float),
        # x (B, T, F), mask -> x with zeros where the mask is False.
        "masked": _operation("x", "mask"),
        # x, other, mask -> x where the mask is True, else other; stretched to one shape as the inputs of an add.
        "where": _operation("x", "other", "mask"),
        # -> outputs (B, T, H), or with return_sequences=False the last one (B, H). See kernels.lstm.spec.
        "lstm": _operation(
            "x",
            "mask?",
            "h0?",
            "c0?",
            arrays={"kernel": "DG", "recurrent_kernel": "HG", "bias?": "G"},
            activation=str,
            recurrent_activation=str,
            masked_output=str,
            go_backwards=bool,
            return_sequences=bool,
        ),
        # The last state (B, H) of the lstm it reads: state is "h" or "c".
        "lstm_state": _operation("lstm", state=str),
        # As the lstm; gates in the order z, r, h. The bias is added to the product of x, the recurrent bias to that of
        # the state, which only reset_after tells apart.
        "gru": _operation(
            "x",
            "mask?",
            "h0?",
            arrays={"kernel": "DG", "recurrent_kernel": "HG", "bias?": "G", "recurrent_bias?": "G"},
            activation=str,
            recurrent_activation=str,
            reset_after=bool,
            masked_output=str,
            go_backwards=bool,
            return_sequences=bool,
        ),
        "simple_rnn": _operation(
            "x",
            "mask?",
            "h0?",
            arrays={"kernel": "DH", "recurrent_kernel": "HH", "bias?": "H"},
            activation=str,
            masked_output=str,
            go_backwards=bool,
            return_sequences=bool,
        ),
        # The last state (B, H) of the gru or simple_rnn it reads.
        "rnn_state": _operation("rnn"),
        # (B, ..., K) -> (B, ..., N), then the activation.
        "dense": _operation("x", arrays={"kernel": "KN", "bias?": "N"}, activation=str),
        "activation": _operation("x", activation=str),
        # Over the last axis.
        "layer_norm": _operation("x", arrays={"gamma?": "F", "beta?": "F"}, epsilon=float),
        # x * scale + offset, over the last axis: a BatchNormalization at inference, or a Normalization.
        "affine": _operation("x", arrays={"scale": "F", "offset": "F"}),
        "add": _operation("*"),
        "subtract": _operation("0", "1"),
        "multiply": _operation("*"),
        "average": _operation("*"),
        "maximum": _operation("*"),
        "minimum": _operation("*"),
        "concatenate": _operation("*", axis=int),
        # shape without the batch; -1 at most once.
        "reshape": _operation("x", shape=tuple),
        # (B, F) -> (B, n, F).
        "repeat_vector": _operation("x", n=int),
        # Steps from begin to end on axis 1; end may be None.
        "crop": _operation("x", begin=int, end=(int, type(None))),
        "take": _operation("x", indices=tuple, axis=int),
        "cumsum": _operation("x", axis=int),
        "flip": _operation("x", axis=int),
        # axes without the batch, counted from 1, as in keras.layers.Permute.
        "permute": _operation("x", axes=tuple),
        # Over axis 1: (B, T, F) -> (B, F).
        "mean_over_time": _operation("x", "mask?"),
        "max_over_time": _operation("x"),
        # mask -> mask, reversed over time: for the outputs of a backward layer, put back in order.
        "flip_mask": _operation("mask"),
        # masks -> mask: True where any of them is; a mask of one step is stretched to the steps of the others.
        "any_mask": _operation("*"),
    }
)
"""Every operation; a file that names any other is refused."""

MASKS = ("ids_mask", "features_mask", "flip_mask", "any_mask")
"""The operations that give a mask."""

RECURRENT = ("lstm", "gru", "simple_rnn")
"""The operations that have a state, and run one step after the other."""

LAST_STATES: Mapping[str, str] = MappingProxyType({"lstm_state": "lstm", "rnn_state": "rnn"})
"""The operations that give the last state of one of those → the name of their input."""

_GATES = {"lstm": 4, "gru": 3}

# No real model has larger whole numbers or more axes, and array libraries choke on them.
_LARGEST = 2**31 - 1
MOST_AXES = 32
# A hostile file of many tiny nodes would be slow to read. Models have about ten nodes a layer and a few outputs.
_MOST_NODES, _MOST_OUTPUTS = 1 << 14, 1 << 10
_LONGEST_NAME = 1 << 10
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_TUPLES = {"input": "shape", "reshape": "shape", "permute": "axes", "take": "indices"}

# A dense or activation node may also have these two beside the kernels' activations; both work over the last axis.
NORMALIZERS = ("softmax", "log_softmax")


def named_activation(activation: Option) -> tuple[str, Mapping[str, float]]:
    """The name of an activation of a node, and its parameters.

    Raises:
        ConfigError: It is none.
    """
    name = str(activation)
    return (name, {}) if name in NORMALIZERS else activations.read(name)


@dataclasses.dataclass(frozen=True)
class Node:
    """One operation of a program.

    Attributes:
        op: A key of `OPERATIONS`.
        name: Where it came from, for messages: the path of a Keras layer.
        inputs: The name of an input → the number of the earlier node it reads.
        arrays: Its weights, float32, contiguous. Nodes may share one array.
        options: Its options.
    """

    op: str
    name: str
    inputs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)


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
            if not _is_number(number) or not 0 <= number < len(self.nodes):
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
        if not _is_number(source) or not 0 <= source < number:
            raise ModelError(f"{node.name}: input {name!r} must be an earlier node, got {source!r}.")
    _check_names(node, "array", set(node.arrays), tuple(operation.arrays))
    sizes: dict[str, int] = {}
    for name, axes in operation.arrays.items():
        array = node.arrays.get(name.removesuffix("?"))
        if array is not None:
            _check_array(node, name.removesuffix("?"), array, axes, sizes)
            if id(array) not in finite:
                _check_finite(node, name.removesuffix("?"), array)
                finite.add(id(array))
    gates = _GATES.get(node.op)
    if gates is not None and sizes["G"] != gates * sizes["H"]:
        raise ModelError(f"{node.name}: recurrent_kernel must have {gates} columns a row, got {sizes}.")
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
            f"the name of {what} must have at most {_LONGEST_NAME:,} characters and no control characters, got "
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
            f"{node.name}: {name} must be float32 with {len(axes)} axes and elements, got {array.dtype} "
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
                f"{node.name}: {name} must be one of {', '.join(values)}; got {options[name]!r}."
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
                raise ModelError(f"{node.name}: {name} must be at most {largest:.9g}, got {number!r}.")
    if node.op in _TUPLES:
        _check_tuple(node, _TUPLES[node.op])
    if isinstance(epsilon := options.get("epsilon"), float) and epsilon < 0:
        raise ModelError(f"{node.name}: epsilon must be at least 0, got {epsilon!r}.")
    if isinstance(soft_cap := options.get("soft_cap"), float) and soft_cap <= 0:
        raise ModelError(f"{node.name}: soft_cap must be above 0, got {soft_cap!r}.")
    if node.op == "lstm" and ("h0" in node.inputs) != ("c0" in node.inputs):
        raise ModelError(f"{node.name}: h0 and c0 must be given together.")
    if node.op in LAST_STATES:
        expected = "an lstm" if node.op == "lstm_state" else "a gru or a simple_rnn"
        read = nodes[node.inputs[LAST_STATES[node.op]]].op
        if read not in expected.split():
            raise ModelError(f"{node.name}: {node.op} must read {expected}, got {read}.")
    if node.op == "repeat_vector" and not 1 <= int(str(options["n"])) <= 1 << 20:
        raise ModelError(f"{node.name}: n must be from 1 to {1 << 20}, got {options['n']!r}.")


def _check_tuple(node: Node, name: str) -> None:
    values = node.options[name]
    if not isinstance(values, tuple) or not all(_is_number(value) for value in values):
        raise ModelError(f"{node.name}: {name} must be whole numbers, got {values!r}.")
    sizes = all(size == -1 or int(size) > 0 for size in values)
    fits = {
        "input": sizes and 1 <= len(values) <= MOST_AXES,
        "reshape": sizes and len(values) <= MOST_AXES and values.count(-1) <= 1,
        "permute": sorted(values) == list(range(1, min(len(values), MOST_AXES) + 1)),
        "take": len(values) > 0,
    }
    if not fits[node.op]:
        raise ModelError(f"{node.name}: {node.op} cannot have the {name} {values!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
