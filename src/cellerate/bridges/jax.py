"""The part of JAX that Cellerate needs: finding a GPU, compiling a step, its operations with gradients.

Only this module and `jax_cuda` import JAX; they are imported only where JAX is asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from cellerate.bridges import jax_cuda
from cellerate.bridges.jax_devices import by_rows
from cellerate.kernels import native
from cellerate.kernels.lstm.spec import BATCH_AXES, LstmOptions
from cellerate.kernels.operation import Codes, CoreOperation

_TARGET = "cellerate_call"
Step = Callable[[tuple[Any, ...], np.ndarray], tuple[tuple[Any, ...], np.ndarray | None]]


def gpu_available() -> bool:
    """True if JAX computes on a GPU here: the test Keras's cuDNN path makes."""
    return jax.default_backend() == "gpu"


def peak_gpu_memory_bytes() -> int | None:
    """The most memory that arrays of this process have taken on its GPU, in bytes; None without one."""
    facts = jax.local_devices()[0].memory_stats() if gpu_available() else None
    return None if facts is None else int(facts["peak_bytes_in_use"])


def gpu_number(array: Any = None) -> int:
    """The number of the GPU that holds an array, or else of the one that JAX computes on; 0 without one."""
    return jax_cuda.gpu_number(array)


def compile_step(function: Callable[..., Any], variables: Sequence[Any], *, loops: bool = False) -> Step:
    """Compiles a generation step; XLA compiles once for each shape of `ids`.

    Args:
        function: `(values, state, ids) -> (state, logits or None)`, where `values` stand for `variables` in
            order, `state` is a tuple of arrays and `ids` an int32 array. It must be pure.
        variables: The Keras variables it reads. Their values are arguments of the compiled program, so that
            further training takes effect at once and needs no new compilation.
        loops: Whether the function loops over many time steps; it makes no difference to JAX.

    Returns:
        `(state, ids) -> (state, logits)` with the logits as a NumPy array; the state stays on the device.
    """
    compiled = jax.jit(function)

    def run(state: tuple[Any, ...], ids: np.ndarray) -> tuple[tuple[Any, ...], np.ndarray | None]:
        state, logits = compiled([variable.value for variable in variables], state, ids)
        return state, None if logits is None else np.asarray(logits)

    return run


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a pure function of arrays, once for each of their shapes."""
    return jax.jit(function)


def eagerly() -> Any:
    """A context in which variables change at once, also while JAX traces a function."""
    return jax.ensure_compile_time_eval()


def in_place_changes(tensor: Any) -> int:
    """The number of times a tensor was changed in place: JAX's arrays never are."""
    return 0


def run(
    operation: CoreOperation, arrays: dict[str, Any], codes: Codes = (), *, training: bool = True
) -> tuple[Any, ...]:
    """An operation on the native core, inside or outside `jax.jit`, with gradients.

    Args:
        operation: The kernel to run.
        arrays: Its arguments that are there, by name.
        codes: Its options.
        training: For the other bridges; JAX itself knows whether gradients are needed.

    Returns:
        Its results. First derivatives in reverse mode are defined for its differentiable arguments.
    """
    _register()
    return _apply(_OnCore(operation, codes), arrays)


def cuda_lstm(arrays: dict[str, Any], options: LstmOptions, return_sequences: bool) -> tuple[Any, ...]:
    """One LSTM layer on Cellerate's kernels for NVIDIA GPUs, with gradients; as the LSTM of `run`, but in float16 too.

    h0 is required, because the results have its type.
    """
    jax_cuda.register()
    return _apply(_OnGpu(options, return_sequences), arrays)


def cuda_precision(dtype: str) -> str:
    """The precision in which the GPU kernels compute a dtype, by JAX's settings."""
    return jax_cuda.precision_of(jnp.dtype(dtype))


def can_measure(array: Any) -> bool:
    """True if something can be timed during a call with this array: in JAX always, even while it is traced."""
    return True


