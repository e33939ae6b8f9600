"""What Cellerate asks of torch itself: whether a GPU is there, compiling a generation step, datasets, the LSTM.

One file a framework, imported only when that backend runs; nothing else in Cellerate imports torch.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from cellerate.environment import processors
from cellerate.kernels import cpu
from cellerate.kernels.spec import LstmOptions

# The arguments of the native LSTM, and which of them have gradients.
_ARGUMENTS = (
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
Step = Callable[[tuple[Any, ...], np.ndarray], tuple[tuple[Any, ...], np.ndarray | None]]


def gpu_available() -> bool:
    """Whether torch computes on a GPU here: the test Keras's cuDNN path makes."""
    return torch.cuda.is_available() and torch.backends.cudnn.is_available()


def compile_step(function: Callable[..., Any], variables: Sequence[Any], *, loops: bool = False) -> Step:
    """Prepares a generation step, once for each shape of `ids`.

    A single step is traced to the plain torch operations it comes down to (an FX graph): Keras's own Python
    costs several times the arithmetic of one step. A loop is run as it is, since a trace would unroll it, and
    so is a step that looks at the values of its tensors, which no trace can follow.

    Args:
        function: `(values, state, ids) -> (state, logits or None)`, where `values` stand for `variables` in
            order, `state` is a tuple of tensors and `ids` an int32 tensor. It must be pure.
        variables: The Keras variables it reads. Their values are arguments of the traced graph, so that
            further training is seen at once.
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
                    # The step cannot be traced. If it is wrong as well, the plain run below says so.
                    program = flat
            programs[ids.shape] = program
        with torch.inference_mode():
            outputs = program(*tensors)
        new_state = tuple(outputs[: len(state)])
        return new_state, outputs[-1].cpu().numpy() if len(outputs) > len(state) else None

    return run


class _Batches(torch.utils.data.IterableDataset):
    """One epoch of a source of batches; the workers of a loader share it out among themselves."""

    def __init__(self, source: Any, epoch: int) -> None:
        super().__init__()
        self.source, self.epoch = source, epoch

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        # A loader takes from its workers in turn, so worker w of n has batches w, w + n, w + 2n, ...
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, len(self.source), step):
            yield _as_tensors(self.source.batch(self.epoch, index))


def torch_dataset(source: Any, epoch: int) -> torch.utils.data.IterableDataset:
    """One epoch of a `cellerate.data.batches.BatchSource` as a dataset, batches in order.

    Args:
        source: The batches.
        epoch: Which epoch; the dataset's attribute `epoch` may be set to another between two passes.

    Returns:
        A dataset with the structure of `source.batch`, for `DataLoader(dataset, batch_size=None)`.
    """
    return _Batches(source, epoch)


def _as_tensors(batch: Any) -> Any:
    """A batch with each array made a tensor that shares its memory."""
    if isinstance(batch, dict):
        return {name: _as_tensors(part) for name, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple([_as_tensors(part) for part in batch])
    return torch.from_numpy(batch)


def in_place_changes(tensor: torch.Tensor) -> int | None:
    """How often a tensor was changed in place: None if torch does not count them, in inference mode."""
    return None if tensor.is_inference() else int(tensor._version)


def lstm(
    arrays: dict[str, torch.Tensor], options: LstmOptions, return_sequences: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One LSTM layer on the native core, with gradients.

    Args:
        arrays: The arguments of `cellerate.kernels.spec` that are there, by name: x, or ids and embeddings;
            kernel, recurrent_kernel, bias, h0, c0, mask, dropout, recurrent_dropout. h0 is needed.
        options: Activations, direction and masked outputs.
        return_sequences: Whether to return all outputs or the last.

    Returns:
        outputs (B, T, H) or (B, H), h_T and c_T (B, H), of the type of h0. First derivatives are defined for x
        or embeddings, kernel, recurrent_kernel, bias, h0 and c0.
    """
    _register()
    keep = torch.is_grad_enabled() and any(a.requires_grad for a in arrays.values())
    given = [arrays.get(name) for name in _ARGUMENTS]
    codes = [int(code) for code in cpu.codes(options, return_sequences)]
    outputs, h_T, c_T, _ = torch.ops.cellerate.lstm_forward(*given, codes, keep)
    return outputs, h_T, c_T


@functools.cache
def _register() -> None:
    """Defines the operators: opaque to torch.compile, which sees their shapes through the fake kernels."""
    _make_idle_threads_sleep()
    optional = ", ".join(f"Tensor? {name}" for name in _ARGUMENTS)
    saved = "Tensor outputs, Tensor reserve, Tensor? d_outputs, Tensor? d_h_T, Tensor? d_c_T"
    results = ", ".join(["Tensor"] * len(_DIFFERENTIABLE))
    # Kept alive by torch itself from here on; a Library object that is collected takes its operators along.
    _register.library = library = torch.library.Library("cellerate", "DEF")  # type: ignore[attr-defined]
    library.define(f"lstm_forward({optional}, int[] codes, bool keep) -> (Tensor, Tensor, Tensor, Tensor)")
    library.define(f"lstm_backward({optional}, {saved}, int[] codes) -> ({results})")
    library.impl("lstm_forward", _forward, "CPU")
    library.impl("lstm_backward", _backward, "CPU")
    torch.library.register_fake("cellerate::lstm_forward", _forward_results, lib=library)
    torch.library.register_fake("cellerate::lstm_backward", _backward_results, lib=library)
    torch.library.register_autograd(
        "cellerate::lstm_forward", _differentiate, setup_context=_save, lib=library
    )
    torch.library.register_autograd("cellerate::lstm_backward", _differentiate_twice, lib=library)
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


