"""Recurrent layers of Keras on Cellerate's kernels: whether they can run there, and the arguments of the kernels.

All layer classes share this module; `fused_lstm` and the other modules in `table` add what one class needs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops
from keras.src.backend.common.tensor_attributes import get_tensor_attr, set_tensor_attr

from cellerate.activations import ACTIVATIONS, on_backend
from cellerate.keras_graph.activations import activation_name
from cellerate.keras_graph.keras_backend import stored, weight
from cellerate.kernels import native
from cellerate.kernels.cuda import launch
from cellerate.kernels.lstm.cuda import selfcheck
from cellerate.layers.conditions import Condition, Platform, recurrent

CHECK, VECTORS = "self-check", "vector instructions"
BESIDE_NAMED = (CHECK, VECTORS)
"""The conditions that an implementation need not meet if the user names it."""
# The attribute that an accelerated Embedding leaves on its output for the LSTM after it.
_LOOKUP = "_cellerate_lookup"
_DTYPES = ("float32", "bfloat16", "float16")
# If a table has more rows than this share of the batch's steps, projecting it is not cheaper than projecting each step.
_TABLE_SHARE = 0.5
# With fewer time steps, Keras's own loop trains or predicts faster on a backend. TensorFlow calls the core through
# Python, which takes 0.15 ms and more; its own loop takes 0.08 ms a step. Measured with 64 and 128 units, Keras's loop
# trained 6 steps faster, but not 10; with 32 and 64 units on AVX2, it predicted 8 steps 1.13 times as fast, and 10 to
# 16 steps equally fast.
FEWEST_STEPS = {"tensorflow": {"trains": 8, "predicts": 12}}
# The core is faster whatever the steps if a row needs more multiplications than this, some 20 µs.
_LARGE_ROW = 5e5
TABLE_ROWS = 1024
"""If the size of the batch is not known in advance, tables up to this many rows are projected whole."""


@functools.cache
def bridge() -> Any:
    """The module that binds the kernels to the Keras backend that runs."""
    return importlib.import_module(f"cellerate.bridges.{keras.backend.backend()}")


def implementation_here() -> str:
    """Cellerate's implementation for the device that the backend computes on."""
    return "cellerate-cuda" if bridge().gpu_available() else "cellerate-cpu"


def why_unavailable(implementation: str) -> str | None:
    """Why a named implementation cannot run any layer here, in words; None if it can."""
    failed = next((c for c in _installed(implementation) if not c.holds and c.name not in BESIDE_NAMED), None)
    if failed is None:
        return None
    return f"{failed.name}: {failed.found}" + (f"; {failed.fix}" if failed.fix else "")


def _installed(implementation: str) -> list[Condition]:
    """An implementation's requirements of this machine and backend."""
    backend, without_core = keras.backend.backend(), native.why_unavailable()
    gpu = bridge().gpu_available()
    core = Condition(
        "native core",
        without_core is None,
        without_core or "installed",
        "" if without_core is None else "see docs/guide/acceleration.md",
    )
    device = f"{backend} computes on {'a GPU' if gpu else 'the CPU'}"
    if implementation == "cellerate-cpu":
        fix = "hide the GPU from the backend to use the CPU" if gpu else ""
        found = [core, Condition("device", not gpu, device, fix, matters=False)]
        return found + ([] if without_core else _slower_here(backend))
    bound = hasattr(bridge(), "cuda_lstm")
    has = "has" if bound else "has none of Cellerate's"
    fix = (
        ""
        if bound
        else "KERAS_BACKEND=torch or jax; docs/measured/gpus.md has what that gains over cuDNN on TensorFlow"
    )
    found = [Condition("GPU kernels", bound, f"{backend} {has}", fix)]
    # XLA starts the kernels through a handler of the native core.
    found += [core] if backend == "jax" else []
    fix = "" if gpu else "see `cellerate env`"
    found.append(Condition("device", gpu, device, fix, matters=False))
    if gpu:
        number = bridge().gpu_number()
        reason = launch.why_unavailable(number)
        # No change to the model brings another GPU, and the reason says what to install.
        found.append(Condition("GPU", reason is None, reason or "has what they need", matters=False))
        if reason is None:
            failure = selfcheck.failure(number)
            fix = "" if failure is None else 'accelerate(model, "cellerate-cuda") takes them all the same'
            right = "the kernels give what they should on this GPU"
            found.append(Condition(CHECK, failure is None, failure or right, fix, matters=False))
    return found


