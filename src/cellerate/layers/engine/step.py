"""A model's training step on the engine: what the core takes, and what Keras sees of it."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import optimizers
from keras.src import tree

from cellerate.kernels.training import cpu
from cellerate.layers.engine.gradient_norm import norms_of
from cellerate.layers.engine.graph import TrainingGraph, read_training
from cellerate.layers.engine.lending import Lender
from cellerate.layers.engine.losses import (
    Measured,
    Objective,
    Observed,
    metrics_of,
    objectives_of,
    sees_masks,
)
from cellerate.layers.engine.observer import Observer
from cellerate.layers.engine.updates import (
    OptimizerUpdate,
    StepCounter,
    has_penalty,
    in_parts,
    kept_by,
    penalties_of,
    rule_of,
    trained_weight,
    update_of,
)


class Misfit(Exception):  # noqa: N818  (it is always caught)
    """Why a batch goes Keras's own way."""


@dataclasses.dataclass(frozen=True)
class StepParts:
    """The parts of a model's training step.

    Attributes:
        graph: Its graph.
        objectives: Its losses.
        measured: Its metrics that the core averages.
        observed: Its other metrics.
        update: The update of its optimizer; None for a step that only judges the model.
        rows_apart: Whether the rows of embeddings are treated apart, as stock Keras on TensorFlow does.
    """

    graph: TrainingGraph
    objectives: Sequence[Objective]
    measured: Sequence[Measured]
    observed: Sequence[Observed]
    update: OptimizerUpdate | None
    rows_apart: bool


