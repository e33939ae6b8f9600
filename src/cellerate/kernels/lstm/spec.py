"""The arguments of every LSTM kernel: the names of the dimensions, the options, and the checks of the arguments.

All kernels, including the reference, and all bridges to frameworks use these names, and refuse the same
arguments with the same messages.

Dimensions::

    B  batch, rows computed side by side      H   units: the width of h and of c
    T  time, steps of a sequence              4H  the gates i, f, c, o of all units, one gate after the other
    D  inputs, features of one step           V   vocabulary, rows of an embedding table

Arguments, by Keras's names::

    x                  (B, T, D)  float32 or bfloat16
    kernel             (D, 4H)    float32
    recurrent_kernel   (H, 4H)    float32
    bias               (4H,)      float32          None: zeros
    h0, c0             (B, H)     as x             None: zeros
    mask               (B, T)     bool             None: every step counts
    dropout            (4, B, D)  float32          None: ones; gate g sees x * dropout[g]
    recurrent_dropout  (4, B, H)  float32          None: ones; gate g sees h * recurrent_dropout[g]
    ids                (B, T)     int32            the lookup's x is embeddings[ids]
    embeddings         (V, D)     float32

With ids, x may be given for its gradient alone, which then takes the place of that of the embeddings.

Results are outputs (B, T, H), h_T (B, H) and c_T (B, H). Where the mask is False, the states stay as they
were, and the output of the step is one of `MASKED_OUTPUTS`:

    previous_output  the output of the step before; zeros before the first step that counts
    previous_state   h of the step before; h0 before the first step that counts
    zero             zeros

With `go_backwards`, the inputs and the mask are read from the last step to the first, and outputs[:, k]
belongs to the k-th step in that order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

from cellerate import activations
from cellerate.activations import KERNEL_ACTIVATIONS as ACTIVATIONS
from cellerate.errors import ConfigError
from cellerate.kernels import native
from cellerate.program import MASKED_OUTPUTS

__all__ = ["ACTIVATIONS", "MASKED_OUTPUTS"]

# Stands for the dtypes in which the native core takes x and the states.
_STORED = ("stored",)


@dataclasses.dataclass(frozen=True)
class _Rule:
    """The requirements of an argument: its axes, the dtypes it may have, and how to fix a wrong shape."""

    axes: tuple[str, ...]
    dtypes: tuple[str, ...]
    fix: str


_STATE = _Rule(("B", "H"), _STORED, "Give one state for each row of the inputs, or None for zeros.")
_WEIGHTS_FIX = "give the weights of one layer, the gates i, f, c, o side by side on the last axis."
_DROPOUT_FIX = "Give one mask for each of the gates i, f, c, o, or None for no dropout."
_RULES = {
    "x": _Rule(("B", "T", "D"), _STORED, "Give one sequence of D features for each row of the batch."),
    "ids": _Rule(("B", "T"), ("int32",), "Give one sequence of ids for each row of the batch."),
    "embeddings": _Rule(
        ("V", "D"), ("float32",), "Give the embedding table whose rows are the inputs of this layer."
    ),
    "kernel": _Rule(
        ("D", "4H"),
        ("float32",),
        f"D is the width of the inputs and H the rows of recurrent_kernel: {_WEIGHTS_FIX}",
    ),
    "recurrent_kernel": _Rule(("H", "4H"), ("float32",), f"H is its number of rows: {_WEIGHTS_FIX}"),
    "bias": _Rule(
        ("4H",),
        ("float32",),
        "H is the rows of recurrent_kernel: give the bias of the same layer as one vector, or None if it has "
        "none.",
    ),
    "h0": _STATE,
    "c0": _STATE,
    "mask": _Rule(
        ("B", "T"), ("bool",), "Give one value for each step of each row, or None if every step counts."
    ),
    "dropout": _Rule(("4", "B", "D"), ("float32",), _DROPOUT_FIX),
    "recurrent_dropout": _Rule(("4", "B", "H"), ("float32",), _DROPOUT_FIX),
}
ARGUMENTS = tuple(_RULES)
"""The names of all arguments, in the native core's order."""
# recurrent_kernel defines H before others need it.
_CHECKED = tuple(dict.fromkeys(("x", "ids", "embeddings", "recurrent_kernel", *ARGUMENTS)))
BATCH_AXES = {
    name: rule.axes.index("B") for name, rule in _RULES.items() if "B" in rule.axes
} | dict.fromkeys(("outputs", "h_T", "c_T"), 0)
"""The axis of the batch in each argument and result that has one."""
_OPTIONAL = ("bias", "h0", "c0", "mask", "dropout", "recurrent_dropout")


