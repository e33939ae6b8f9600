"""What Cellerate needs from JAX itself: whether there is a GPU, compiling a generation step, the LSTM as an operator.

Only this module and `jax_cuda` import JAX; they are imported only where JAX is asked for.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cellerate.bridges import jax_cuda
from cellerate.kernels import native
from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.spec import LstmOptions

# Options, whether all outputs are returned, and whether the GPU kernels compute.
Static = tuple[LstmOptions, bool, bool]
Step = Callable[[tuple[Any, ...], np.ndarray], tuple[tuple[Any, ...], np.ndarray | None]]


def gpu_available() -> bool:
    """Whether JAX computes on a GPU here: the test Keras's cuDNN path makes."""
    return jax.default_backend() == "gpu"


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
    del loops
    compiled = jax.jit(function)

    def run(state: tuple[Any, ...], ids: np.ndarray) -> tuple[tuple[Any, ...], np.ndarray | None]:
        state, logits = compiled([variable.value for variable in variables], state, ids)
        return state, None if logits is None else np.asarray(logits)

    return run


def in_place_changes(tensor: Any) -> int:
    """How often a tensor was changed in place: JAX's arrays never are."""
    del tensor
    return 0


def lstm(
    arrays: dict[str, Any], options: LstmOptions, return_sequences: bool, *, training: bool = True
) -> tuple[Any, Any, Any]:
    """One LSTM layer on the native core, inside or outside `jax.jit`, with gradients.

    Args:
        arrays: The arguments of `cellerate.kernels.lstm.spec` that are there, by name: x, or ids and embeddings;
            kernel, recurrent_kernel, bias, h0, c0, mask, recurrent_dropout. With ids, h0 is required, because
            the results have its type.
        options: Activations, direction and masked outputs.
        return_sequences: Whether to return all outputs or only the last.
        training: For the other bridges; JAX itself knows whether gradients are needed.

    Returns:
        outputs (B, T, H) or (B, H), h_T and c_T (B, H), of the type of x. First derivatives in reverse mode
        are defined for x or embeddings, kernel, recurrent_kernel, bias, h0 and c0.
    """
    del training
    _register()
    return _lstm((options, return_sequences, False), arrays)


def cuda_lstm(arrays: dict[str, Any], options: LstmOptions, return_sequences: bool) -> tuple[Any, Any, Any]:
    """One LSTM layer on Cellerate's kernels for NVIDIA GPUs, with gradients; as `lstm`, but in float16 too.

    h0 is required, because the results have its type.
    """
    jax_cuda.register()
    return _lstm((options, return_sequences, True), arrays)


def cuda_precision(dtype: str) -> str:
    """The precision in which the GPU kernels compute a dtype, by JAX's settings."""
    return jax_cuda.precision_of(jnp.dtype(dtype))


def can_measure(array: Any) -> bool:
    """Whether something can be timed during a call with this array: in JAX always, even while it is traced."""
    del array
    return True


