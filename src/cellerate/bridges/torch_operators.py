"""The LSTM and the dense layer as operators of torch, on the native core and on Cellerate's kernels for GPUs.

This module tells torch the operators' shapes, for its compiler, and how to differentiate them. The computation is in
the native core and in `torch_cuda`.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cellerate.bridges import torch_cuda
from cellerate.kernels import native
from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.spec import LstmOptions
from cellerate.machine.environment import processors

# The arguments of an LSTM operator; `_DIFFERENTIABLE` are those with gradients.
ARGUMENTS = (
    "x",
    "ids",
    "embeddings",
    "kernel",
    "recurrent_kernel",
    "bias",
    "h0",
    "c0",
    "mask",
    "dropout",
    "recurrent_dropout",
)
_DIFFERENTIABLE = ("x", "embeddings", "kernel", "recurrent_kernel", "bias", "h0", "c0")
Operator = Callable[..., tuple[torch.Tensor, ...]]


def lstm(
    arrays: dict[str, torch.Tensor], options: LstmOptions, return_sequences: bool, *, training: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One LSTM layer on the native core, with gradients.

    Args:
        arrays: The arguments of `cellerate.kernels.lstm.spec` that are there, by name: x, or ids and embeddings;
            kernel, recurrent_kernel, bias, h0, c0, mask, dropout, recurrent_dropout. h0 is required.
        options: Activations, direction and masked outputs.
        return_sequences: Whether to return all outputs or only the last.
        training: For the other bridges; torch itself knows whether gradients are needed.

    Returns:
        outputs (B, T, H) or (B, H), h_T and c_T (B, H), of the type of h0. First derivatives are defined for x
        or embeddings, kernel, recurrent_kernel, bias, h0 and c0.
    """
    del training
    _make_idle_threads_sleep()
    return _lstm("lstm", arrays, options, return_sequences)


