"""Explains for every recurrent layer of a Keras model which kernel runs here, why, and what to change.

It combines `keras_graph.graph` (where the layers are, and which masks reach them) with `conditions` (what decides a
layer's kernel), and says whether the model can be packed. It runs nothing and changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
from keras import layers

from cellerate.errors import BackendError, ModelError
from cellerate.format import counted
from cellerate.keras_graph import keras2
from cellerate.keras_graph.activations import RANGE, nearest_activation
from cellerate.keras_graph.graph import UNKNOWN, TimeLayer, find_over_time, inner_layers
from cellerate.keras_graph.to_program import why_not_packed
from cellerate.kernels import native
from cellerate.layers import conditions, fused, table
from cellerate.layers.accelerate import IMPLEMENTATIONS, implementation_of, is_strict, keeps_from_cudnn
from cellerate.layers.conditions import Condition, Platform
from cellerate.layers.cuda_graph_step import captured_step
from cellerate.layers.engine import seam
from cellerate.layers.explain_embedding import lookup_conditions, small_starts
from cellerate.machine.environment import BACKENDS, installed_backends

# Two ways to compute the same activation differ by a few roundings of float32.
_NO_DIFFERENCE = 2e-6
_MARKS = {True: "ok", False: "no", None: "?"}


@dataclasses.dataclass(frozen=True)
class LayerReport:
    """The kernel of one layer, and why.

    Attributes:
        name: The layer's name.
        path: Where it is: the names of the submodels and wrappers around it and its own name, joined by "/".
        layer_class: The name of its class.
        kernel: The kernel that computes the layer, a key of `conditions.KERNELS`.
        conditions: The conditions that decide the kernel.
        implementation: The kernel's implementation: "cellerate-cpu", "cellerate-cuda", "cudnn" or "keras".
        target: The instruction set of "cellerate-cpu"; else None.
        wrapper: Whether the layer only wraps others (`Bidirectional`, `TimeDistributed`), which have their own reports.
    """

    name: str
    path: str
    layer_class: str
    kernel: str
    conditions: tuple[Condition, ...]
    implementation: str = "keras"
    target: str | None = None
    wrapper: bool = False

    @property
    def changes(self) -> tuple[Condition, ...]:
        """The conditions that fail and whose fix makes the layer faster here."""
        return tuple(c for c in self.conditions if c.holds is False and c.matters)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The kernel of every recurrent layer of a model; print it.

    Attributes:
        model: The model's name.
        backend: The Keras backend it is for.
        gpu: Whether that backend sees a GPU.
        layers: One report a layer, in the order they run.
        training_step: How a training step runs, if Cellerate has replaced Keras's; else None.
        why_not_packed: The reasons why `cellerate.pack` refuses the model, one sentence each; empty if it does not.
        notes: Further remarks on the model, one sentence each.
    """

    model: str
    backend: str
    gpu: bool
    layers: tuple[LayerReport, ...]
    training_step: str | None = None
    why_not_packed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def can_be_packed(self) -> bool:
        """True if `cellerate.pack` takes the model."""
        return not self.why_not_packed

    @property
    def summary(self) -> str:
        """One sentence: how many layers there are and which could run faster."""
        count = sum(not report.wrapper for report in self.layers)
        if not self.layers:
            return f"model {self.model!r} has no recurrent layers, so there is nothing to explain."
        slow = [report for report in self.layers if report.changes]
        named = "; ".join(f"{report.path} ({', '.join(c.name for c in report.changes)})" for report in slow)
        layers_here = counted(count, "recurrent layer")
        if not slow and self.training_step is not None and self.training_step.startswith(seam.KERASS_OWN):
            # The layers are as fast as they can be, but the engine could run the whole step.
            return (
                f"{layers_here}, none of which could run faster alone; Keras runs the training step, for the reasons "
                "above."
            )
        return f"{layers_here}; {len(slow)} could run faster{f': {named}' if slow else ''}."

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain values for JSON."""
        values = dataclasses.asdict(self)
        for report, layer in zip(self.layers, values["layers"], strict=True):
            layer["kernel_description"] = conditions.KERNELS[report.kernel]
            layer["conditions"] = list(layer["conditions"])
        lists = {name: list(values[name]) for name in ("layers", "why_not_packed", "notes")}
        return values | lists | {"can_be_packed": self.can_be_packed, "summary": self.summary}

    def __str__(self) -> str:
        if not self.layers:
            return f"{self.summary}\n{self._packing}"
        lines = [
            f"model {self.model!r}, backend {self.backend}, {'GPU' if self.gpu else 'CPU (no GPU visible)'}",
            *self.notes,
            self._packing,
            "ok: holds   no: change it to run faster here   --: no known gain here   ?: known when called",
            "",
        ]
        for report in self.layers:
            lines += [*_block(report), ""]
        if self.training_step is not None:
            lines += [f"training step: {self.training_step}", ""]
        return "\n".join([*lines, self.summary])

    @property
    def _packing(self) -> str:
        """A sentence that says if the model can be packed."""
        if self.can_be_packed:
            return "can be packed: yes"
        if len(self.why_not_packed) == 1:
            return f"can be packed: no, because {self.why_not_packed[0]}"
        return "\n".join(["can be packed: no, because", *(f"- {reason}" for reason in self.why_not_packed)])


def explain(model: keras.Model, *, backend: str | None = None) -> Explanation:
    """Explains which kernel Keras runs for each recurrent layer in `fit`, `evaluate` and `predict`.

    Args:
        model: Any Keras model; submodels and wrappers are looked into. For a subclassed model, whose graph
            cannot be read, a mask is "unknown until called".
        backend: "tensorflow", "jax" or "torch"; None for the active backend. Another one must be installed; the
            explanation then says what Keras would run on it. Only `explain` on that backend itself can tell whether
            Cellerate's kernels would run.

    Returns:
        The explanation; print it, or take `to_dict()`.

    Raises:
        ModelError: `model` is not a Keras model or layer.
        BackendError: `backend` is unknown or not installed.

    Example:
        >>> model = keras.Sequential([keras.Input((None, 8)), keras.layers.LSTM(16, activation="relu")])
        >>> print(explain(model))  # doctest: +SKIP
    """
    if not isinstance(model, keras.Layer):
        keras2.refuse(model)
        raise ModelError(
            f"explain needs a Keras model, got {type(model).__name__}. Load a saved one first, with "
            "keras.saving.load_model; a packed one explains itself: cellerate.load(path).explain()."
        )
    chosen = keras.backend.backend() if backend is None else backend
    if chosen not in BACKENDS:
        raise BackendError(f"explain knows the backends {', '.join(BACKENDS)}, not {chosen!r}.")
    if chosen not in installed_backends():
        raise BackendError(
            f"backend {chosen!r} is not installed. Install it with: pip install 'cellerate[{chosen}]'"
        )
    here = Platform.of(chosen, model)
    over_time = find_over_time(model)
    reports = [report for found in over_time for report in _reports(found, here)]
    notes = small_starts(model, over_time)
    if chosen == "tensorflow" and any(report.implementation.startswith("cellerate") for report in reports):
        notes = [_WITHOUT_XLA, *notes]
        reports = [_offers_no_xla(report) for report in reports]
    runs_it = chosen == keras.backend.backend()
    step = (captured_step(model) or seam.described(model)) if runs_it else None
    return Explanation(
        model.name, chosen, here.gpu, tuple(reports), step, why_not_packed(model), tuple(notes)
    )


_WITHOUT_XLA = (
    "XLA is off (jit_compile=False), because it cannot compile the kernels, which TensorFlow calls through Python. The "
    'rest of the model runs as a TensorFlow graph; jit_compile="auto" means the same, jit_compile=True is turned off '
    "with a warning, and tf.function(jit_compile=True) around the model runs Keras's own code. "
    "cellerate.restore(model) allows XLA."
)


def _offers_no_xla(report: LayerReport) -> LayerReport:
    """The report of a layer in a model that XLA cannot compile."""
    met = tuple(dataclasses.replace(c, fix="") if c.name == "XLA" else c for c in report.conditions)
    return dataclasses.replace(report, conditions=met)


def _reports(found: TimeLayer, here: Platform, *, in_cudnn: bool = False) -> Iterator[LayerReport]:
    """The report of a layer; for a wrapper, followed by the reports of the layers in it."""
    layer = found.layer
    # `accelerate` put kernels into the layer for the active backend; they say nothing about another backend.
    runs = here.backend == keras.backend.backend()
    ours = implementation_of(layer)

    def report(kernel: str, met: list[Condition], wrapper: bool = False) -> LayerReport:
        other = "cudnn" if "cudnn" in kernel else "keras"
        implementation = kernel if kernel in IMPLEMENTATIONS else other
        target = native.target() if implementation == "cellerate-cpu" else None
        return LayerReport(
            layer.name, found.path, type(layer).__name__, kernel, tuple(met), implementation, target, wrapper
        )

    if isinstance(layer, layers.Bidirectional):
        kernel, met = conditions.bidirectional(layer, found.mask, here)
        if runs and keeps_from_cudnn(layer):
            kernel, met = "two-passes", []
        yield report(kernel, met, wrapper=True)
        for inner in (layer.forward_layer, layer.backward_layer):
            if isinstance(inner, layers.RNN):
                inside = dataclasses.replace(found, layer=inner, path=f"{found.path}/{inner.name}")
                yield from _reports(inside, here, in_cudnn=kernel == "cudnn-bidirectional")
    elif isinstance(layer, layers.TimeDistributed):
        yield report(*conditions.time_distributed(layer, found.steps, here), wrapper=True)
        for inside in _inside(layer, found):
            yield from _reports(inside, here)
    elif runs and ours is not None:
        met = [
            *table.kernels_of(layer).fit_conditions(layer, ours),
            *lookup_conditions(layer, found.embedding),
        ]
        met += _call_conditions(layer, found, ours)
        yield report(ours, [*met, *_cudnn_condition(layer, found.mask, here)])
    elif isinstance(layer, layers.RNN):
        kernel, met = conditions.recurrent(layer, found.mask, here, accelerated=ours is not None)
        # On a GPU, TensorFlow has only its own kernels.
        ours_too = not here.gpu or here.backend != "tensorflow"
        if not isinstance(layer, table.LAYERS):
            met = [_without_kernels(layer), *met]
        elif ours_too:
            met = [*(_accelerating(layer) if runs else _elsewhere(here)), *met]
        yield report("cudnn" if in_cudnn else kernel, met)


def _call_conditions(layer: layers.RNN, found: TimeLayer, ours: str) -> list[Condition]:
    """The conditions that send single calls of an accelerated layer to Keras's code."""
    met = []
    if layer.unroll and found.mask is not None:
        fix, holds = "unroll=False: the kernels need no unrolling", None if found.mask == UNKNOWN else False
        met.append(Condition("unroll", holds, f"unroll=True, mask from {found.mask}", fix))
    if keras.backend.backend() == "tensorflow":
        does = "refused" if is_strict(layer) else "Keras's own code"
        met.append(Condition("XLA or a file", None, f"in what XLA compiles or a file holds: {does}"))
    trains, predicts = (fused.too_short(layer, found.steps, training=training) for training in (True, False))
    reason = trains or predicts
    if reason is not None and ours == "cellerate-cpu" and not is_strict(layer):
        met.append(
            Condition(
                "time steps", False, reason, f'accelerate(model, "{ours}") takes the kernels', matters=False
            )
        )
    return met


