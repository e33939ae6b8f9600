"""The kernel that Keras runs for one recurrent layer, and each condition that decides it.

These are facts about Keras, one backend at a time; `explain` gathers them over a model and prints them. The rules
are those of `LSTM.inner_loop`, `GRU.inner_loop`, `RNN.inner_loop` and of each backend's `rnn.py`. What a backend
offers is probed, not deduced from its version.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from cellerate.keras_graph.graph import UNKNOWN
from cellerate.keras_graph.keras_backend import recurrent_functions
from cellerate.machine import gpu

KERNELS = {
    "cellerate-cpu": "Cellerate's native core: all time steps and all products in one call",
    "cellerate-cuda": "Cellerate's kernels for NVIDIA GPUs: all time steps in one call, products done once for all",
    "cudnn": "one fused cuDNN call for all time steps, on the GPU",
    "cudnn-bidirectional": "one fused cuDNN call for both directions, on the GPU",
    "xla-scan": "lax.scan: a loop compiled by XLA, both matrix products in each time step",
    "xla-scan-projected": "lax.scan compiled by XLA, the input product done once for all time steps",
    "xla-unrolled": "one copy of the cell for each time step, compiled by XLA",
    "tf-while": "tf.while_loop in a graph: the cell, both matrix products, in each time step",
    "tf-unrolled": "one copy of the cell for each time step in a TensorFlow graph",
    "python-loop": "a Python loop that calls the Keras cell, both matrix products, in each time step",
    "python-loop-projected": "a Python loop over time, the input product done once for all time steps",
    "two-passes": "the forward and the backward layer run one after the other",
    "one-call-a-step": "the inner layer is called once for each time step, all calls in one graph",
    "vectorized-map": "the inner layer is mapped over the time steps by the backend",
    "custom": "an inner loop of the layer's own, not Keras's",
}


@dataclasses.dataclass(frozen=True)
class Condition:
    """One thing that decides how fast a layer runs.

    Attributes:
        name: What is examined.
        holds: Whether the faster kernel's requirement is met; None if only a call of the model can tell.
        found: What was found.
        fix: What to change; empty if the condition holds.
        matters: Whether it makes a difference on this machine and backend.
    """

    name: str
    holds: bool | None
    found: str
    fix: str = ""
    matters: bool = True


@dataclasses.dataclass(frozen=True)
class Platform:
    """Where a layer runs.

    Attributes:
        backend: "tensorflow", "jax" or "torch".
        gpu: Whether that backend sees a GPU on which Keras would use cuDNN.
        eager: Whether the model is compiled with `run_eagerly=True`.
        xla: Whether TensorFlow compiles the model with XLA.
        rnn: The backend's module of recurrent kernels in Keras.
    """

    backend: str
    gpu: bool
    eager: bool
    xla: bool
    rnn: Any

    @classmethod
    def of(cls, backend: str, model: Any) -> Platform:
        """Probes a backend, which must be installed; `model` says how it is compiled."""
        bridge = importlib.import_module(f"cellerate.bridges.{backend}")
        compiled = bool(getattr(model, "compiled", False)) and keras.backend.backend() == backend
        eager = compiled and bool(getattr(model, "run_eagerly", False))
        xla = backend == "tensorflow" and compiled and not eager and bool(model.jit_compile)
        return cls(backend, bridge.gpu_available(), eager, xla, recurrent_functions(backend))

    def has_cudnn(self, kernel: str) -> bool:
        """True if the backend's `lstm`, `gru` or `bidirectional_…` can use cuDNN at all."""
        function = getattr(self.rnn, kernel, None)
        # Without cuDNN it is a stub that takes anything, or a function that never asks `cudnn_ok`.
        return function is not None and "cudnn_ok" in inspect.unwrap(function).__code__.co_names

    def has_projected(self, kernel: str) -> bool:
        """True if the backend's `lstm` or `gru` has its own loop and so runs without cuDNN too."""
        return (self.backend, kernel) in {("torch", "lstm"), ("torch", "gru"), ("jax", "gru")}


def plain_kernel(layer: layers.RNN, here: Platform) -> str:
    """The loop over Keras's own cell, which every recurrent layer can run."""
    if here.backend == "torch" or (here.backend == "tensorflow" and here.eager):
        return "python-loop"
    unrolled = layer.unroll
    if here.backend == "jax":
        return "xla-unrolled" if unrolled else "xla-scan"
    return "tf-unrolled" if unrolled else "tf-while"


