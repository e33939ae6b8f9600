"""The native core on NumPy arrays: one LSTM layer, and a dense one, forward and backward, on the CPU.

A module of its own because it is the only door to the extension `cellerate.kernels._core`: the bridges, the
runtime and the tests go through it, and a machine without the extension hears of that here. It imports no
framework. bfloat16 arrays are those of `ml_dtypes`, which every framework that has the type brings along.
"""

import dataclasses
import functools
import importlib
from types import ModuleType
from typing import Any

import numpy as np

from cellerate.errors import BackendError, ConfigError
from cellerate.kernels.spec import (
    ACTIVATIONS,
    MASKED_OUTPUTS,
    LstmOptions,
    LstmShape,
    validate,
    validate_lookup,
)

Codes = tuple[int, int, int, bool, bool]


@functools.cache
def missing() -> str | None:
    """Why the native core is not there, or None if it is."""
    try:
        importlib.import_module("cellerate.kernels._core")
    except ImportError as error:
        return (
            f"the native core is not installed ({error}): Cellerate was installed where it could not be compiled. "
            "Install a C++20 compiler (Debian, Ubuntu: apt-get install g++ python3-dev) and Cellerate again."
        )
    return None


@functools.cache
def core() -> ModuleType:
    """The extension module.

    Raises:
        BackendError: It is not installed.
        ConfigError: `CELLERATE_TARGET` names a target that is unknown or cannot run here.
    """
    reason = missing()
    if reason is not None:
        raise BackendError(reason)
    module = importlib.import_module("cellerate.kernels._core")
    try:
        module.target()
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return module


def target() -> str:
    """The instruction set in use: "avx512bf16", "avx512", "avx2", "neon" or "scalar"."""
    return str(core().target())


def set_target(name: str) -> None:
    """Chooses another instruction set for all calls from now on, one of `available_targets`."""
    try:
        core().set_target(name)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def available_targets() -> list[str]:
    """The instruction sets that this machine and build can run, fastest first."""
    return list(core().available_targets())


def num_threads() -> int:
    """How many threads a call may use: `set_num_threads`, else `CELLERATE_THREADS`, else one a physical core."""
    try:
        return int(core().thread_count())
    except ValueError as error:
        raise ConfigError(str(error)) from None


def set_num_threads(count: int) -> None:
    """Sets how many threads the native core may use, in this process and from now on.

    Args:
        count: At least 1.

    Raises:
        ConfigError: `count` is not a whole number from 1 to 1024.
        BackendError: The core is not installed.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise ConfigError(f"count: expected a whole number of threads, got {count!r}")
    try:
        core().set_thread_count(count)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"count: expected a number of threads from 1 to 1024, got {count}") from error


def measure_peak(*, bfloat16: bool = False) -> float:
    """Operations a second that the multiply-add units allow on `num_threads` threads; takes some tenths of a second.

    A multiply-add counts as two. On a target without bfloat16 products, `bfloat16` measures those of float32.
    """
    return max(float(core().measure_peak(bfloat16, num_threads())) for _ in range(3))


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
    """The way back: the options, and whether all outputs are returned."""
    activation, recurrent_activation, masked_output, go_backwards, return_sequences = codes
    options = LstmOptions(
        activation=ACTIVATIONS[activation],
        recurrent_activation=ACTIVATIONS[recurrent_activation],
        go_backwards=go_backwards,
        masked_output=MASKED_OUTPUTS[masked_output],
    )
    return options, return_sequences


def reserve_bytes(
    shape: tuple[int, int, int], *, bfloat16: bool, masked: bool, return_sequences: bool
) -> int:
    """How much forward keeps for backward, for a shape (B, T, H)."""
    return int(core().reserve_bytes(*shape, bfloat16, masked, return_sequences))


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array on a cache line of its own; TensorFlow takes over such arrays without a copy."""
    bytes_needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.empty(bytes_needed + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + bytes_needed].view(dtype).reshape(shape)


@dataclasses.dataclass(frozen=True)
class Forward:
    """What `forward` gives.

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
    """The arrays of one layer, in the shapes and types of `cellerate.kernels.spec`; either `x` or `ids`."""

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
        return_sequences: Whether to return all outputs or the last.
        keep: Whether to keep what `backward` needs.
        dtype: With `ids`, the type of the results, float32 or bfloat16; otherwise that of `x`.

    Raises:
        ConfigError: A shape or type is wrong, or an id is not a row of the embeddings.
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
            bfloat16=storage.itemsize == 2,
            masked=given.mask is not None,
            return_sequences=return_sequences,
        )
        reserve = empty((size,), np.uint8)
    _call("forward", codes(options, return_sequences), _inputs(given), (outputs, h_T, c_T, reserve))
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
        d_outputs: The cotangent of `outputs`; None for zeros, as for the other two.
        d_h_T: The cotangent of `h_T`.
        d_c_T: The cotangent of `c_T`.
        return_sequences: As `forward` was given it.

    Returns:
        The gradient of each argument that was given, by its name: x or embeddings, kernel, recurrent_kernel,
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
    _call("backward", codes(options, return_sequences), (*_inputs(given), *extra), tuple(gradients.values()))
    return {name: array for name, array in gradients.items() if array is not None}


def dense(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """A dense layer, x·kernel + bias.

    Args:
        x: (M, K) float32 or bfloat16.
        kernel: (K, N) float32.
        bias: (N,) float32, or None.

    Returns:
        (M, N), of the type of x.

    Raises:
        ConfigError: A shape or type is wrong.
        BackendError: The core is not installed.
    """
    given = [None if a is None else np.ascontiguousarray(a) for a in (x, kernel, bias)]
    y = empty((*x.shape[:1], *kernel.shape[1:]), x.dtype)
    _call("dense_forward", None, tuple(given), (y,))
    return y


def dense_backward(
    x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None, d_y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The gradients of `dense` for x, kernel and bias (None without one), given the cotangent d_y (M, N)."""
    given = [None if a is None else np.ascontiguousarray(a) for a in (x, kernel, bias, d_y)]
    results = tuple(None if a is None else empty(a.shape, a.dtype) for a in given[:3])
    _call("dense_backward", None, tuple(given), results)
    d_x, d_kernel, d_bias = results
    assert d_x is not None and d_kernel is not None  # noqa: S101 (as x and kernel are)
    return d_x, d_kernel, d_bias


def _arrays(arguments: Arguments) -> Arguments:
    """The arguments as dense arrays."""
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


def _call(name: str, options: Codes | None, inputs: tuple[Any, ...], results: tuple[Any, ...]) -> None:
    first = () if options is None else (options,)
    try:
        getattr(core(), name)(*first, tuple(map(_plain, inputs)), tuple(map(_plain, results)))
    except (ValueError, IndexError) as error:
        raise ConfigError(str(error)) from None


def _plain(array: np.ndarray | None) -> np.ndarray | None:
    """An array as the core takes it: NumPy cannot hand over bfloat16 as such."""
    return array.view(np.uint16) if array is not None and array.dtype.name == "bfloat16" else array