def blocking(
    function: Callable[..., Any], arrays: Sequence[tuple[np.ndarray, str]], training: bool, *, like: Any
) -> Callable[[], None]:
    """Compiles a function of the arrays into a call for timing, which returns only when the device has finished.

    Args:
        function: Returns one array.
        arrays: Each with the dtype in which the function gets it.
        training: Whether the gradients of the arrays are computed, too.
        like: An array on the device to time.
    """

    def total(*given: Any) -> Any:
        return function(*given).astype(np.float32).sum()

    compiled = jax.jit(jax.grad(total, tuple(range(len(arrays)))) if training else total)
    # Keeps these arrays out of whatever is being traced around this call.
    with jax.ensure_compile_time_eval():
        given = [jax.device_put(jnp.asarray(array, dtype), jax_cuda.gpu(like)) for array, dtype in arrays]

    def work() -> None:
        with jax.ensure_compile_time_eval():
            jax.block_until_ready(compiled(*given))

    return work


def computed_at_once(functions: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return the results of functions without arguments, computed in one compiled program."""
    return jax.jit(lambda: [function() for function in functions])()


@functools.cache
def _register() -> None:
    jax.ffi.register_ffi_target(_TARGET, native.core().xla_call(), platform="cpu")


class _Layer(Protocol):
    """A computation of a layer; equal ones compute the same."""

    @property
    def results(self) -> tuple[str, ...]:
        """The names of what the layer returns."""

    def forward(self, given: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
        """The results by name, with `keep` also what backward needs."""

    def kept(self, done: Mapping[str, Any]) -> dict[str, Any]:
        """The results of `forward` that backward needs."""

    def backward(
        self, given: Mapping[str, Any], kept: Mapping[str, Any], cotangents: Sequence[Any]
    ) -> dict[str, Any]:
        """The gradients by the names of the arguments."""


@dataclasses.dataclass(frozen=True)
class _OnCore:
    operation: CoreOperation
    codes: Codes

    @property
    def results(self) -> tuple[str, ...]:
        return self.operation.results

    def forward(self, given: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
        return by_rows(functools.partial(self._forward, keep=keep), given, self._rows, given)

    def kept(self, done: Mapping[str, Any]) -> dict[str, Any]:
        return {name: done[name] for name in self.operation.kept}

    def backward(
        self, given: Mapping[str, Any], kept: Mapping[str, Any], cotangents: Sequence[Any]
    ) -> dict[str, Any]:
        named = {f"d_{name}": d for name, d in zip(self.results, cotangents, strict=True)}
        found = by_rows(self._backward, {**given, **kept, **named}, self._rows, given)
        return {name.removeprefix("d_"): gradient for name, gradient in found.items()}

    @property
    def _rows(self) -> dict[str, int]:
        return {**_with_cotangents(self.operation.batch_axes), "reserve": 0}

    def _forward(self, given: Mapping[str, Any], pieces: int, *, keep: bool) -> dict[str, Any]:
        """The reserve is (pieces, bytes)."""
        dtype = self.operation.like(given).dtype
        shapes = self.operation.shapes(given, self.codes)
        results = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes.items()}
        if not (keep and self.operation.sizes):
            return self._call("forward", given, results)
        size = self._reserve_bytes(given, 1)
        found = self._call("forward", given, {**results, "reserve": jax.ShapeDtypeStruct((size,), np.uint8)})
        # Pieces, each on its own, may need more in sum.
        shape = pieces, self._reserve_bytes(given, pieces)
        found["reserve"] = jnp.pad(found["reserve"], (0, math.prod(shape) - size)).reshape(shape)
        return found

    def _backward(self, given: Mapping[str, Any], pieces: int) -> dict[str, Any]:
        if "reserve" in given:
            given = {**given, "reserve": given["reserve"].reshape(-1)[: self._reserve_bytes(given, 1)]}
        wanted = {f"d_{name}": given[name] for name in self.operation.with_gradients(given)}
        results = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in wanted.items()}
        return self._call("backward", given, results)

    def _reserve_bytes(self, given: Mapping[str, Any], pieces: int) -> int:
        """The bytes that one piece of the rows keeps for backward."""
        axes = self.operation.batch_axes
        piece = {
            name: jax.ShapeDtypeStruct(_divided(array.shape, axes.get(name), pieces), array.dtype)
            for name, array in given.items()
        }
        return self.operation.reserve_bytes(piece, self.codes, str(self.operation.like(given).dtype))

    def _call(self, direction: str, given: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
        """Calls the core; `results` has the shapes and dtypes of the results."""
        name = f"{self.operation.name}_{direction}"
        _, arguments, written, _ = native.core().CALLS[name]
        there = [each for each in written if each in results]
        values = jax.ffi.ffi_call(_TARGET, [results[each] for each in there], vmap_method="sequential")(
            *[given[each] for each in arguments if each in given],
            call=name,
            options=np.array(self.codes, np.int64),
            arguments=_present(arguments, given),
            results=_present(written, results),
        )
        return dict(zip(there, values, strict=True))


def _present(names: Sequence[str], there: Mapping[str, Any]) -> np.int64:
    return np.int64(sum(1 << n for n, name in enumerate(names) if name in there))


def _divided(shape: tuple[int, ...], axis: int | None, parts: int) -> tuple[int, ...]:
    return tuple(size // parts if n == axis else size for n, size in enumerate(shape))


def _with_cotangents(axes: Mapping[str, int]) -> dict[str, int]:
    return {**axes, **{f"d_{name}": axis for name, axis in axes.items()}}


@dataclasses.dataclass(frozen=True)
class _OnGpu:
    options: LstmOptions
    return_sequences: bool
    results = ("outputs", "h_T", "c_T")

    def forward(self, given: Mapping[str, Any], *, keep: bool) -> dict[str, Any]:
        return by_rows(
            lambda given, _: jax_cuda.forward(self._call(given), keep=keep), given, self._rows, given
        )

    def kept(self, done: Mapping[str, Any]) -> dict[str, Any]:
        needless = {"h_T", "c_T"} | (set() if self.return_sequences else {"outputs"})
        return {name: array for name, array in done.items() if name not in needless}

    def backward(
        self, given: Mapping[str, Any], kept: Mapping[str, Any], cotangents: Sequence[Any]
    ) -> dict[str, Any]:
        named = {f"d_{name}": d for name, d in zip(self.results, cotangents, strict=True)}

        def call(every: Mapping[str, Any], _: int) -> dict[str, Any]:
            found = jax_cuda.backward(self._call(every), every, *[every[name] for name in named])
            return {f"d_{name}": gradient for name, gradient in found.items()}

        found = by_rows(call, {**given, **kept, **named}, self._rows, given)
        return {name.removeprefix("d_"): gradient for name, gradient in found.items()}

    @property
    def _rows(self) -> dict[str, int]:
        return {**_with_cotangents(BATCH_AXES), **dict.fromkeys(("gates", "cells", "states"), 0)}

    def _call(self, given: Mapping[str, Any]) -> jax_cuda.Call:
        return jax_cuda.Call(given, self.options, self.return_sequences)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(layer: _Layer, given: dict[str, Any]) -> tuple[Any, ...]:
    done = layer.forward(given, keep=False)
    return tuple(done[name] for name in layer.results)


def _forward(layer: _Layer, given: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
    done = layer.forward(given, keep=True)
    return tuple(done[name] for name in layer.results), (given, layer.kept(done))


def _backward(layer: _Layer, saved: Any, cotangents: tuple[Any, ...]) -> tuple[dict[str, Any]]:
    given, kept = saved
    found = layer.backward(given, kept, cotangents)
    # None stands for no gradient, as for a mask.
    return ({name: found.get(name) for name in given},)


_apply.defvjp(_forward, _backward)