def cuda_lstm(
    arrays: dict[str, torch.Tensor], options: LstmOptions, return_sequences: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One LSTM layer on Cellerate's kernels for NVIDIA GPUs, with gradients; as `lstm`, but in float16 too."""
    return _lstm("cuda_lstm", arrays, options, return_sequences)


def _lstm(
    name: str, arrays: dict[str, torch.Tensor], options: LstmOptions, return_sequences: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    _register()
    keep = torch.is_grad_enabled() and any(a.requires_grad for a in arrays.values())
    given = [arrays.get(name) for name in ARGUMENTS]
    codes = [int(code) for code in cpu.codes(options, return_sequences)]
    outputs, h_T, c_T, _ = getattr(torch.ops.cellerate, f"{name}_forward")(*given, codes, keep)
    return outputs, h_T, c_T


@functools.cache
def _register() -> None:
    """Defines the operators: opaque to torch.compile, which sees their shapes through the fake kernels."""
    # Kept alive as an attribute: a Library object that is garbage-collected removes its operators.
    _register.library = library = torch.library.Library("cellerate", "DEF")  # type: ignore[attr-defined]
    _register_lstm(library, "lstm", "CPU", _forward, _backward, _forward_results)
    # For any device: the caller makes sure that the tensors are on a GPU.
    everywhere = "CompositeExplicitAutograd"
    _register_lstm(library, "cuda_lstm", everywhere, _cuda_forward, _cuda_backward, _cuda_forward_results)
    weights = "Tensor x, Tensor kernel, Tensor? bias"
    library.define(f"dense_forward({weights}) -> Tensor")
    library.define(f"dense_backward({weights}, Tensor d_y) -> (Tensor, Tensor, Tensor)")
    library.impl("dense_forward", _dense_forward, "CPU")
    library.impl("dense_backward", _dense_backward, "CPU")
    torch.library.register_fake("cellerate::dense_forward", _dense_result, lib=library)
    torch.library.register_fake("cellerate::dense_backward", _dense_gradients, lib=library)
    torch.library.register_autograd(
        "cellerate::dense_forward", _dense_differentiate, setup_context=_dense_save, lib=library
    )
    torch.library.register_autograd("cellerate::dense_backward", _differentiate_twice, lib=library)


def _register_lstm(
    library: torch.library.Library,
    name: str,
    dispatch_key: str,
    forward: Operator,
    backward: Operator,
    forward_results: Operator,
) -> None:
    """Defines `{name}_forward` and `{name}_backward`, and how they are differentiated."""
    optional = ", ".join(f"Tensor? {argument}" for argument in ARGUMENTS)
    saved = "Tensor outputs, Tensor reserve, Tensor? d_outputs, Tensor? d_h_T, Tensor? d_c_T"
    results = ", ".join(["Tensor"] * len(_DIFFERENTIABLE))
    library.define(f"{name}_forward({optional}, int[] codes, bool keep) -> (Tensor, Tensor, Tensor, Tensor)")
    library.define(f"{name}_backward({optional}, {saved}, int[] codes) -> ({results})")
    library.impl(f"{name}_forward", forward, dispatch_key)
    library.impl(f"{name}_backward", backward, dispatch_key)
    torch.library.register_fake(f"cellerate::{name}_forward", forward_results, lib=library)
    torch.library.register_fake(f"cellerate::{name}_backward", _backward_results, lib=library)
    differentiate = functools.partial(_differentiate, f"{name}_backward")
    torch.library.register_autograd(
        f"cellerate::{name}_forward", differentiate, setup_context=_save, lib=library
    )
    torch.library.register_autograd(f"cellerate::{name}_backward", _differentiate_twice, lib=library)


@functools.cache
def _make_idle_threads_sleep() -> None:
    """Makes torch's idle OpenMP threads sleep at once instead of spinning for milliseconds after each operation.

    They would spin on the cores that the native core's threads need next. libgomp reads the spinning time from the
    environment only once, when torch is loaded. But it spins only briefly while the process has more OpenMP threads
    than processors. Each Python thread that has run a parallel operation keeps its OpenMP threads, asleep, so this
    function keeps a few such threads. `docs/decisions/0006-idle-openmp-threads.md` has the measurement.
    """
    own = torch.get_num_threads() - 1
    if own < 1 or "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return
    rest = threading.Event()

    def start_threads_and_stay(started: threading.Event) -> None:
        torch.zeros(1 << 20).add_(1)
        started.set()
        rest.wait()

    # The computing thread has `own` OpenMP threads once it has run an operation; each thread here adds as many.
    for _ in range(-(-processors() // own) - 1):
        started = threading.Event()
        threading.Thread(target=start_threads_and_stay, args=(started,), daemon=True).start()
        started.wait()


def _codes(codes: Sequence[int]) -> tuple[int, int, int, bool, bool]:
    return codes[0], codes[1], codes[2], bool(codes[3]), bool(codes[4])


def _forward_results(*given: Any) -> tuple[torch.Tensor, ...]:
    """Empty tensors that forward fills, with their shapes and types."""
    *tensors, codes, keep = given
    named: dict[str, Any] = dict(zip(ARGUMENTS, tensors, strict=True))
    h0, sequences = named["h0"], bool(codes[4])
    like = named["x"] if named["x"] is not None else named["ids"]
    batch, steps, units = like.shape[0], like.shape[1], named["recurrent_kernel"].shape[0]
    size = 0
    if keep:
        masked = named["mask"] is not None
        dtype = str(h0.dtype).removeprefix("torch.")
        size = cpu.reserve_bytes((batch, steps, units), dtype, masked=masked, return_sequences=sequences)
    # Not empty_like, which would also copy the strides.
    outputs = h0.new_empty((batch, steps, units) if sequences else (batch, units))
    return outputs, h0.new_empty(h0.shape), h0.new_empty(h0.shape), h0.new_empty(size, dtype=torch.uint8)


def _forward(*given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, codes, keep = given
    results = _forward_results(*given)
    native.core().forward(_codes(codes), _contiguous(tensors), results if keep else (*results[:3], None))
    return results


def _backward_results(*given: Any) -> tuple[torch.Tensor, ...]:
    """Empty tensors for the gradients; for an absent argument, one without elements."""
    named = dict(zip(ARGUMENTS, given, strict=False))
    none = named["h0"].new_empty(0)
    return tuple(none if named[n] is None else named[n].new_empty(named[n].shape) for n in _DIFFERENTIABLE)


def _backward(*given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, codes = given
    results = _backward_results(*given)
    wanted = [
        r if tensors[ARGUMENTS.index(n)] is not None else None
        for n, r in zip(_DIFFERENTIABLE, results, strict=True)
    ]
    # Without return_sequences the outputs have another shape, and backward does not read them.
    if not codes[4]:
        tensors[len(ARGUMENTS)] = None
    native.core().backward(_codes(codes), _contiguous(tensors), wanted)
    return results


def _cuda_call(tensors: Sequence[Any], codes: Sequence[int]) -> torch_cuda.Call:
    given = dict(zip(ARGUMENTS, tensors, strict=False))
    return torch_cuda.Call(given, *cpu.options_of(_codes(codes)))


def _cuda_forward(*given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, codes, keep = given
    return torch_cuda.forward(_cuda_call(tensors, codes), keep=keep)


def _cuda_forward_results(*given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, codes, keep = given
    return torch_cuda.forward_results(_cuda_call(tensors, codes), keep=keep)


def _cuda_backward(*given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, outputs, reserve, d_outputs, d_h_T, d_c_T, codes = given
    gradients = torch_cuda.backward(_cuda_call(tensors, codes), outputs, reserve, d_outputs, d_h_T, d_c_T)
    none = outputs.new_empty(0)
    return tuple(gradients.get(name, none).contiguous() for name in _DIFFERENTIABLE)


def _contiguous(tensors: Sequence[Any]) -> list[Any]:
    return [None if t is None else t.detach().contiguous() for t in tensors]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *tensors, ctx.codes, _ = inputs
    outputs, _, _, reserve = output
    ctx.save_for_backward(*tensors, outputs, reserve)


def _differentiate(operator: str, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    gradients = getattr(torch.ops.cellerate, operator)(*tensors, *cotangents[:3], ctx.codes)
    named = dict(zip(_DIFFERENTIABLE, gradients, strict=True))
    given = dict(zip(ARGUMENTS, tensors, strict=False))
    return (*[named.get(name) if given[name] is not None else None for name in ARGUMENTS], None, None)


def _differentiate_twice(*_: Any) -> None:
    # Without this, torch would treat the second derivatives as zeros.
    raise NotImplementedError(
        "Cellerate's LSTM has first derivatives only; for second ones take Keras's code: cellerate.restore(model)"
    )


def dense(x: torch.Tensor, kernel: torch.Tensor, bias: Any) -> Any:
    """A dense layer on the native core, with gradients: x (M, K), kernel (K, N), bias (N,) or None → (M, N)."""
    _make_idle_threads_sleep()
    _register()
    return torch.ops.cellerate.dense_forward(x, kernel, bias)


def _dense_result(x: torch.Tensor, kernel: torch.Tensor, bias: Any) -> torch.Tensor:
    return x.new_empty((x.shape[0], kernel.shape[1]))


def _dense_forward(x: torch.Tensor, kernel: torch.Tensor, bias: Any) -> torch.Tensor:
    y = _dense_result(x, kernel, bias)
    native.core().dense_forward(_contiguous([x, kernel, bias]), [y])
    return y


def _dense_gradients(
    x: torch.Tensor, kernel: torch.Tensor, bias: Any, d_y: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    d_bias = x.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return x.new_empty(x.shape), kernel.new_empty(kernel.shape), d_bias


def _dense_backward(
    x: torch.Tensor, kernel: torch.Tensor, bias: Any, d_y: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    results = _dense_gradients(x, kernel, bias, d_y)
    wanted = results if bias is not None else (*results[:2], None)
    native.core().dense_backward(_contiguous([x, kernel, bias, d_y]), wanted)
    return results


def _dense_save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _dense_differentiate(ctx: Any, d_y: torch.Tensor) -> tuple[Any, ...]:
    x, kernel, bias = ctx.saved_tensors
    d_x, d_kernel, d_bias = torch.ops.cellerate.dense_backward(x, kernel, bias, d_y)
    return d_x, d_kernel, None if bias is None else d_bias
