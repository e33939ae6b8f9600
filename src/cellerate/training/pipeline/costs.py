"""The measured costs of a model's layers, by which it is divided into stages."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.errors import ModelError
from cellerate.layers.chunked import ChunkedLayers
from cellerate.models.trunk import Trunk, trunk_of
from cellerate.training.pipeline.division import balanced, bubble_share, chunk_bounds, default_chunks
from cellerate.training.pipeline.parts import StageBatch, judging, preparing

_REPEATED = 3


@dataclasses.dataclass(frozen=True)
class LayerCosts:
    """The cost of each layer of a trunk in a step of training.

    Attributes:
        names: The layers.
        seconds: Seconds a step, forward and backward; the first layer includes what comes before the trunk, the last
            layer what comes after it, with the loss.
        bytes: The bytes that each layer passes to the next in a step.
        chunks: The number of chunks of time that were timed.
    """

    names: tuple[str, ...]
    seconds: tuple[float, ...]
    bytes: tuple[int, ...]
    chunks: int


def measured_costs(
    trainer: keras.Model, trunk: Trunk, source: BatchSource, bridge: Any, stages: int, chunks: int | None
) -> LayerCosts:
    """Times each layer of a model separately on a batch. The model does not change.

    Args:
        trainer: The compiled model.
        trunk: Its trunk.
        source: The training batches.
        bridge: The backend's module for stages.
        stages: The number of stages.
        chunks: The number of chunks of time; None for `default_chunks`.
    """
    batch = StageBatch.of(trainer, trunk, source.batch(0, 0))
    chunks = chunks or default_chunks(batch.steps, stages)
    begin, end = chunk_bounds(batch.steps, chunks)[-1]
    chunks = min(chunks, batch.steps)
    before = _values(trainer)
    seconds, sizes = [], []
    entry = trunk.entry
    for layer, made in zip(trunk.layers, trunk.tensors, strict=True):
        chunk = _like(entry, (batch.rows, end - begin, *entry.shape[2:]))
        seconds.append(chunks * _layer_seconds(layer, chunk, batch.rows, bridge))
        size = keras.backend.standardize_dtype(made.dtype)
        width = 2 if size in ("bfloat16", "float16") else 4
        sizes.append(batch.rows * (batch.steps if len(made.shape) == 3 else 1) * int(made.shape[-1]) * width)
        entry = made
    if trunk.before is not None:
        part = bridge.StagePart(preparing(trunk), trunk.before.trainable_variables, ())
        seconds[0] += _seconds(lambda: part.infer(batch.entering, None, ()), bridge)
    shape = (batch.rows, *((batch.steps,) if len(entry.shape) == 3 else ()), *entry.shape[-1:])
    seconds[-1] += _judging_seconds(trainer, trunk, batch, _like(entry, shape), bridge)
    for variable, value in before:
        variable.assign(value)
    return LayerCosts(tuple(layer.name for layer in trunk.layers), tuple(seconds), tuple(sizes), chunks)


def planned_stages(trainer: keras.Model, source: BatchSource, stages: int) -> dict[str, Any]:
    """A division of a model into stages, with the facts that `distributed.plan` needs, for JSON.

    Args:
        trainer: The compiled model.
        source: The training batches.
        stages: The number of stages.

    Returns:
        For each stage its `layers`, its `seconds` a step, and the `bytes` that it passes to the next in a step;
        `chunks`, the number of chunks of time; and `bubble`, the share of the time that equal stages wait.

    Raises:
        ModelError: The model cannot be divided.
        ConfigError: The model has fewer layers than stages.
    """
    bridge = importlib.import_module(f"cellerate.bridges.{keras.config.backend()}_stages")
    costs = measured_costs(trainer, divisible(trainer, stages), source, bridge, stages, None)
    ranges = balanced(costs.seconds, stages)
    return {
        "layers": [[costs.names[number] for number in own] for own in ranges],
        "seconds": [sum(costs.seconds[number] for number in own) for own in ranges],
        "bytes": [costs.bytes[own[-1]] for own in ranges[:-1]],
        "chunks": costs.chunks,
        "bubble": bubble_share(stages, costs.chunks),
    }


def divisible(model: keras.Model, stages: int) -> Trunk:
    """The trunk of a model that is to be divided. Raises `ModelError` or `ConfigError` if it cannot be."""
    trunk = trunk_of(model)
    balanced([1.0] * len(trunk.layers), stages)
    if model.losses:
        raise ModelError(
            f"layers of model {model.name!r} add losses or have regularizers, which need the weights of all stages: "
            "train it without them (weight decay of the optimizer works), or in one stage."
        )
    return trunk


def _values(trainer: keras.Model) -> list[tuple[Any, np.ndarray]]:
    """The values that timing changes: the seeds of dropout and the metrics."""
    changed = [*trainer.non_trainable_variables, *trainer.metrics_variables]
    return [(variable, np.array(keras.ops.convert_to_numpy(variable.value))) for variable in changed]


def _like(tensor: Any, shape: Sequence[int]) -> Any:
    if "int" in keras.backend.standardize_dtype(tensor.dtype):
        return keras.ops.zeros(shape, tensor.dtype)
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return keras.ops.convert_to_tensor(values, tensor.dtype)


def _layer_seconds(layer: keras.Layer, chunk: Any, rows: int, bridge: Any) -> float:
    """Seconds of a chunk, forward and backward."""
    run = ChunkedLayers([layer])
    whole = "int" in keras.backend.standardize_dtype(chunk.dtype)

    def called(fixed: Any, x: Any, states: Sequence[Any], training: bool) -> Any:
        return run(fixed if x is None else x, states, training)

    part = bridge.StagePart(called, layer.trainable_variables, layer.non_trainable_variables)
    states = run.initial_states(rows)

    def once() -> Any:
        fixed, x = (chunk, None) if whole else (None, chunk)
        y, after, tape = part.forward(fixed, x, states)
        gone = part.backward(tape, keras.ops.ones_like(y), [None for _ in after])
        return gone, part.take_gradients()

    return _seconds(once, bridge)


def _judging_seconds(trainer: keras.Model, trunk: Trunk, batch: StageBatch, end: Any, bridge: Any) -> float:
    run, trainable, others = judging(trainer, trunk)
    part = bridge.StagePart(run, trainable, others)

    def once() -> Any:
        loss, _, tape = part.forward(batch.judged(1.0), end, ())
        gone = part.backward(tape, keras.ops.ones_like(loss), ())
        return gone, part.take_gradients()

    return _seconds(once, bridge)


def _seconds(once: Callable[[], Any], bridge: Any) -> float:
    """The shortest of a few repetitions, after one that compiles."""
    found = []
    for _ in range(1 + _REPEATED):
        began = time.perf_counter()
        bridge.settled(once())
        found.append(time.perf_counter() - began)
    return min(found[1:])