def _slower_here(backend: str) -> list[Condition]:
    """The condition that fails where the core lacks vector instructions, and Keras's own code is faster.

    There the loops of XLA and TensorFlow take 0.35 to 0.55 of the core's time; torch's loop takes longer.
    """
    if native.target() != "scalar" or backend == "torch":
        return []
    found = f"the core has none of this processor, and Keras's own code is faster on {backend}"
    fix = 'accelerate(model, "cellerate-cpu") takes the core all the same'
    return [Condition(VECTORS, False, found, fix, matters=False)]


def fit_conditions(
    layer: Any, implementation: str, layer_class: type[layers.RNN], cell_class: type[keras.Layer]
) -> list[Condition]:
    """An implementation's requirements of any layer, each with what was found and how to change it.

    Args:
        layer: The layer.
        implementation: "cellerate-cpu" or "cellerate-cuda".
        layer_class: Keras's class of the layer; a subclass with a call of its own does not fit.
        cell_class: Keras's class of its cell.
    """
    cell = layer.cell
    own = type(cell) is not cell_class or _overridden(layer, layer_class)
    one_by_one = cell.implementation == 1 and bool(cell.dropout) and not cell.recurrent_dropout
    fits = layer.compute_dtype in _DTYPES
    computed = computed_in(layer, implementation) if fits else layer.compute_dtype
    return [
        *_installed(implementation),
        Condition(
            "class",
            not own,
            f"{type(layer).__name__} of {type(cell).__name__}{', with a call of its own' if own else ''}",
            f"keras.layers.{layer_class.__name__}" if own else "",
        ),
        _activation_condition(layer, "activation"),
        _activation_condition(layer, "recurrent_activation"),
        Condition(
            "use_cudnn",
            layer.use_cudnn is not True,
            f"use_cudnn={layer.use_cudnn!r}",
            'use_cudnn="auto"' if layer.use_cudnn is True else "",
        ),
        Condition(
            "dtype",
            fits,
            layer.compute_dtype + ("" if computed == layer.compute_dtype else f", computed in {computed}"),
            "" if fits else f"one of {', '.join(_DTYPES)}",
        ),
        # In this case Keras stacks the four masks into a shape that it then refuses.
        Condition(
            "dropout",
            not one_by_one,
            f"dropout={cell.dropout:g} with implementation={cell.implementation}",
            "implementation=2" if one_by_one else "",
        ),
    ]


def computed_in(layer: Any, implementation: str) -> str:
    """The dtype in which an implementation computes a layer: float32 if the core does not support the layer's dtype."""
    known = native.storage_types() or _DTYPES
    here = implementation == "cellerate-cuda" or layer.compute_dtype in known
    return str(layer.compute_dtype) if here else "float32"


def core_runs_here() -> bool:
    """True if the native core is installed and the backend computes on the CPU."""
    return native.why_unavailable() is None and not bridge().gpu_available()


def unfit_call(layer: Any, sequences: Any, mask: Any) -> str | None:
    """Why one call of a suitable layer cannot be fused; None if it can."""
    if 0 in sequences.shape:
        return "a batch without elements"
    if (traced := traced_for()) is not None:
        return traced
    if mask is None:
        return None
    if layer.unroll:
        # In an unrolled layer each backend treats masked steps differently.
        return "unroll=True with a mask"
    if len(mask.shape) != 2:
        return f"a mask of {len(mask.shape)} dimensions"
    return None


def traced_for() -> str | None:
    """Why the graph being traced cannot call Cellerate's kernels; None if it can, or if nothing is being traced."""
    return bridge().traced_for() if hasattr(bridge(), "traced_for") else None