def recurrent(
    layer: layers.RNN, mask: str | None, here: Platform, *, accelerated: bool = False
) -> tuple[str, list[Condition]]:
    """The kernel of one recurrent layer, and its conditions.

    Args:
        layer: Any `keras.layers.RNN`.
        mask: None, `UNKNOWN`, or the source of the mask that reaches the layer.
        here: The backend and device.
        accelerated: Whether the layer's inner loop is Cellerate's; the result then describes Keras's own loop.
    """
    fused = {layers.LSTM: "lstm", layers.GRU: "gru"}
    kind = next((name for cls, name in fused.items() if isinstance(layer, cls)), None)
    own_loop = None if accelerated else _own_inner_loop(layer)
    if own_loop is not None:
        return "custom", [Condition("Keras's inner loop", None, own_loop, matters=False)]
    if kind is None:
        return plain_kernel(layer, here), [
            *_not_fused(layer, here),
            *_loop(layer, here, plain_kernel(layer, here)),
        ]

    cudnn = cudnn_conditions(layer, kind, mask, here)
    needed = _needed(kind, here)
    gains = _gains(needed, here)
    if here.has_cudnn(kind) and here.gpu and all(c.holds is not False for c in cudnn):
        kernel = "cudnn"
    elif here.has_projected(kind) and all(c.holds is not False for c in cudnn if c.name in needed):
        kernel = "xla-scan-projected" if here.backend == "jax" else "python-loop-projected"
    else:
        kernel = plain_kernel(layer, here)
    conditions = [
        dataclasses.replace(c, matters=c.name in gains or (here.gpu and here.has_cudnn(kind))) for c in cudnn
    ]
    # No change to the model brings a GPU.
    conditions = [dataclasses.replace(c, matters=False) if c.name == "GPU" else c for c in conditions]
    return kernel, conditions + ([] if kernel == "cudnn" else _loop(layer, here, kernel))


def bidirectional(
    layer: layers.Bidirectional, mask: str | None, here: Platform
) -> tuple[str, list[Condition]]:
    """The kernel of a `Bidirectional` wrapper, and the conditions of running both directions in one call."""
    forward, backward = layer.forward_layer, layer.backward_layer
    kind = next((k for k, c in (("lstm", layers.LSTM), ("gru", layers.GRU)) if isinstance(forward, c)), None)
    if kind is None or not isinstance(backward, type(forward)):
        return "two-passes", []
    fused = here.has_cudnn(f"bidirectional_{kind}")
    found = [
        Condition(
            "one call for both directions",
            fused,
            f"Keras {'has' if fused else 'has no'} fused bidirectional {kind.upper()} on {here.backend}",
            "" if fused else "none in Keras: each direction runs as shown below",
            False,
        )
    ]
    if not fused:
        return "two-passes", found
    cell, other = forward.cell, backward.cell
    same = (
        cell.units == other.units
        and cell.activation is other.activation
        and cell.recurrent_activation is other.recurrent_activation
    )
    found += [
        Condition("stateful", not layer.stateful, f"stateful={layer.stateful}", "stateful=False"),
        Condition(
            "dropout",
            not (cell.dropout or other.dropout),
            f"dropout={cell.dropout:g}",
            "a keras.layers.Dropout before the layer instead of its dropout argument",
        ),
        Condition("same cells", same, f"units {cell.units} and {other.units}", "equal cells both ways"),
    ]
    usable = here.gpu and all(c.holds for c in found)
    for inner in (forward, backward):
        usable = usable and all(c.holds is not False for c in cudnn_conditions(inner, kind, mask, here))
    found = [
        dataclasses.replace(c, fix="" if c.holds else c.fix, matters=c.matters and here.gpu) for c in found
    ]
    return ("cudnn-bidirectional" if usable else "two-passes"), found


def time_distributed(
    layer: layers.TimeDistributed, steps: int | None, here: Platform
) -> tuple[str, list[Condition]]:
    """The kernel of a `TimeDistributed` wrapper, and whether the wrapper is needed at all."""
    needless = isinstance(
        layer.layer, layers.Dense | layers.Dropout | layers.Activation | layers.LayerNormalization
    )
    inner = type(layer.layer).__name__
    condition = Condition(
        "wrapper needed",
        not needless,
        f"TimeDistributed({inner})",
        f"use {inner} itself: it treats each time step alike already" if needless else "",
    )
    return ("vectorized-map" if steps is None else "one-call-a-step"), [condition]