class EngineStep:
    """The step of a compiled model, whose optimizer, losses and metrics are built: it trains or judges.

    Attributes:
        lender: What has the values of the model's variables.

    Args:
        model: The model.
        parts: What `parts_of` gives for it.
    """

    def __init__(self, model: keras.Model, parts: StepParts) -> None:
        self._model, self._parts = model, parts
        graph, update = parts.graph, parts.update
        trained = [one for one in model.trainable_variables if update is not None or has_penalty(one)]
        moving = [
            variable
            for layer in graph.normalized.values()
            for variable in (layer.moving_mean, layer.moving_variance)
        ]
        large = [*trained, *moving, *(weight.variable for weight in graph.weights.values())]
        counters: list[Any] = []
        if update is not None:
            large += kept_by(model.optimizer, update)
            self._counter = StepCounter(model.optimizer, update, self._array)
            counters = self._counter.variables
        self._tracker = model._loss_tracker
        trackers = [one.tracker for one in parts.objectives if one.tracker is not None]
        metrics = [self._tracker, *trackers, *(measured.metric for measured in parts.measured)]
        small = [
            *counters,
            *(drops.seed.state for drops in graph.drops.values()),
            *(carried.variable for carried in graph.carried),
            *(variable for metric in metrics for variable in (metric.total, metric.count)),
        ]
        shared = large if keras.backend.backend() == "torch" else []
        self.lender = Lender([*large, *small], shared, graph.fixed)
        self._observer = Observer(parts.observed) if parts.observed else None
        self._sizes: dict[Any, Any] = {}
        self._nodes = [
            dataclasses.replace(node, arrays={name: self._node_array(number, name) for name in node.arrays})
            for number, node in enumerate(graph.nodes)
        ]
        self._shapes = {
            number: node.options["shape"] for number, node in enumerate(self._nodes) if node.op == "input"
        }
        self._seen = sorted({one.output for one in parts.observed})
        self._program = self._made(trained)

    def _array(self, variable: Any) -> np.ndarray:
        return self.lender.array(variable)

    def _node_array(self, number: int, name: str) -> np.ndarray:
        """An array of a node: a variable's, a part of one, or a constant."""
        graph = self._parts.graph
        weight = graph.weights.get((number, name))
        if weight is None:
            return graph.nodes[number].arrays[name]
        array = self._array(weight.variable)
        return array if weight.part is None else array[weight.part]

    def _made(self, trained: Sequence[Any]) -> cpu.TrainingProgram:
        """The step as the core has it."""
        parts, optimizer = self._parts, self._model.optimizer
        outputs = parts.graph.outputs
        heads = [
            cpu.LossHead(
                *outputs[one.output],
                one.rule,
                one.mean,
                one.factor,
                tuple(measured.rule for measured in self._measures(place)),
            )
            for place, one in enumerate(parts.objectives)
        ]
        update = None if parts.update is None else rule_of(optimizer, parts.update)
        divided = parts.graph.divided
        return cpu.TrainingProgram(
            self._nodes,
            [parts.graph.rates(number) for number in range(len(self._nodes))],
            [
                weight
                for one in trained
                for weight in in_parts(
                    trained_weight(optimizer, parts.update, one, self._array), id(one) in divided
                )
            ],
            heads,
            cpu.StepRules(
                cpu.UpdateRule("sgd") if update is None else update,
                parts.rows_apart,
                parts.update is not None and norms_of(optimizer) is not None,
                (
                    *(outputs[place][0] for place in self._seen),
                    *(carried.node for carried in parts.graph.carried),
                ),
                tuple(
                    cpu.Moments(
                        number,
                        self._array(layer.moving_mean),
                        self._array(layer.moving_variance),
                        float(layer.momentum),
                    )
                    for number, layer in parts.graph.normalized.items()
                ),
            ),
        )

    def _measures(self, place: int) -> list[Measured]:
        """The metrics that are averaged beside a loss: those of its output, if it is the first there."""
        output = self._parts.objectives[place].output
        first = next(n for n, one in enumerate(self._parts.objectives) if one.output == output)
        return [one for one in self._parts.measured if one.output == output] if first == place else []

    def run(self, data: Any, *, training: bool) -> dict[str, Any]:
        """Trains on a batch as Keras's `train_step` takes it, or judges one as its `test_step`, and gives the logs.

        Raises:
            Misfit: The batch must go Keras's own way; nothing has changed.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        inputs = self._inputs(x)
        rows = len(inputs[0])
        sizes, shapes = self._sizes_of(tuple(array.shape for array in inputs))
        targets = _for_each_output(y, self._model, len(shapes))
        weights = _weights_for_each(sample_weight, self._model, len(shapes))
        compared = [
            _compared(one.rule, targets[one.output], weights[one.output], (rows, *shapes[one.output]))
            for one in self._parts.objectives
        ]
        copies = [np.empty((rows, *shapes[place]), np.float32) for place in self._seen]
        states = [self._array(carried.variable) for carried in self._parts.graph.carried]
        after = [np.empty_like(state) for state in states]
        keys = self._keys() if training else [0] * len(self._nodes)
        numbers = self._counter.numbers() if training else None
        try:
            totals = self._program.run(sizes, inputs, keys, compared, [*copies, *after], numbers)
        except (IndexError, ValueError) as error:
            raise Misfit(str(error)) from error
        if training:
            self._counter.count(totals.norm)
        for state, value in zip(states, after, strict=True):
            state[...] = value
        logs = self._logs(totals, rows, [rows * one.positions for one in compared])
        if self._observer is not None:
            outputs = dict(zip(self._seen, copies, strict=True))
            logs.update(self._observer.update(targets, outputs, weights))
        return logs

    def _inputs(self, x: Any) -> list[np.ndarray]:
        names = self._parts.graph.inputs
        if isinstance(x, Mapping):
            if set(x) != set(names):
                raise Misfit("its inputs have other names")
            flat = [x[name] for name in names]
        else:
            flat = list(tree.flatten(x))
        if len(flat) != len(names):
            raise Misfit(f"it has {len(flat)} inputs")
        found = [
            _input(values, shape, str(self._nodes[number].options["dtype"]))
            # States that are carried on come after the inputs.
            for values, (number, shape) in zip(flat, self._shapes.items(), strict=False)
        ]
        states = [self._array(carried.variable) for carried in self._parts.graph.carried]
        if any(len(state) != len(found[0]) for state in states):
            raise Misfit(f"it has {len(found[0])} rows")
        return found + states

    def _sizes_of(self, shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, list[tuple[int, ...]]]:
        """The shapes of a step in the core's form, and those of a row of the outputs."""
        key = tuple(shape[1:] for shape in shapes)
        found = self._sizes.get(key)
        if found is None:
            try:
                known = cpu.shapes_of_step(self._nodes, key)
            except ValueError as error:
                raise Misfit(str(error)) from error
            sizes = cpu.sizes_of_step(self._nodes, known)
            if sizes is None:
                raise Misfit("the engine does not know its shapes")
            found = self._sizes[key] = sizes, [known[output] for output, _ in self._parts.graph.outputs]
        return found

    def _keys(self) -> list[int]:
        """The keys of this step's random numbers; the states of their generators go on by one."""
        keys = [0] * len(self._nodes)
        for number, drops in self._parts.graph.drops.items():
            state = self._array(drops.seed.state)
            first, second = (int(each) & 0xFFFFFFFF for each in state)
            keys[number] = first | second << 32
        for state in {
            id(drops.seed): drops.seed.state for drops in self._parts.graph.drops.values()
        }.values():
            array = self._array(state)
            array[1] += 1
        return keys

    def _logs(self, totals: cpu.Totals, rows: int, positions: Sequence[int]) -> dict[str, Any]:
        """Adds to the metrics of the epoch, and gives their values so far."""
        logs: dict[str, Any] = {self._tracker.name: self._add(self._tracker, totals.loss * rows, rows)}
        for place, (objective, head) in enumerate(zip(self._parts.objectives, totals.heads, strict=True)):
            if objective.tracker is not None:
                logs[objective.tracker.name] = self._add(objective.tracker, head.loss * rows, rows)
            for measured, (total, count) in zip(self._measures(place), head.measures, strict=True):
                # As Keras, which takes the mean of each row first.
                each = positions[place] / rows
                logs[measured.name] = measured.result(self._add(measured.metric, total / each, count / each))
        return logs

    def _add(self, metric: Any, total: float, count: float) -> float:
        """Adds to the state of a mean, and gives it."""
        totals, counts = self._array(metric.total), self._array(metric.count)
        totals += np.float32(total)
        counts += np.float32(count)
        return float(totals) / float(counts) if counts else 0.0


