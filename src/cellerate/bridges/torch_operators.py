"""The operations of the native core as operators of torch, and beside them the LSTM on Cellerate's kernels for GPUs.

This module tells torch the operators' shapes, for its compiler, and how to differentiate them. The computation is in
the native core and in `torch_cuda`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cellerate.bridges import torch_cuda
from cellerate.kernels import native
from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.spec import LstmOptions
from cellerate.kernels.operation import Codes, CoreOperation
from cellerate.machine.environment import processors

Operator = Callable[..., Any]
_CUDA_LSTM = "cuda_lstm"
# The operations whose operators torch knows, by the operators' names.
_defined: set[str] = set()
_defining = threading.Lock()


def run(
    operation: CoreOperation, arrays: dict[str, torch.Tensor], codes: Codes = (), *, training: bool = True
) -> tuple[torch.Tensor, ...]:
    """An operation on the native core, with gradients.

    Args:
        operation: The kernel to run.
        arrays: Its arguments that are there, by name.
        codes: Its options.
        training: For the other bridges; torch itself knows whether gradients are needed.

    Returns:
        Its results. First derivatives are defined for its differentiable arguments.
    """
    _make_idle_threads_sleep()
    if operation.name not in _defined:
        _define(operation.name, operation, "CPU", _forward, _backward, _results)
    return _call(operation.name, operation, arrays, codes)


def cuda_lstm(
    arrays: dict[str, torch.Tensor], options: LstmOptions, return_sequences: bool
) -> tuple[torch.Tensor, ...]:
    """One LSTM layer on Cellerate's kernels for NVIDIA GPUs, with gradients; as the LSTM of `run`, but in float16 too.

    h0 is required, because the results have its type.
    """
    if _CUDA_LSTM not in _defined:
        # For any device: the caller makes sure that the tensors are on a GPU.
        everywhere = "CompositeExplicitAutograd"
        _define(_CUDA_LSTM, cpu.LSTM, everywhere, _cuda_forward, _cuda_backward, _cuda_results)
    return _call(_CUDA_LSTM, cpu.LSTM, arrays, cpu.codes(options, return_sequences))


def _call(
    name: str, operation: CoreOperation, arrays: dict[str, torch.Tensor], codes: Codes
) -> tuple[torch.Tensor, ...]:
    keep = torch.is_grad_enabled() and any(a.requires_grad for a in arrays.values())
    given = [arrays.get(argument) for argument in operation.arguments]
    found = getattr(torch.ops.cellerate, f"{name}_forward")(*given, codes, keep)
    return tuple(found[: len(operation.results)]) if isinstance(found, tuple) else (found,)


@functools.cache
def _library() -> torch.library.Library:
    # Kept alive here: a Library object that is garbage-collected removes its operators.
    return torch.library.Library("cellerate", "DEF")


def _define(
    name: str, operation: CoreOperation, key: str, forward: Operator, backward: Operator, results: Operator
) -> None:
    """Defines `{name}_forward` and `{name}_backward`: opaque to torch.compile, which sees the shapes of their results.

    Args:
        name: The name of the operators.
        operation: What they compute.
        key: The dispatch key of the device that they run on.
        forward: Computes the `forward_results`; the reserve among them is empty unless backward needs it.
        backward: Computes the gradients of the differentiable arguments, without elements for those without one.
        results: Placeholders for the results of `forward`, with their shapes and dtypes.
    """
    with _defining:
        if name in _defined:
            return
        library = _library()
        optional = ", ".join(f"Tensor? {argument}" for argument in operation.arguments)
        rest = [f"Tensor {each}" for each in operation.kept]
        rest += [f"Tensor? d_{result}" for result in operation.results]
        found = ", ".join(["Tensor"] * len(operation.forward_results))
        gradients = ", ".join(["Tensor"] * len(operation.differentiable))
        library.define(f"{name}_forward({optional}, int[] codes, bool keep) -> ({found})")
        library.define(f"{name}_backward({optional}, {', '.join(rest)}, int[] codes) -> ({gradients})")
        for direction, compute, empty in (("forward", forward, results), ("backward", backward, _gradients)):
            operator = f"{name}_{direction}"
            library.impl(operator, functools.partial(compute, operation), key)
            fake = functools.partial(empty, operation)
            torch.library.register_fake(f"cellerate::{operator}", fake, lib=library)
        torch.library.register_autograd(
            f"cellerate::{name}_forward",
            functools.partial(_differentiate, operation, f"{name}_backward"),
            setup_context=functools.partial(_save, operation),
            lib=library,
        )
        torch.library.register_autograd(f"cellerate::{name}_backward", _differentiate_twice, lib=library)
        _defined.add(name)


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


def _results(operation: CoreOperation, *given: Any) -> Any:
    """Empty tensors that forward fills, with their shapes and types."""
    *tensors, codes, keep = given
    named = {n: t for n, t in zip(operation.arguments, tensors, strict=True) if t is not None}
    like = operation.like(named)
    # Not empty_like, which would also copy the strides.
    found = [like.new_empty(shape) for shape in operation.shapes(named, codes).values()]
    if operation.sizes:
        dtype = str(like.dtype).removeprefix("torch.")
        size = operation.reserve_bytes(named, codes, dtype) if keep else 0
        found.append(like.new_empty(size, dtype=torch.uint8))
    # A single result of an operator is not a tuple.
    return tuple(found) if len(found) > 1 else found[0]


def _forward(operation: CoreOperation, *given: Any) -> Any:
    *tensors, codes, keep = given
    results = _results(operation, *given)
    written = list(results) if isinstance(results, tuple) else [results]
    if operation.sizes and not keep:
        written[-1] = None
    native.core().call(f"{operation.name}_forward", codes, _contiguous(tensors), written)
    return results


def _gradients(operation: CoreOperation, *given: Any) -> tuple[torch.Tensor, ...]:
    """Empty tensors for the gradients; for an argument without one, a tensor without elements."""
    named = {n: t for n, t in zip(operation.arguments, given, strict=False) if t is not None}
    none, wanted = operation.like(named).new_empty(0), operation.with_gradients(named)
    return tuple(
        named[name].new_empty(named[name].shape) if name in wanted else none
        for name in operation.differentiable
    )


def _backward(operation: CoreOperation, *given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, codes = given
    results = _gradients(operation, *given)
    there = {n: t for n, t in zip(operation.arguments, tensors, strict=False) if t is not None}
    found = operation.with_gradients(there)
    wanted = [r if n in found else None for n, r in zip(operation.differentiable, results, strict=True)]
    native.core().call(f"{operation.name}_backward", codes, _contiguous(tensors), wanted)
    return results


def _contiguous(tensors: Sequence[Any]) -> list[Any]:
    return [None if t is None else t.detach().contiguous() for t in tensors]


def _save(operation: CoreOperation, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.codes, _ = inputs
    outputs = output if isinstance(output, tuple) else (output,)
    found = dict(zip(operation.forward_results, outputs, strict=True))
    ctx.save_for_backward(*tensors, *[found[name] for name in operation.kept])


def _differentiate(operation: CoreOperation, backward: str, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
    # Read once: activation checkpointing gives them a single time.
    saved = ctx.saved_tensors
    given, rest = dict(zip(operation.arguments, saved, strict=False)), saved[len(operation.arguments) :]
    for source, through in operation.reached_through.items():
        if (
            given[source] is not None
            and given[through] is not None
            and not _asked(given[through], given[source])
        ):
            given[through] = None
    gradients = getattr(torch.ops.cellerate, backward)(
        *given.values(), *rest, *cotangents[: len(operation.results)], ctx.codes
    )
    named = dict(zip(operation.differentiable, gradients, strict=True))
    there = operation.with_gradients({name: one for name, one in given.items() if one is not None})
    return *[named[name] if name in there else None for name in operation.arguments], None, None


def _asked(through: torch.Tensor, source: torch.Tensor) -> bool:
    """Return True if the gradient of a tensor is used other than to lead back to the one that it was made of.

    It is if the tensor keeps its gradient or has a hook; or if torch does not go on to the source, since it then seeks
    the gradients of given tensors, of which this may be one.
    """
    if not through.requires_grad:
        return False
    kept = through.is_leaf or through.retains_grad or through._backward_hooks
    if kept or not source.requires_grad:
        return True
    node = torch.autograd.graph.get_gradient_edge(source).node
    while node is not None and node.next_functions:
        node = node.next_functions[0][0]
    try:
        return node is None or not torch._C._will_engine_execute_node(node)
    except RuntimeError:
        # The gradient of the source itself is sought, by torch.autograd.grad.
        return True


def _differentiate_twice(*_: Any) -> None:
    # Without this, torch would treat the second derivatives as zeros.
    raise NotImplementedError(
        "Cellerate's layers have first derivatives only; for second ones take Keras's code: cellerate.restore(model)"
    )


def _cuda_call(tensors: Sequence[Any], codes: Codes) -> torch_cuda.Call:
    named = zip(cpu.LSTM.arguments, tensors, strict=False)
    given = {name: tensor for name, tensor in named if tensor is not None}
    return torch_cuda.Call(given, *cpu.options_of(codes))


def _cuda_forward(_: CoreOperation, *given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, codes, keep = given
    return torch_cuda.forward(_cuda_call(tensors, codes), keep=keep)


def _cuda_results(_: CoreOperation, *given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, codes, keep = given
    return torch_cuda.forward_results(_cuda_call(tensors, codes), keep=keep)


def _cuda_backward(operation: CoreOperation, *given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, outputs, reserve, d_outputs, d_h_T, d_c_T, codes = given
    gradients = torch_cuda.backward(_cuda_call(tensors, codes), outputs, reserve, d_outputs, d_h_T, d_c_T)
    none = outputs.new_empty(0)
    return tuple(gradients.get(name, none).contiguous() for name in operation.differentiable)