def cudnn_conditions(layer: Any, kind: str, mask: str | None, here: Platform) -> list[Condition]:
    """The conditions that Keras checks before it runs an LSTM or GRU on cuDNN, by the layer's arguments."""
    has = here.has_cudnn(kind)
    device = "a GPU is visible" if here.gpu else f"no GPU is visible to {here.backend}"
    elsewhere = "run on a machine with a GPU and this backend's GPU build"
    if not here.gpu:
        reason, there = _without_gpu(here.backend)
        device += f": {reason}" if reason is not None else ""
        # If the machine has a GPU, the reason says what to do.
        elsewhere = "" if reason is not None and there else elsewhere
    conditions = [
        _condition("cuDNN kernel", has,
                   f"Keras {'has' if has else 'has no'} cuDNN {kind.upper()} on {here.backend}",
                   "none in Keras for this backend"),
        _condition("GPU", here.gpu, device, elsewhere),
        _condition("use_cudnn", layer.use_cudnn in ("auto", True), f"use_cudnn={layer.use_cudnn!r}",
                   'use_cudnn="auto"'),
        _condition("activation", _is(layer.activation, keras.activations.tanh, keras.ops.tanh),
                   _name(layer.activation), 'activation="tanh"'),
        _condition("recurrent_activation",
                   _is(layer.recurrent_activation, keras.activations.sigmoid, keras.ops.sigmoid),
                   _name(layer.recurrent_activation), 'recurrent_activation="sigmoid"'),
        _condition("recurrent_dropout", not layer.recurrent_dropout, f"{layer.recurrent_dropout:g}",
                   "recurrent_dropout=0, with dropout or Dropout layers instead"),
        _condition("unroll", not layer.unroll, f"unroll={layer.unroll}", "unroll=False"),
        _condition("use_bias", layer.use_bias, f"use_bias={layer.use_bias}", "use_bias=True"),
    ]  # fmt: skip
    if kind == "gru":
        conditions.append(
            _condition(
                "reset_after", layer.reset_after, f"reset_after={layer.reset_after}", "reset_after=True"
            )
        )
    conditions.append(_mask_condition(mask, here))
    if here.backend == "jax" and kind == "lstm":
        # JAX's cuDNN binding lowers only float32 and float64; it fails while compiling, after Keras has chosen it.
        dtype = layer.compute_dtype
        conditions.append(
            _condition("dtype", dtype in ("float32", "float64"), dtype,
                       'dtype="float32" on this layer; on a GPU this dtype fails to compile with '
                       'use_cudnn="auto", and runs as a scan with use_cudnn=False')
        )  # fmt: skip
    return conditions


@functools.cache
def _without_gpu(backend: str) -> tuple[str | None, bool]:
    """Why a backend sees no GPU, and whether this machine has one; cached, as neither changes within a process."""
    facts = gpu.facts()
    return gpu.diagnose(backend, facts), bool(facts.devices)


def _mask_condition(mask: str | None, here: Platform) -> Condition:
    if mask is None:
        return Condition("mask", True, "none")
    if mask == UNKNOWN:
        return Condition("mask", None, UNKNOWN, "call the layer without a mask")
    without = "no mask, if the model can do without: give the padding a sample_weight of 0 in the loss"
    if here.backend == "tensorflow" and here.gpu:
        return Condition(
            "mask",
            None,
            f"from {mask}; cuDNN needs every row right-padded and none all padding, else the call fails",
            f"padding on the right; or {without}",
        )
    return Condition("mask", False, f"from {mask}", without)


def _needed(kind: str, here: Platform) -> frozenset[str]:
    """The conditions for the backend's loop with one input product for all steps."""
    if not here.has_projected(kind):
        return frozenset()
    names = {"use_cudnn", "recurrent_dropout", "mask"}
    if kind == "gru":
        names.add("reset_after")
    if here.backend == "jax":
        names.add("unroll")
    return frozenset(names)