def _cudnn_condition(layer: layers.RNN, mask: str | None, here: Platform) -> list[Condition]:
    """The condition under which cuDNN runs single calls of an accelerated layer."""
    if is_strict(layer) or not here.gpu:
        return []
    if any(c.holds is False for c in conditions.cudnn_conditions(layer, "lstm", mask, here)):
        return []
    measured = "measured at the first call of each size; the faster of the two runs"
    return [Condition("cuDNN", None, measured, matters=False)]


def _accelerating(layer: layers.RNN) -> list[Condition]:
    """The conditions on which Cellerate's kernels could run a layer that Keras runs now."""
    met = table.kernels_of(layer).fit_conditions(layer, fused.implementation_here())
    failed = [c for c in met if not c.holds]
    if not failed:
        return [Condition("accelerated", False, "Keras's own code", "cellerate.accelerate(model)")]
    return [dataclasses.replace(c, name=f"accelerated: {c.name}", fix=_fix(layer, c)) for c in failed]


def _fix(layer: layers.RNN, failed: Condition) -> str:
    """The change that meets a condition of Cellerate's kernels; for an unknown activation the nearest known."""
    if failed.name not in ("activation", "recurrent_activation"):
        return failed.fix
    nearest = nearest_activation(getattr(layer.cell, failed.name))
    if nearest is None:
        return failed.fix
    name, difference = nearest
    if difference < _NO_DIFFERENCE:
        return f'{failed.name}="{name}" gives the same for {RANGE}'
    return f'{failed.name}="{name}" comes nearest: it differs by at most {difference:.2g} for {RANGE}'