def parts_of(model: keras.Model, *, rows_apart: bool, training: bool = True) -> StepParts | tuple[str, ...]:
    """The parts of a model's step; or all that keeps it from the engine, in words.

    Args:
        model: A compiled model whose losses, metrics and optimizer are built.
        rows_apart: Whether the rows of embeddings are treated apart.
        training: Whether the step trains, or only judges.
    """
    graph = read_training(model)
    objectives = objectives_of(model)
    found = metrics_of(model, [] if isinstance(objectives, str) else objectives, training=training)
    update = update_of(model.optimizer) if training else None
    reasons = list(graph) if isinstance(graph, tuple) else []
    reasons += [part for part in (objectives, found, update) if isinstance(part, str)]
    reasons += _odd_variables(model) if training else _odd_losses(model)
    if isinstance(graph, tuple) or isinstance(objectives, str) or isinstance(found, str):
        return tuple(reasons)
    if isinstance(update, str) or reasons:
        return tuple(reasons)
    parts = StepParts(graph, objectives, *found, update, rows_apart)
    return tuple(_odd_parts(model, parts)) or parts


def _odd_parts(model: keras.Model, parts: StepParts) -> list[str]:
    """All that keeps parts from working together."""
    graph, objectives = parts.graph, parts.objectives
    reasons = []
    masked = [one for one in objectives if graph.outputs[one.output][1] >= 0]
    if len(objectives) > 1 and any(one.mean for one in masked):
        reasons.append("one of its several losses is a mean over what a mask leaves")
    if sees_masks(parts.update is not None):
        places = {one.output for one in masked}
        reasons += [
            f"the engine does not have the metric {one.name!r} of an output with a mask"
            for one in parts.observed
            if one.output in places
        ]
    if parts.update is None:
        return reasons
    if parts.rows_apart and model.optimizer.clipvalue and any(node.op == "embedding" for node in graph.nodes):
        reasons.append("clipvalue clips the rows of an Embedding apart on TensorFlow")
    if graph.divided and model.optimizer.clipnorm:
        reasons.append("clipnorm clips a weight that several nodes share out")
    trained = {id(weight.variable) for weight in graph.weights.values()}
    reasons += [
        f"{variable.path} is not a weight of its graph"
        for variable in model.trainable_variables
        if id(variable) not in trained
    ]
    if model.optimizer.use_ema and len(model.trainable_variables) != len(
        model.optimizer._trainable_variables
    ):
        reasons.append("its optimizer averages weights that no longer change")
    return reasons


def _odd_variables(model: keras.Model) -> list[str]:
    """All that keeps the variables of a model from being trained by the engine."""
    reasons = [
        f"{variable.path} has a constraint"
        for variable in model.trainable_variables
        if variable.constraint is not None
    ]
    rate = getattr(model.optimizer, "_learning_rate", None)
    if not isinstance(rate, keras.Variable | optimizers.schedules.LearningRateSchedule):
        reasons.append("its learning rate is a function")
    if not model.trainable_variables:
        reasons.append("it has no weights that change")
    return reasons + _odd_losses(model)