def too_short(layer: Any, steps: int | None, *, training: bool) -> str | None:
    """Why a call of `steps` time steps (None: unknown) is faster on Keras's own code; None if it is not."""
    backend, does = keras.backend.backend(), "trains" if training else "predicts"
    fewest, units = FEWEST_STEPS.get(backend, {}).get(does, 0), layer.cell.units
    if steps is None or steps >= fewest or not layer.built:
        return None
    if 4 * steps * units * (units + layer.cell.kernel.shape[0]) > _LARGE_ROW:
        return None
    return f"{steps}, and of fewer than {fewest} Keras's own code {does} faster on {backend}"


def arrays_of(
    layer: Any,
    dtype: str,
    sequences: Any,
    states: dict[str, Any],
    mask: Any,
    training: bool | None,
) -> dict[str, Any]:
    """The arguments of a kernel, by name, for a call that `fit_conditions` and `unfit_call` accept.

    Args:
        layer: The layer.
        dtype: The dtype of x and the states.
        sequences: (B, T, D).
        states: The initial states (B, H), or (1, H) for all rows, by name.
        mask: (B, T), or None.
        training: Whether dropout is applied.
    """
    cell = layer.cell
    if layer.stateful:
        # These are the variables themselves. Keras assigns to them after the call, and torch would then refuse to
        # go backward.
        states = {name: ops.copy(state) for name, state in states.items()}
    arrays = {
        "kernel": weight(cell.kernel),
        "recurrent_kernel": weight(cell.recurrent_kernel),
        **{name: _for_each_row(ops.cast(state, dtype), sequences) for name, state in states.items()},
    }
    if cell.use_bias:
        arrays["bias"] = weight(cell.bias)
    if mask is not None:
        arrays["mask"] = ops.cast(mask, "bool")
    dropped = bool(training) and (
        0.0 < cell.dropout < 1.0 or (cell.dropout == 1.0 and _drops_all(layer, mask))
    )
    if training and 0.0 < cell.recurrent_dropout < 1.0:
        masks = cell.get_recurrent_dropout_mask(next(iter(states.values())))
        arrays["recurrent_dropout"] = _by_gate([_for_each_row(mask, sequences) for mask in masks])
    lookup = None if dropped else _found_lookup(sequences)
    if lookup is not None and _worth_a_table(lookup.ids, lookup.table):
        arrays["ids"], arrays["embeddings"] = _row_numbers(lookup.ids, lookup.table), weight(lookup.table)
        if not lookup.summed:
            arrays["x"] = ops.cast(sequences, dtype)
    else:
        x = ops.cast(sequences, dtype)
        if dropped:
            dropout = cell.get_dropout_mask(sequences[:, 0, :])
            # With recurrent dropout the cell draws one mask a gate for the inputs as well.
            if isinstance(dropout, list):
                arrays["dropout"] = _by_gate(dropout)
            else:
                x = x * ops.expand_dims(ops.cast(dropout, dtype), 1)
        arrays["x"] = x
    return arrays


def activations_of(layer: Any) -> tuple[str, str]:
    """The names of the activation and the recurrent activation of a suitable layer, as the backend computes them."""
    names = (activation_name(layer.cell.activation), activation_name(layer.cell.recurrent_activation))
    first, second = (on_backend(str(name), keras.backend.backend()) for name in names)
    return first, second


def masked_output_of(layer: Any) -> str:
    """The output of a layer where the mask is False: one of `program.MASKED_OUTPUTS`."""
    # Keras's backends differ in the output of a masked step at the very start.
    start = "previous_state" if keras.backend.backend() == "jax" else "previous_output"
    return "zero" if layer.zero_output_for_mask else start


@dataclasses.dataclass(frozen=True)
class _Lookup:
    """The note that `look_up` leaves on its output: the ids and the table it came from."""

    ids: Any
    table: Any
    summed: bool
    changes: tuple[int | None, ...]