def _without_kernels(layer: layers.RNN) -> Condition:
    """The condition that a layer of another class fails: Cellerate leaves it to Keras."""
    found = f"Cellerate has no kernels for {type(layer).__name__}: it stays with Keras"
    return Condition("accelerated: class", False, found, table.KNOWN, matters=False)


def _elsewhere(here: Platform) -> list[Condition]:
    """The condition for an inactive backend: whether Cellerate's kernels run can be asked only on it."""
    found = f"Cellerate's kernels are asked where {here.backend} runs"
    return [Condition("accelerated", None, found, f"KERAS_BACKEND={here.backend}, and explain there")]


def _inside(layer: layers.TimeDistributed, found: TimeLayer) -> Iterator[TimeLayer]:
    """The recurrent layers in a `TimeDistributed`: its layer, or those of the model it holds."""
    inner = layer.layer
    if isinstance(inner, layers.RNN | layers.Bidirectional | layers.TimeDistributed):
        # The mask belongs to the outer time axis, not to the inner layer's; Keras passes one step of it on.
        mask = UNKNOWN if found.mask is not None else None
        yield TimeLayer(inner, f"{found.path}/{inner.name}", mask, None)
    elif inner_layers(inner):
        for deeper in find_over_time(inner):
            yield dataclasses.replace(deeper, path=f"{found.path}/{inner.name}/{deeper.path}")


def _block(report: LayerReport) -> Iterator[str]:
    """The lines of one layer."""
    yield f"{report.path} ({report.layer_class})"
    target = f" ({report.target})" if report.target else ""
    yield f"  kernel  {report.kernel}{target}: {conditions.KERNELS[report.kernel]}"
    width = max((len(c.name) for c in report.conditions), default=0)
    for c in report.conditions:
        mark = "--" if c.holds is not True and not c.matters else _MARKS[c.holds]
        fix = f"  -> {c.fix}" if c.fix and c.holds is not True else ""
        yield f"  {mark:<2}  {c.name:<{width}}  {c.found}{fix}"
