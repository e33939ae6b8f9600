"""One LSTM layer on the native core, forward and backward, on NumPy arrays."""

import dataclasses
from typing import Any

import numpy as np

from cellerate.errors import ConfigError
from cellerate.kernels.lstm.spec import (
    ACTIVATIONS,
    MASKED_OUTPUTS,
    LstmOptions,
    LstmShape,
    validate,
    validate_lookup,
)
from cellerate.kernels.native import call, core, empty

Codes = tuple[int, int, int, bool, bool]


def codes(options: LstmOptions, return_sequences: bool) -> Codes:
    """The options as the native core takes them."""
    return (
        ACTIVATIONS.index(options.activation),
        ACTIVATIONS.index(options.recurrent_activation),
        MASKED_OUTPUTS.index(options.masked_output),
        options.go_backwards,
        return_sequences,
    )


def options_of(codes: Codes) -> tuple[LstmOptions, bool]:
    """The inverse of `codes`: the options, and whether all outputs are returned."""
    activation, recurrent_activation, masked_output, go_backwards, return_sequences = codes
    options = LstmOptions(
        activation=ACTIVATIONS[activation],
        recurrent_activation=ACTIVATIONS[recurrent_activation],
        go_backwards=go_backwards,
        masked_output=MASKED_OUTPUTS[masked_output],
    )
    return options, return_sequences


def reserve_bytes(shape: tuple[int, int, int], dtype: str, *, masked: bool, return_sequences: bool) -> int:
    """How many bytes `forward` keeps for `backward`, for a shape (B, T, H) and h in "float32" or "bfloat16"."""
    return int(core().reserve_bytes(*shape, dtype == "bfloat16", masked, return_sequences))


@dataclasses.dataclass(frozen=True)
class Forward:
    """What `forward` returns.

    Attributes:
        outputs: (B, T, H), or (B, H) without `return_sequences`.
        h_T: (B, H).
        c_T: (B, H).
        reserve: What `backward` needs, or None.
    """

    outputs: np.ndarray
    h_T: np.ndarray
    c_T: np.ndarray
    reserve: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arrays of one layer, shaped and typed as `kernels.lstm.spec` says; either `x` or `ids`."""

    kernel: np.ndarray
    recurrent_kernel: np.ndarray
    bias: np.ndarray | None = None
    x: np.ndarray | None = None
    ids: np.ndarray | None = None
    embeddings: np.ndarray | None = None
    h0: np.ndarray | None = None
    c0: np.ndarray | None = None
    mask: np.ndarray | None = None
    dropout: np.ndarray | None = None
    recurrent_dropout: np.ndarray | None = None


def forward(
    arguments: Arguments,
    options: LstmOptions | None = None,
    *,
    return_sequences: bool = True,
    keep: bool = True,
    dtype: Any = None,
) -> Forward:
    """Runs one layer.

    Args:
        arguments: The arrays; copied where they are not contiguous.
        options: Activations, direction and masked outputs.
        return_sequences: Whether to return all outputs or only the last.
        keep: Whether to keep what `backward` needs.
        dtype: The dtype of the results with `ids`: float32 or bfloat16. With `x`, results have its dtype.

    Raises:
        ConfigError: A shape or dtype is wrong, or an id is not a row of the embeddings.
        BackendError: The core is not installed.
        MemoryError: The working memory could not be allocated.
    """
    options = options or LstmOptions()
    given = _arrays(arguments)
    shape = _validate(given)
    storage = np.dtype(given.x.dtype if given.x is not None else dtype or np.float32)
    batch, steps, units = shape.batch, shape.steps, shape.units
    outputs = empty((batch, steps, units) if return_sequences else (batch, units), storage)
    h_T, c_T = empty((batch, units), storage), empty((batch, units), storage)
    reserve = None
    if keep:
        size = reserve_bytes(
            (batch, steps, units),
            storage.name,
            masked=given.mask is not None,
            return_sequences=return_sequences,
        )
        reserve = empty((size,), np.uint8)
    call("forward", _inputs(given), (outputs, h_T, c_T, reserve), codes(options, return_sequences))
    return Forward(outputs, h_T, c_T, reserve)


def backward(
    arguments: Arguments,
    done: Forward,
    options: LstmOptions | None = None,
    *,
    d_outputs: np.ndarray | None = None,
    d_h_T: np.ndarray | None = None,
    d_c_T: np.ndarray | None = None,
    return_sequences: bool = True,
) -> dict[str, np.ndarray]:
    """The gradients of one layer.

    Args:
        arguments: As `forward` was given them.
        done: What `forward` gave, with its reserve.
        options: As `forward` was given them.
        d_outputs: The cotangent of `outputs`. Each of the three may be None for zeros.
        d_h_T: The cotangent of `h_T`.
        d_c_T: The cotangent of `c_T`.
        return_sequences: As `forward` was given it.

    Returns:
        The gradients of the arguments that were given, by name: x or embeddings, kernel, recurrent_kernel,
        bias, h0, c0.

    Raises:
        ConfigError, BackendError, MemoryError: As `forward`.
    """
    options = options or LstmOptions()
    given = _arrays(arguments)
    like = {
        "x": given.x,
        "embeddings": given.embeddings,
        "kernel": given.kernel,
        "recurrent_kernel": given.recurrent_kernel,
        "bias": given.bias,
        "h0": given.h0,
        "c0": given.c0,
    }
    gradients = {
        name: None if array is None else empty(array.shape, array.dtype) for name, array in like.items()
    }
    cotangents = [
        None if array is None else np.ascontiguousarray(array) for array in (d_outputs, d_h_T, d_c_T)
    ]
    outputs = done.outputs if return_sequences else None
    extra = (outputs, done.reserve, *cotangents)
    call("backward", (*_inputs(given), *extra), tuple(gradients.values()), codes(options, return_sequences))
    return {name: array for name, array in gradients.items() if array is not None}


def _arrays(arguments: Arguments) -> Arguments:
    """The arguments as contiguous arrays."""
    dense: dict[str, Any] = {}
    for field in dataclasses.fields(arguments):
        array = getattr(arguments, field.name)
        dense[field.name] = None if array is None else np.ascontiguousarray(array)
    return Arguments(**dense)


def _validate(given: Arguments) -> LstmShape:
    others = {name: getattr(given, name) for name in ("bias", "h0", "c0", "mask", "recurrent_dropout")}
    weights = (given.kernel, given.recurrent_kernel)
    if given.ids is not None and given.embeddings is not None and given.x is None:
        return validate_lookup(given.ids, given.embeddings, *weights, **others)
    if given.x is None or given.ids is not None or given.embeddings is not None:
        raise ConfigError("expected either x, or ids and embeddings; pass the others as None")
    return validate(given.x, *weights, **others, dropout=given.dropout)


def _inputs(given: Arguments) -> tuple[np.ndarray | None, ...]:
    return tuple(getattr(given, name) for name in core().FORWARD_ARGUMENTS)