def _make_idle_threads_sleep() -> None:
    """Makes torch's idle OpenMP threads sleep at once, in place of spinning for milliseconds after each operation.

    They spin on the cores that the native core's threads need next. libgomp reads how long from the environment,
    once, when torch is loaded; but it spins only shortly while the process has more OpenMP threads than there are
    processors. Threads that have run a parallel operation of their own keep theirs, asleep, so a few of those are
    kept. `docs/decisions/0006-idle-openmp-threads.md` has the measurement.
    """
    own = torch.get_num_threads() - 1
    if own < 1 or "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return
    rest = threading.Event()

    def start_threads_and_stay(started: threading.Event) -> None:
        torch.zeros(1 << 20).add_(1)
        started.set()
        rest.wait()

    # The thread that computes has as many, once it has run an operation; one of these adds as many.
    for _ in range(-(-processors() // own) - 1):
        started = threading.Event()
        threading.Thread(target=start_threads_and_stay, args=(started,), daemon=True).start()
        started.wait()


def _codes(codes: Sequence[int]) -> tuple[int, int, int, bool, bool]:
    return codes[0], codes[1], codes[2], bool(codes[3]), bool(codes[4])


def _forward_results(*given: Any) -> tuple[torch.Tensor, ...]:
    """Empty tensors of the shapes and types that forward fills."""
    *tensors, codes, keep = given
    named: dict[str, Any] = dict(zip(_ARGUMENTS, tensors, strict=True))
    h0, sequences = named["h0"], bool(codes[4])
    like = named["x"] if named["x"] is not None else named["ids"]
    batch, steps, units = like.shape[0], like.shape[1], named["recurrent_kernel"].shape[0]
    size = 0
    if keep:
        masked = named["mask"] is not None
        bfloat16 = h0.dtype == torch.bfloat16
        size = cpu.reserve_bytes(
            (batch, steps, units), bfloat16=bfloat16, masked=masked, return_sequences=sequences
        )
    # Not empty_like, which would take over the strides as well.
    outputs = h0.new_empty((batch, steps, units) if sequences else (batch, units))
    return outputs, h0.new_empty(h0.shape), h0.new_empty(h0.shape), h0.new_empty(size, dtype=torch.uint8)


def _forward(*given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, codes, keep = given
    results = _forward_results(*given)
    cpu.core().forward(_codes(codes), _contiguous(tensors), results if keep else (*results[:3], None))
    return results


def _backward_results(*given: Any) -> tuple[torch.Tensor, ...]:
    """Empty tensors for the gradients; one without elements for an argument that is absent."""
    named = dict(zip(_ARGUMENTS, given, strict=False))
    none = named["h0"].new_empty(0)
    return tuple(none if named[n] is None else named[n].new_empty(named[n].shape) for n in _DIFFERENTIABLE)


def _backward(*given: Any) -> tuple[torch.Tensor, ...]:
    *tensors, codes = given
    results = _backward_results(*given)
    wanted = [
        r if tensors[_ARGUMENTS.index(n)] is not None else None
        for n, r in zip(_DIFFERENTIABLE, results, strict=True)
    ]
    # Without return_sequences backward does not read the outputs, which then have another shape.
    if not codes[4]:
        tensors[len(_ARGUMENTS)] = None
    cpu.core().backward(_codes(codes), _contiguous(tensors), wanted)
    return results


def _contiguous(tensors: Sequence[Any]) -> list[Any]:
    return [None if t is None else t.detach().contiguous() for t in tensors]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *tensors, ctx.codes, _ = inputs
    outputs, _, _, reserve = output
    ctx.save_for_backward(*tensors, outputs, reserve)


def _differentiate(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    gradients = torch.ops.cellerate.lstm_backward(*tensors, *cotangents[:3], ctx.codes)
    named = dict(zip(_DIFFERENTIABLE, gradients, strict=True))
    given = dict(zip(_ARGUMENTS, tensors, strict=False))
    return (*[named.get(name) if given[name] is not None else None for name in _ARGUMENTS], None, None)


def _differentiate_twice(*_: Any) -> None:
    # Without this, torch would take the second derivatives for zeros.
    raise NotImplementedError(
        "the native LSTM has first derivatives only; for second ones take Keras's code: cellerate.restore(model)"
    )


def dense(x: torch.Tensor, kernel: torch.Tensor, bias: Any) -> Any:
    """A dense layer on the native core, with gradients: x (M, K), kernel (K, N), bias (N,) or None → (M, N)."""
    _register()
    return torch.ops.cellerate.dense_forward(x, kernel, bias)


def _dense_result(x: torch.Tensor, kernel: torch.Tensor, bias: Any) -> torch.Tensor:
    return x.new_empty((x.shape[0], kernel.shape[1]))


def _dense_forward(x: torch.Tensor, kernel: torch.Tensor, bias: Any) -> torch.Tensor:
    y = _dense_result(x, kernel, bias)
    cpu.core().dense_forward(_contiguous([x, kernel, bias]), [y])
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
    cpu.core().dense_backward(_contiguous([x, kernel, bias, d_y]), wanted)
    return results


def _dense_save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _dense_differentiate(ctx: Any, d_y: torch.Tensor) -> tuple[Any, ...]:
    x, kernel, bias = ctx.saved_tensors
    d_x, d_kernel, d_bias = torch.ops.cellerate.dense_backward(x, kernel, bias, d_y)
    return d_x, d_kernel, None if bias is None else d_bias