def blocking(
    function: Callable[..., Any], arrays: Sequence[tuple[np.ndarray, str]], training: bool, *, like: Any
) -> Callable[[], None]:
    """Compiles a function of the arrays into a call for timing, which returns only when the device has finished.

    Args:
        function: Gives one array.
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


@functools.cache
def _register() -> None:
    core = native.core()
    handlers = {
        "lstm_forward": core.xla_forward(),
        "lstm_backward": core.xla_backward(),
        "dense_forward": core.xla_dense_forward(),
        "dense_backward": core.xla_dense_backward(),
    }
    for name, handler in handlers.items():
        jax.ffi.register_ffi_target(f"cellerate_{name}", handler, platform="cpu")


def _call(name: str, static: Static, given: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """Calls the core; `results` has the shapes and types of the wanted results."""
    options, return_sequences, _ = static
    core = native.core()
    names = core.FORWARD_ARGUMENTS if name == "forward" else core.BACKWARD_ARGUMENTS
    result_names = core.FORWARD_RESULTS if name == "forward" else core.BACKWARD_RESULTS
    activation, recurrent_activation, masked_output, go_backwards, _ = cpu.codes(options, return_sequences)
    call = jax.ffi.ffi_call(
        f"cellerate_lstm_{name}",
        [results[each] for each in result_names if each in results],
        vmap_method="sequential",
    )
    values = call(
        *[given[each] for each in names if each in given],
        activation=np.int64(activation),
        recurrent_activation=np.int64(recurrent_activation),
        masked_output=np.int64(masked_output),
        go_backwards=go_backwards,
        return_sequences=return_sequences,
        arguments=np.int64(sum(1 << n for n, each in enumerate(names) if each in given)),
        results=np.int64(sum(1 << n for n, each in enumerate(result_names) if each in results)),
    )
    return dict(zip([each for each in result_names if each in results], values, strict=True))


def _forward(static: Static, given: dict[str, Any], *, keep: bool) -> dict[str, Any]:
    options, return_sequences, cuda = static
    if cuda:
        return jax_cuda.forward(jax_cuda.Call(given, options, return_sequences), keep=keep)
    like = given["x"] if "x" in given else given["ids"]
    dtype = given["x"].dtype if "x" in given else given["h0"].dtype
    batch, steps, units = like.shape[0], like.shape[1], given["recurrent_kernel"].shape[0]
    state = jax.ShapeDtypeStruct((batch, units), dtype)
    results = {"outputs": state, "h_T": state, "c_T": state}
    if return_sequences:
        results["outputs"] = jax.ShapeDtypeStruct((batch, steps, units), dtype)
    if keep:
        size = cpu.reserve_bytes(
            (batch, steps, units),
            str(dtype),
            masked="mask" in given,
            return_sequences=return_sequences,
        )
        results["reserve"] = jax.ShapeDtypeStruct((size,), np.uint8)
    return _call("forward", static, given, results)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _lstm(static: Static, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    done = _forward(static, given, keep=False)
    return done["outputs"], done["h_T"], done["c_T"]


def _lstm_forward(static: Static, given: dict[str, Any]) -> tuple[tuple[Any, Any, Any], Any]:
    done = _forward(static, given, keep=True)
    needless = {"h_T", "c_T"} | (set() if static[1] else {"outputs"})
    kept = {name: array for name, array in done.items() if name not in needless}
    return (done["outputs"], done["h_T"], done["c_T"]), (given, kept)


def _lstm_backward(static: Static, saved: Any, cotangents: tuple[Any, Any, Any]) -> tuple[dict[str, Any]]:
    given, kept = saved
    options, return_sequences, cuda = static
    if cuda:
        call = jax_cuda.Call(given, options, return_sequences)
        found = jax_cuda.backward(call, kept, *cotangents)
        # None stands for no gradient, as for a mask.
        return ({name: found.get(name) for name in given},)
    wanted = ("x", "embeddings", "kernel", "recurrent_kernel", "bias", "h0", "c0")
    results = {
        f"d_{name}": jax.ShapeDtypeStruct(given[name].shape, given[name].dtype)
        for name in wanted
        if name in given
    }
    named = dict(zip(("d_outputs", "d_h_T", "d_c_T"), cotangents, strict=True))
    gradients = _call("backward", static, {**given, **kept, **named}, results)
    return ({name: gradients.get(f"d_{name}") for name in given},)


_lstm.defvjp(_lstm_forward, _lstm_backward)


def dense(x: Any, kernel: Any, bias: Any | None) -> Any:
    """A dense layer on the native core, with gradients: x (M, K), kernel (K, N), bias (N,) or None → (M, N)."""
    _register()
    return _dense(x, kernel, bias)


def _dense_call(name: str, inputs: tuple[Any, ...], results: list[Any]) -> Any:
    call = jax.ffi.ffi_call(f"cellerate_dense_{name}", results, vmap_method="sequential")
    there = [each is not None for each in inputs]
    wanted = 1 if name == "forward" else 0b111 if there[2] else 0b011
    return call(
        *[each for each in inputs if each is not None],
        arguments=np.int64(sum(1 << n for n, each in enumerate(there) if each)),
        results=np.int64(wanted),
    )


@functools.partial(jax.custom_vjp)
def _dense(x: Any, kernel: Any, bias: Any | None) -> Any:
    (y,) = _dense_call(
        "forward", (x, kernel, bias), [jax.ShapeDtypeStruct((x.shape[0], kernel.shape[1]), x.dtype)]
    )
    return y


def _dense_forward(x: Any, kernel: Any, bias: Any | None) -> tuple[Any, Any]:
    return _dense(x, kernel, bias), (x, kernel, bias)


def _dense_backward(saved: Any, d_y: Any) -> tuple[Any, ...]:
    results = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in saved if each is not None]
    gradients = _dense_call("backward", (*saved, d_y), results)
    return (*gradients, None)[:3]


_dense.defvjp(_dense_forward, _dense_backward)
