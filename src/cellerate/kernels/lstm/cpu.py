"""One LSTM layer on the native core, forward and backward, on NumPy arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from cellerate.kernels import codes as coding, operation
from cellerate.kernels.lstm.spec import ARGUMENTS, BATCH_AXES, Arguments, LstmOptions, sizes_of, validate
from cellerate.kernels.native import core
from cellerate.kernels.operation import Codes, CoreOperation, Given


def codes(options: LstmOptions, return_sequences: bool) -> Codes:
    """The options as the native core takes them."""
    return (
        *coding.of_activation(options.activation),
        *coding.of_activation(options.recurrent_activation),
        coding.of_masked_output(options.masked_output),
        int(options.go_backwards),
        int(return_sequences),
    )


def options_of(codes: Codes) -> tuple[LstmOptions, bool]:
    """The inverse of `codes`: the options, and whether all outputs are returned."""
    *both, masked_output, go_backwards, return_sequences = codes
    half = len(both) // 2
    options = LstmOptions(
        activation=coding.activation_of(tuple(both[:half])),
        recurrent_activation=coding.activation_of(tuple(both[half:])),
        go_backwards=bool(go_backwards),
        masked_output=coding.masked_output_of(masked_output),
    )
    return options, bool(return_sequences)


def _shapes(given: Given, codes: Codes) -> dict[str, tuple[int, ...]]:
    batch, steps, units = sizes_of(given)
    outputs = (batch, steps, units) if codes[-1] else (batch, units)
    return {"outputs": outputs, "h_T": (batch, units), "c_T": (batch, units)}


def _check(given: Given) -> None:
    validate(Arguments(**given))


LSTM = CoreOperation(
    name="lstm",
    arguments=ARGUMENTS,
    differentiable=("x", "embeddings", "kernel", "recurrent_kernel", "bias", "h0", "c0"),
    results=("outputs", "h_T", "c_T"),
    typed_by=("x", "h0"),
    shapes=_shapes,
    batch_axes=BATCH_AXES,
    reached_through={"embeddings": "x"},
    saved=("outputs",),
    sizes=lambda given: (*sizes_of(given), int("mask" in given)),
    check=_check,
)


def reserve_bytes(shape: tuple[int, int, int], dtype: str, *, masked: bool, return_sequences: bool) -> int:
    """The number of bytes `forward` keeps for `backward`, for a shape (B, T, H) and h of a dtype."""
    options = codes(LstmOptions(), return_sequences)
    return int(core().reserve_bytes("lstm_forward", dtype, options, (*shape, int(masked))))


@dataclasses.dataclass(frozen=True)
class ForwardResults:
    """The results of `forward`.

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


def forward(
    arguments: Arguments,
    options: LstmOptions | None = None,
    *,
    return_sequences: bool = True,
    keep: bool = True,
    dtype: Any = None,
) -> ForwardResults:
    """Runs one layer.

    Args:
        arguments: The arrays; copied where they are not contiguous.
        options: Activations, direction and masked outputs.
        return_sequences: Whether to return all outputs or only the last.
        keep: Whether to keep what `backward` needs.
        dtype: The dtype of the results with `ids` and without `h0`; otherwise they have that of x or h0.

    Raises:
        ConfigError: A shape or dtype is wrong, or an id is not a row of the embeddings.
        BackendError: The core is not installed.
        MemoryError: The working memory could not be allocated.
    """
    found = operation.forward(
        LSTM,
        _given(arguments),
        codes(options or LstmOptions(), return_sequences),
        keep=keep,
        dtype=dtype,
    )
    return ForwardResults(found["outputs"], found["h_T"], found["c_T"], found.get("reserve"))


def backward(
    arguments: Arguments,
    done: ForwardResults,
    options: LstmOptions | None = None,
    *,
    d_outputs: np.ndarray | None = None,
    d_h_T: np.ndarray | None = None,
    d_c_T: np.ndarray | None = None,
    return_sequences: bool = True,
) -> dict[str, np.ndarray]:
    """The gradients of one layer.

    Args:
        arguments: As in the call of `forward`.
        done: What `forward` gave, with its reserve.
        options: As in the call of `forward`.
        d_outputs: The cotangent of `outputs`. Each of the three may be None for zeros.
        d_h_T: The cotangent of `h_T`.
        d_c_T: The cotangent of `c_T`.
        return_sequences: As in the call of `forward`.

    Returns:
        The gradients of the arguments that were given, by name: x or embeddings, kernel, recurrent_kernel,
        bias, h0, c0.

    Raises:
        ConfigError, BackendError, MemoryError: As `forward`.
    """
    reserve = {} if done.reserve is None else {"reserve": done.reserve}
    cotangents = {"outputs": d_outputs, "h_T": d_h_T, "c_T": d_c_T}
    return operation.backward(
        LSTM,
        _given(arguments),
        {"outputs": done.outputs, **reserve},
        {name: array for name, array in cotangents.items() if array is not None},
        codes(options or LstmOptions(), return_sequences),
    )


def _given(arguments: Arguments) -> dict[str, Any]:
    """The arguments that are there."""
    return {name: array for name, array in vars(arguments).items() if array is not None}