def look_up(layer: layers.Embedding, call: Callable[[Any], Any], summed: bool, inputs: Any) -> Any:
    """The result of an Embedding, with a note of ids and table for an LSTM that receives it unchanged.

    Args:
        layer: The layer.
        call: Keras's own `call` of this layer.
        summed: Whether an LSTM computes the gradient of the table itself, and sums rows that it reads several times.
            Otherwise it computes the gradient of the returned tensor, as Keras does. On TensorFlow, optimizers then
            get the rows unsummed, which Adam and clipnorm treat differently from their sum.
        inputs: The ids.
    """
    inputs = ops.convert_to_tensor(inputs)
    outputs = call(inputs)
    if len(inputs.shape) == 2:
        table = stored(layer.embeddings)
        # The variable may be assigned to before the LSTM runs, so the note holds its value now. A TensorFlow variable
        # must be read for that.
        table = table.read_value() if hasattr(table, "read_value") else table
        # JAX differentiates functions, so an intermediate tensor has no gradient.
        summed = summed or keras.backend.backend() == "jax"
        set_tensor_attr(outputs, _LOOKUP, _Lookup(inputs, table, summed, _changes(outputs, inputs, table)))
    return outputs


def sums_gradient(embedding: layers.Embedding) -> bool | None:
    """True if an accelerated Embedding gives its table a summed gradient (see `look_up`); None if it is Keras's own."""
    call = vars(embedding).get("call")
    ours = isinstance(call, functools.partial) and call.func is look_up
    return bool(call.args[2]) if ours else None


def _activation_condition(layer: Any, name: str) -> Condition:
    function = getattr(layer.cell, name)
    known = activation_name(function)
    found = known or getattr(function, "__name__", None) or type(function).__name__
    fix = "" if known else f"one of {', '.join(ACTIVATIONS)}"
    own = getattr(function, "compute_dtype", layer.compute_dtype)
    if known and own != layer.compute_dtype:
        known, found, fix = (
            None,
            f"{found} in {own}",
            f"the activation in {layer.compute_dtype}, as the layer",
        )
    return Condition(name, known is not None, found, fix)


def _overridden(layer: Any, layer_class: Any) -> bool:
    """True if a subclass changes how the layer computes."""
    own = type(layer)
    return own.call is not layer_class.call or own.inner_loop is not layer_class.inner_loop


def _drops_all(layer: Any, mask: Any) -> bool:
    """True if Keras drops all inputs for a dropout of 1: its backends' loops do, its own cells then drop none."""
    here = Platform.of(keras.backend.backend(), layer)
    kernel, _ = recurrent(layer, None if mask is None else "a layer", here, accelerated=True)
    return kernel == "cudnn" or kernel.endswith("-projected")


def _found_lookup(sequences: Any) -> _Lookup | None:
    """The note of `look_up` on a tensor, if it is still valid."""
    found = get_tensor_attr(sequences, _LOOKUP)
    if found is None or None in found.changes:
        return None
    return found if _changes(sequences, found.ids, found.table) == found.changes else None


def _changes(*tensors: Any) -> tuple[int | None, ...]:
    """The number of times each tensor was changed in place, as `outputs += positions` does on torch; None: unknown."""
    return tuple(bridge().in_place_changes(tensor) for tensor in tensors)


def _row_numbers(ids: Any, embeddings: Any) -> Any:
    """The row numbers of ids: as in Keras, negative ids count from the end of the table."""
    ids = ops.cast(ids, "int32")
    return ops.where(ids < 0, ids + embeddings.shape[0], ids)


def _for_each_row(values: Any, sequences: Any) -> Any:
    """States (B, H) unchanged; states (1, H) repeated for all rows, like Keras's broadcast."""
    if values.shape[0] != 1 or sequences.shape[0] == 1:
        return values
    return ops.broadcast_to(values, (ops.shape(sequences)[0], *values.shape[1:]))


def _by_gate(masks: list[Any]) -> Any:
    return ops.stack([ops.cast(mask, "float32") for mask in masks])


def fewest_looked_up(rows: int) -> int:
    """The fewest steps of a batch (batch x time) for which projecting a table of `rows` rows is cheaper."""
    return math.ceil(rows / _TABLE_SHARE)


def _worth_a_table(ids: Any, embeddings: Any) -> bool:
    """True if projecting the whole table is cheaper than projecting each step."""
    rows, (batch, steps) = embeddings.shape[0], ids.shape
    if batch is None or steps is None:
        return rows <= TABLE_ROWS
    return bool(batch * steps >= fewest_looked_up(rows))