def _odd_losses(model: keras.Model) -> list[str]:
    """The losses of a model beside those of its outputs that the engine does not have."""
    regularized = [one for one in model.trainable_variables if getattr(one, "regularizer", None) is not None]
    reasons = [
        f"{variable.path} has the regularizer {type(variable.regularizer).__name__}"
        for variable in regularized
        if penalties_of(variable) is None
    ]
    if len(model.losses) > len(regularized) or any(
        getattr(layer, "activity_regularizer", None) is not None
        for layer in model._flatten_layers(include_self=False)
    ):
        reasons.append("it adds losses of its own")
    return reasons


def _for_each_output(values: Any, model: keras.Model, count: int) -> list[Any]:
    """A batch's targets, one for each output."""
    if isinstance(values, Mapping) and not isinstance(model._outputs_struct, Mapping):
        names = list(model.output_names)
        if set(values) != set(names):
            raise Misfit("its targets have other names than the outputs")
        values = [values[name] for name in names]
    flat = list(tree.flatten(values))
    if len(flat) != count or any(one is None for one in flat):
        raise Misfit(f"it has {len(flat)} targets for {count} outputs, or none")
    return flat


def _weights_for_each(sample_weight: Any, model: keras.Model, count: int) -> list[Any]:
    """The weights of a batch for each output; None for none."""
    if sample_weight is None:
        return [None] * count
    if isinstance(sample_weight, Mapping) and not isinstance(model._outputs_struct, Mapping):
        sample_weight = [sample_weight.get(name) for name in model.output_names]
    flat = list(tree.flatten(sample_weight))
    if len(flat) == 1:
        return flat * count
    if len(flat) != count:
        raise Misfit("it has several sample weights")
    return flat


def _compared(rule: cpu.LossRule, values: Any, weights: Any, output: tuple[int, ...]) -> cpu.Compared:
    """The targets and weights that a loss compares an output (B, ...) with."""
    rows, targets = output[0], _array(values)
    wanted = output[:-1] if rule.takes_ids or rule.levels else output
    if rule.levels:
        if output[-1] != len(rule.levels):
            raise Misfit("its output has another number of quantiles than the loss")
        fits = targets.shape == wanted or (len(rule.levels) == 1 and targets.shape == output)
        positions = math.prod(output[1:-2])
    else:
        alike = targets.shape in (wanted, (*wanted, 1))
        fits = alike or (not rule.takes_ids and (*targets.shape, 1) == wanted)
        positions = math.prod(output[1:-1])
    if not fits:
        raise Misfit(f"its targets are {targets.shape}")
    return cpu.Compared(
        positions,
        math.prod(output[1:]) // positions,
        _of_type(targets.reshape(wanted), "int32" if rule.takes_ids else "float32"),
        _weights(weights, rows, positions),
    )


def _array(values: Any) -> np.ndarray:
    """An array of a batch, of whatever framework, without a copy where that is possible."""
    if isinstance(values, np.ndarray):
        return values
    detach = getattr(values, "detach", None)
    return np.asarray(values if detach is None else detach())


def _input(values: Any, shape: Any, dtype: str) -> np.ndarray:
    """An input as the core takes it.

    Args:
        values: (B, ...).
        shape: What the model expects, -1 for any size.
        dtype: That of the node.
    """
    array = _array(values)
    # As Keras: a last axis of one may be left out, or be too many.
    if array.ndim == len(shape) - 1 and shape[-1] == 1:
        array = array[..., None]
    elif array.ndim == len(shape) + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim != len(shape) or 0 in array.shape:
        raise Misfit(f"an input is {array.shape}")
    if any(size not in (-1, found) for size, found in zip(shape[1:], array.shape[1:], strict=True)):
        raise Misfit(f"an input is {array.shape}")
    return _of_type(array, dtype)


def _of_type(array: np.ndarray, dtype: str) -> np.ndarray:
    """A dense array of a type; ids that are too large for it are not taken for others."""
    if dtype == "int32" and array.dtype.itemsize > 4 and array.size:
        largest = np.iinfo(np.int32)
        if not largest.min <= float(array.min()) <= float(array.max()) <= largest.max:
            raise Misfit("an id is larger than any table")
    return np.ascontiguousarray(array, dtype)


def _weights(sample_weight: Any, rows: int, positions: int) -> np.ndarray | None:
    """(B, positions) float32."""
    if sample_weight is None:
        return None
    weights = _array(sample_weight)
    each = weights.size == rows * positions and weights.shape[:1] == (rows,)
    if not each and weights.shape not in ((rows, 1), (rows,)):
        raise Misfit(f"its sample weights are {weights.shape}")
    return np.ascontiguousarray(np.broadcast_to(weights.reshape(rows, -1), (rows, positions)), np.float32)