def sizes_of(given: Mapping[str, Any]) -> tuple[int, int, int]:
    """(B, T, H) of the arguments of a call that are there, by name."""
    like = given["x"] if "x" in given else given["ids"]
    return like.shape[0], like.shape[1], given["recurrent_kernel"].shape[0]


class Array(Protocol):
    """Anything with a shape and a dtype: a NumPy array, or a framework's tensor of static shape."""

    @property
    def shape(self) -> Any:
        """The size of each axis."""

    @property
    def dtype(self) -> Any:
        """The type of the values."""


@dataclasses.dataclass(frozen=True)
class LstmOptions:
    """The options of one direction of one layer.

    Attributes:
        activation: For the candidate, and for c in the output h; as `activations.read` reads it.
        recurrent_activation: For the gates i, f and o; as `activations.read` reads it.
        go_backwards: Whether the steps are computed from the last to the first.
        masked_output: The output of a step where the mask is False; one of `MASKED_OUTPUTS`.

    Raises:
        ConfigError: An option has another value.
    """

    activation: str = "tanh"
    recurrent_activation: str = "sigmoid"
    go_backwards: bool = False
    masked_output: str = "previous_output"

    def __post_init__(self) -> None:
        for name in ("activation", "recurrent_activation"):
            try:
                activations.read(str(getattr(self, name)))
            except ConfigError as error:
                raise ConfigError(f"{name}: {error} Or leave the layer to Keras.") from None
        if not isinstance(self.go_backwards, bool):
            raise ConfigError(f"go_backwards is {self.go_backwards!r}; expected True or False.")
        if self.masked_output not in MASKED_OUTPUTS:
            raise ConfigError(
                f"masked_output is {self.masked_output!r}; expected one of {', '.join(MASKED_OUTPUTS)}."
            )