def _gains(needed: frozenset[str], here: Platform) -> frozenset[str]:
    """The conditions of a loop that make it faster, as measured on CPUs with 2 cores.

    On torch a training step took 267 ms, with a mask 440 ms (LSTM, T=50, H=128, B=32). On JAX the projected loop of
    a GRU was no faster on a CPU than the plain one. On TensorFlow a mask cost 10 to 20 %.
    """
    if here.backend == "tensorflow":
        return frozenset() if here.gpu else frozenset({"mask"})
    return needed if here.backend == "torch" or here.gpu else frozenset()


def _not_fused(layer: layers.RNN, here: Platform) -> list[Condition]:
    """Why a layer that is neither LSTM nor GRU can only run the plain loop."""
    better = {layers.LSTMCell: "lstm", layers.GRUCell: "gru"}
    kind = next((name for cls, name in better.items() if type(layer.cell) is cls), None)
    if kind is not None and type(layer) is layers.RNN:
        gains = bool(_gains(_needed(kind, here), here) - {"mask"}) or (here.gpu and here.has_cudnn(kind))
        return [
            Condition(
                "fused layer",
                False,
                f"RNN({type(layer.cell).__name__})",
                f"keras.layers.{kind.upper()}",
                gains,
            )
        ]
    if isinstance(layer.cell, layers.StackedRNNCells):
        gains = here.gpu or here.backend == "torch"
        fix = "one LSTM or GRU layer for each cell, return_sequences=True on all but the last"
        return [
            Condition("fused layer", False, f"{len(layer.cell.cells)} stacked cells in one RNN", fix, gains)
        ]
    return [
        Condition(
            "fused layer",
            False,
            f"Keras has no fused kernel for {type(layer).__name__}",
            "LSTM or GRU",
            here.gpu,
        )
    ]


def _loop(layer: layers.RNN, here: Platform, kernel: str) -> list[Condition]:
    """The conditions that make the loop itself slower or faster."""
    conditions = []
    cell_runs = kernel in ("tf-while", "tf-unrolled", "python-loop")
    implementation = getattr(layer.cell, "implementation", None)
    if cell_runs and implementation is not None:
        forced = bool(getattr(layer.cell, "recurrent_dropout", 0))
        conditions.append(
            _condition("implementation", implementation == 2,
                       f"{implementation}{', for recurrent_dropout' if forced else ''}: one product a gate",
                       "recurrent_dropout=0" if forced else "implementation=2")
            if implementation != 2
            else Condition("implementation", True, "2: one product for all gates")
        )  # fmt: skip
    if here.backend == "torch":
        conditions.append(
            Condition(
                "compiled loop",
                False,
                "torch runs one round of Python for each time step",
                "KERAS_BACKEND=jax or tensorflow, which compile the loop",
            )
        )
    elif here.backend == "tensorflow":
        conditions.append(
            _condition("graph", not here.eager, f"run_eagerly={here.eager}", "compile(run_eagerly=False)")
        )
        if not here.gpu and not here.eager:
            # On CPUs XLA was measured faster at some sizes and slower at others.
            fix = "" if here.xla else "compile(jit_compile=True) may be faster or slower on a CPU: time both"
            conditions.append(Condition("XLA", here.xla, f"jit_compile={here.xla}", fix, matters=False))
    elif here.eager:
        conditions.append(Condition("jit", False, "run_eagerly=True", "compile(run_eagerly=False)"))
    if kernel == "xla-unrolled":
        conditions.append(
            Condition(
                "rolled loop",
                False,
                "unroll=True",
                "unroll=False: XLA compiles one cell, not one a time step",
            )
        )
    return conditions


def _own_inner_loop(layer: layers.RNN) -> str | None:
    """A description of the layer's own inner loop; None if it is Keras's."""
    if "inner_loop" in vars(layer):
        return "inner_loop was replaced on this layer"
    function = type(layer).inner_loop
    if function.__module__.startswith("keras."):
        return None
    return f"{type(layer).__name__} defines its own inner_loop"


def _condition(name: str, holds: bool, found: str, fix: str) -> Condition:
    return Condition(name, bool(holds), found, "" if holds else fix)


def _is(function: Callable[..., Any], *accepted: Callable[..., Any]) -> bool:
    return any(function is one for one in accepted)


def _name(activation: Any) -> str:
    return str(getattr(activation, "__name__", None) or type(activation).__name__)
