"""The part of torch that Cellerate needs: finding a GPU, compiling a generation step, datasets, operations.

Only this module and the `torch_*` modules beside it import torch; they are imported only where torch is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from cellerate.bridges import torch_cuda
from cellerate.bridges.torch_capture import CapturedStep, Seeding
from cellerate.bridges.torch_operators import cuda_lstm, run

__all__ = [
    "blocking",
    "can_measure",
    "capture_step",
    "compile_step",
    "cuda_lstm",
    "cuda_precision",
    "eagerly",
    "gpu_available",
    "gpu_number",
    "in_place_changes",
    "run",
    "torch_dataset",
    "traced_for",
]
Step = Callable[[tuple[Any, ...], np.ndarray], tuple[tuple[Any, ...], np.ndarray | None]]


def gpu_available() -> bool:
    """True if torch computes on a GPU here: the test Keras's cuDNN path makes."""
    return torch.cuda.is_available() and torch.backends.cudnn.is_available()


def peak_gpu_memory_bytes() -> int | None:
    """The most memory that tensors of this process have taken on its GPU, in bytes; None without one."""
    return int(torch.cuda.max_memory_allocated()) if gpu_available() else None


def traced_for() -> str | None:
    """The reason why the running computation cannot call the native core; None if it can.

    The transforms of `torch.func` (grad, vjp, jacrev, vmap) take no operator whose gradient is registered as ours is.
    An exported program (`torch.export`, `torch.onnx`, `torch.jit.trace`) must run without Cellerate.
    """
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        return "torch exports it"
    if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is None:
        return None
    return "a transform of torch.func calls it"


def gpu_number(array: torch.Tensor | None = None) -> int:
    """The number of the GPU that holds an array, or else of the one that torch computes on; 0 without one."""
    if array is not None and array.is_cuda:
        return array.get_device()
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def compile_step(function: Callable[..., Any], variables: Sequence[Any], *, loops: bool = False) -> Step:
    """Prepares a generation step, once for each shape of `ids`.

    A single step is traced to the plain torch operations behind it (an FX graph), because Keras's own Python
    costs several times the arithmetic of one step. A loop runs untraced, since a trace would unroll it. So does a
    step that looks at the values of its tensors, which no trace can follow.

    Args:
        function: `(values, state, ids) -> (state, logits or None)`, where `values` stand for `variables` in
            order, `state` is a tuple of tensors and `ids` an int32 tensor. It must be pure.
        variables: The Keras variables it reads. Their values are arguments of the traced graph, so that
            further training takes effect at once.
        loops: Whether the function loops over many time steps.

    Returns:
        `(state, ids) -> (state, logits)` with the logits as a NumPy array; the state stays on the device.
    """
    count = len(variables)
    programs: dict[tuple[int, ...], Callable[..., Any]] = {}

    def flat(*tensors: Any) -> list[Any]:
        state, logits = function(tensors[:count], tensors[count:-1], tensors[-1])
        return [*state] if logits is None else [*state, logits]

    def run(state: tuple[Any, ...], ids: np.ndarray) -> tuple[tuple[Any, ...], np.ndarray | None]:
        values = [variable.value for variable in variables]
        device = next((tensor.device for tensor in (*state, *values)), None)
        tensors = (*values, *state, torch.from_numpy(ids).to(device))
        program = flat if loops else programs.get(ids.shape)
        if program is None:
            # Not in inference mode: the trace records what the operations do to ordinary tensors.
            with torch.no_grad():
                try:
                    program = make_fx(flat)(*tensors)
                except RuntimeError:
                    # The step cannot be traced. If it is wrong as well, the plain run below raises.
                    program = flat
            programs[ids.shape] = program
        with torch.inference_mode():
            outputs = program(*tensors)
        new_state = tuple(outputs[: len(state)])
        return new_state, outputs[-1].cpu().numpy() if len(outputs) > len(state) else None

    return run


class _Batches(torch.utils.data.IterableDataset):
    """One epoch of a source of batches; the workers of a loader divide it among themselves."""

    def __init__(self, source: Any, epoch: int) -> None:
        super().__init__()
        self.source, self.epoch = source, epoch

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        # A loader takes from its workers in turn, so worker w of n gives batches w, w + n, w + 2n, ...
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, len(self.source), step):
            yield _as_tensors(self.source.batch(self.epoch, index))


def torch_dataset(source: Any, epoch: int) -> torch.utils.data.IterableDataset:
    """One epoch of a `cellerate.data.arrays.BatchSource` as a dataset, batches in order.

    Args:
        source: The batches.
        epoch: Which epoch; the dataset's attribute `epoch` may be changed between two passes.

    Returns:
        A dataset with the structure of `source.batch`, for `DataLoader(dataset, batch_size=None)`.
    """
    return _Batches(source, epoch)


def _as_tensors(batch: Any) -> Any:
    """A batch in which each array is a tensor that shares its memory."""
    if isinstance(batch, dict):
        return {name: _as_tensors(part) for name, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple([_as_tensors(part) for part in batch])
    return torch.from_numpy(batch)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A pure function of arrays without gradients, which torch runs as it is."""
    made: Callable[..., Any] = torch.no_grad()(function)
    return made


def eagerly() -> Any:
    """A context in which variables change at once, as they do on torch."""
    return contextlib.nullcontext()


def in_place_changes(tensor: torch.Tensor) -> int | None:
    """The number of times a tensor was changed in place: None if torch does not count them, in inference mode."""
    return None if tensor.is_inference() else int(tensor._version)


def can_measure(tensor: torch.Tensor) -> bool:
    """True if a call with this tensor computes now; while it is only traced or captured, nothing can be timed."""
    if tensor.is_meta or type(tensor) is not torch.Tensor or torch.compiler.is_compiling():
        return False
    return not (tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def cuda_precision(dtype: str) -> str:
    """The precision in which the GPU kernels compute a dtype, by torch's settings."""
    return torch_cuda.precision_of(getattr(torch, dtype))


def capture_step(step: Callable[[Any], Any], seeding: Seeding) -> CapturedStep:
    """A model's training function that becomes a CUDA graph, on torch's current GPU."""
    return CapturedStep(step, torch.device("cuda", gpu_number()), seeding)


def blocking(
    function: Callable[..., torch.Tensor],
    arrays: Sequence[tuple[np.ndarray, str]],
    training: bool,
    *,
    like: torch.Tensor,
) -> Callable[[], None]:
    """Makes a function of the arrays into a call for timing, which returns only when the device has finished.

    Args:
        function: Returns one tensor.
        arrays: Each with the dtype in which the function gets it.
        training: Whether the gradients of the arrays are computed, too.
        like: A tensor on the device to time.
    """
    device = like.device
    tensors = [
        torch.from_numpy(array).to(device, getattr(torch, dtype)).requires_grad_(training)
        for array, dtype in arrays
    ]

    def work() -> None:
        with torch.set_grad_enabled(training):
            result = function(*tensors)
            if training:
                torch.autograd.grad(result, tensors, torch.ones_like(result))
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return work