@dataclasses.dataclass(frozen=True)
class LstmShape:
    """The sizes of one call.

    Attributes:
        batch: B.
        steps: T.
        inputs: D.
        units: H.
    """

    batch: int
    steps: int
    inputs: int
    units: int


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arrays of one layer: `x`, or `ids` and `embeddings`, and its weights.

    Inputs that are looked up have no dropout: each row of the batch would have an x of its own, and no table could
    serve all. With `x` and `ids`, the gradient of `x` takes the place of that of `embeddings`, and the values of `x`
    are not read.

    Attributes:
        kernel: (D, 4H) float32.
        recurrent_kernel: (H, 4H) float32.
        bias: (4H,) float32, or None.
        x: (B, T, D) float32 or bfloat16, or None.
        ids: (B, T) int32, or None. Whether each is in [0, V) is a question of values, so the kernel checks it.
        embeddings: (V, D) float32, or None.
        h0: (B, H) of the dtype of x, or None.
        c0: (B, H) of the dtype of x, or None.
        mask: (B, T) bool, or None.
        dropout: (4, B, D) float32, or None.
        recurrent_dropout: (4, B, H) float32, or None.
    """

    kernel: Any
    recurrent_kernel: Any
    bias: Any = None
    x: Any = None
    ids: Any = None
    embeddings: Any = None
    h0: Any = None
    c0: Any = None
    mask: Any = None
    dropout: Any = None
    recurrent_dropout: Any = None


def check_shapes(arguments: Arguments) -> LstmShape:
    """The part of `validate` that checks only shapes, for a kernel that takes any dtype.

    Returns:
        The sizes; inputs is the width of x or of the table.

    Raises:
        ConfigError: A shape does not fit, a size is 0, or there is neither x nor ids with their table.
    """
    looked_up = arguments.ids is not None and arguments.embeddings is not None
    in_part = arguments.ids is not None or arguments.embeddings is not None
    if not looked_up and (in_part or arguments.x is None):
        raise ConfigError("expected x, or ids and embeddings; pass the others as None")
    if looked_up and arguments.dropout is not None:
        raise ConfigError("dropout: expected none with ids; look the rows up and pass them as x")
    optional = (*_OPTIONAL, "x") if looked_up else (*_OPTIONAL, "ids", "embeddings")
    sizes: dict[str, int] = {}
    for name in _CHECKED:
        array = getattr(arguments, name)
        if array is not None or name not in optional:
            _match(name, array, sizes)
    return LstmShape(batch=sizes["B"], steps=sizes["T"], inputs=sizes["D"], units=sizes["H"])


def validate(arguments: Arguments) -> LstmShape:
    """Checks the arguments of a kernel: their shapes and dtypes, never their values.

    Returns:
        The sizes; inputs is the width of x or of the table.

    Raises:
        ConfigError: A shape or a dtype does not fit, a size is 0, or there is neither x nor ids with their table.

    Example:
        >>> import numpy as np
        >>> x, kernel, recurrent_kernel = (np.ones(s, np.float32) for s in [(2, 7, 3), (3, 20), (5, 20)])
        >>> validate(Arguments(kernel, recurrent_kernel, x=x))
        LstmShape(batch=2, steps=7, inputs=3, units=5)
    """
    shape = check_shapes(arguments)
    given = {name: getattr(arguments, name) for name in _CHECKED if getattr(arguments, name) is not None}
    for name, array in given.items():
        found, allowed = _dtype_name(array), _RULES[name].dtypes
        if allowed is _STORED:
            # Without the core, NumPy computes in float32.
            allowed = native.storage_types() or ("float32",)
        if found not in allowed:
            raise ConfigError(
                f"{name} has dtype {found}; expected {' or '.join(allowed)}. Cast it to {allowed[0]}."
            )
    states = [name for name in ("x", "h0", "c0") if name in given]
    for name in states[1:]:
        found, leader = _dtype_name(given[name]), _dtype_name(given[states[0]])
        if found != leader:
            raise ConfigError(
                f"{name} has dtype {found}; expected {leader}, the dtype of {states[0]}. "
                "Cast one of them to the dtype of the other."
            )
    return shape


def _match(name: str, array: Array, sizes: dict[str, int]) -> None:
    """Checks a shape against its axes; an axis not yet in `sizes` gets its size from this shape."""
    axes, fix = _RULES[name].axes, _RULES[name].fix
    if not hasattr(array, "shape"):
        raise ConfigError(
            f"{name} is a {type(array).__name__}; expected an array of shape {_text(axes, {})}."
        )
    shape = tuple(array.shape)
    expected = _text(axes, sizes)
    if len(shape) != len(axes):
        raise ConfigError(f"{name} has shape {shape}; expected {expected}. {fix}")
    for axis, size in zip(axes, shape, strict=True):
        if axis in ("B", "T", "D", "H", "V") and axis not in sizes:
            if size < 1:
                raise ConfigError(
                    f"{name} has shape {shape}; expected {expected} with every size at least 1. Leave out "
                    "calls that have nothing to compute."
                )
            sizes[axis] = size
    if shape != tuple(_size(axis, sizes) for axis in axes):
        raise ConfigError(f"{name} has shape {shape}; expected {_text(axes, sizes)}. {fix}")


def _size(axis: str, sizes: dict[str, int]) -> int | None:
    if axis == "4":
        return 4
    if axis == "4H":
        return 4 * sizes["H"] if "H" in sizes else None
    return sizes.get(axis)


def _text(axes: tuple[str, ...], sizes: dict[str, int]) -> str:
    """The axes as a shape: "(D, 4H) = (3, 20)", or only the names while a size is not known."""

    def written(items: list[str]) -> str:
        return f"({', '.join(items)}{',' * (len(items) == 1)})"

    known = [_size(axis, sizes) for axis in axes]
    return written(list(axes)) + ("" if None in known else f" = {written([str(size) for size in known])}")


def _dtype_name(array: Array) -> str:
    """The dtype's bare name: NumPy has no bfloat16 dtype of its own, and torch writes torch.bfloat16."""
    return str(getattr(array.dtype, "name", array.dtype)).rpartition(".")[2]
