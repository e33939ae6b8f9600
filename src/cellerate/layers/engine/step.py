"""A model's training step on the engine: what the core takes, and what Keras sees of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import optimizers
from keras.src import tree

from cellerate.kernels.training import cpu
from cellerate.layers.engine.graph import TrainingGraph, read_training
from cellerate.layers.engine.lending import Lender
from cellerate.layers.engine.losses import Measured, Objective, measured_of, objective_of
from cellerate.layers.engine.updates import OptimizerUpdate, rule_of, update_of


class Misfit(Exception):  # noqa: N818  (it is always caught)
    """Why a batch goes Keras's own way."""


class EngineStep:
    """The training step of a compiled model, whose optimizer, loss and metrics are built.

    Attributes:
        lender: What has the values of the model's variables.

    Args:
        model: The model.
        parts: What `parts_of` gives for it.
    """

    def __init__(self, model: keras.Model, parts: "StepParts") -> None:
        self._model, self._parts = model, parts
        optimizer = model.optimizer
        self._trained = list(model.trainable_variables)
        slots = [
            variable
            for variables in parts.update.slots
            if variables is not None
            for variable in variables
            if variable is not None
        ]
        weights = [*self._trained, *parts.graph.weights.values()]
        rate = optimizer._learning_rate
        self._rate = rate if isinstance(rate, keras.Variable) else None
        self._tracker = model._loss_tracker
        metrics = [self._tracker, *(measured.metric for measured in parts.measured)]
        small = [
            optimizer._iterations,
            *([] if self._rate is None else [self._rate]),
            *(drops.seed.state for drops in parts.graph.drops.values()),
            *(variable for metric in metrics for variable in (metric.total, metric.count)),
        ]
        shared = [*weights, *slots] if keras.backend.backend() == "torch" else []
        self.lender = Lender([*weights, *slots, *small], shared)
        self._sizes: dict[Any, Any] = {}
        array = self.lender.array
        nodes = [
            dataclasses.replace(
                node, arrays={name: array(parts.graph.weights[number, name]) for name in node.arrays}
            )
            for number, node in enumerate(parts.graph.nodes)
        ]
        self._nodes = nodes
        self._shapes = {
            number: node.options["shape"] for number, node in enumerate(nodes) if node.op == "input"
        }
        self._program = cpu.TrainingProgram(
            nodes,
            [parts.graph.rates(number) for number in range(len(nodes))],
            parts.graph.output,
            parts.graph.mask,
            [self._weight(variable) for variable in self._trained],
            cpu.StepRules(
                parts.objective.rule,
                [measured.rule for measured in parts.measured],
                rule_of(optimizer, parts.update),
                parts.objective.mean,
                parts.rows_apart,
            ),
        )

    def _weight(self, variable: Any) -> cpu.TrainedWeight:
        """A weight with its slots, as the core takes it."""
        optimizer, array = self._model.optimizer, self.lender.array
        place = optimizer._get_variable_index(variable)
        return cpu.TrainedWeight(
            array(variable),
            tuple(
                None if variables is None else array(variables[place])
                for variables in self._parts.update.slots
            ),
            bool(optimizer.weight_decay) and bool(optimizer._use_weight_decay(variable)),
        )

    def run(self, data: Any) -> dict[str, float]:
        """Trains on a batch as Keras's `train_step` takes it, and gives the logs.

        Raises:
            Misfit: The batch must go Keras's own way; nothing has changed.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        inputs = self._inputs(x)
        rows = len(inputs[0])
        sizes, output = self._sizes_of(tuple(array.shape for array in inputs))
        targets = self._targets(y, (rows, *output))
        positions = int(np.prod(output[:-1]))
        weights = _weights(sample_weight, rows, positions)
        objective = self._parts.objective
        scale = objective.factor / (rows * positions) if objective.mean else objective.factor
        array, optimizer = self.lender.array, self._model.optimizer
        iterations = array(optimizer._iterations)
        step = int(iterations) + 1
        rate = self._learning_rate(step)
        decay = float(optimizer.weight_decay or 0.0) * rate
        numbers = cpu.Numbers(self._parts.update.numbers(rate, step), decay, scale)
        try:
            totals = self._program.run(sizes, inputs, self._keys(), targets, weights, numbers)
        except IndexError as error:
            raise Misfit(str(error)) from error
        iterations[...] = step
        return self._logs(totals, rows, positions)

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
        return [
            _input(values, shape, str(self._nodes[number].options["dtype"]))
            for values, (number, shape) in zip(flat, self._shapes.items(), strict=True)
        ]

    def _sizes_of(self, shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, tuple[int, ...]]:
        """The shapes of a step in the core's form, and that of a row of the output."""
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
            found = self._sizes[key] = sizes, known[self._parts.graph.output]
        return found

    def _targets(self, y: Any, output: tuple[int, ...]) -> np.ndarray:
        flat = tree.flatten(y)
        if len(flat) != 1 or flat[0] is None:
            raise Misfit("it has several targets, or none")
        targets = _array(flat[0])
        ids = self._parts.objective.rule.name.startswith("sparse")
        wanted = output[:-1] if ids else output
        if targets.shape not in (wanted, (*wanted, 1)) and (ids or (*targets.shape, 1) != wanted):
            raise Misfit(f"its targets are {targets.shape}")
        return _of_type(targets.reshape(wanted), "int32" if ids else "float32")

    def _learning_rate(self, step: int) -> float:
        if self._rate is not None:
            return float(self.lender.array(self._rate))
        schedule = self._model.optimizer._learning_rate
        return float(keras.ops.convert_to_numpy(schedule(np.int32(step - 1))))

    def _keys(self) -> list[int]:
        """The keys of this step's random numbers; the states of their generators go on by one."""
        keys = [0] * len(self._nodes)
        for number, drops in self._parts.graph.drops.items():
            state = self.lender.array(drops.seed.state)
            first, second = (int(each) & 0xFFFFFFFF for each in state)
            keys[number] = first | second << 32
        for state in {
            id(drops.seed): drops.seed.state for drops in self._parts.graph.drops.values()
        }.values():
            array = self.lender.array(state)
            array[1] += 1
        return keys

    def _logs(self, totals: cpu.Totals, rows: int, positions: int) -> dict[str, float]:
        """Adds to the metrics of the epoch, and gives their values so far."""
        logs = {self._tracker.name: self._add(self._tracker, totals.loss * rows, rows)}
        for measured, total in zip(self._parts.measured, totals.measures, strict=True):
            count = totals.counted if measured.rule.masked else rows * positions
            # As Keras, which takes the mean of each row first.
            mean = self._add(measured.metric, total / positions, count / positions)
            logs[measured.metric.name] = measured.result(mean)
        return logs

    def _add(self, metric: Any, total: float, count: float) -> float:
        """Adds to the state of a mean, and gives it."""
        totals, counts = self.lender.array(metric.total), self.lender.array(metric.count)
        totals += np.float32(total)
        counts += np.float32(count)
        return float(totals) / float(counts) if counts else 0.0


@dataclasses.dataclass(frozen=True)
class StepParts:
    """The parts of a model's training step.

    Attributes:
        graph: Its graph.
        objective: Its loss.
        measured: Its metrics.
        update: The update of its optimizer.
        rows_apart: Whether the rows of embeddings are treated apart, as stock Keras on TensorFlow does.
    """

    graph: TrainingGraph
    objective: Objective
    measured: Sequence[Measured]
    update: OptimizerUpdate
    rows_apart: bool


def parts_of(model: keras.Model, *, rows_apart: bool) -> StepParts | tuple[str, ...]:
    """The parts of a model's training step; or all that keeps it from the engine, in words.

    Args:
        model: A compiled model whose loss, metrics and optimizer are built.
        rows_apart: Whether the rows of embeddings are treated apart.
    """
    graph = read_training(model)
    objective, measured, update = objective_of(model), measured_of(model), update_of(model.optimizer)
    reasons = list(graph) if isinstance(graph, tuple) else []
    reasons += [part for part in (objective, measured, update) if isinstance(part, str)]
    reasons += _odd_variables(model)
    if isinstance(graph, tuple) or isinstance(objective, str) or isinstance(measured, str):
        return tuple(reasons)
    if isinstance(update, str) or reasons:
        return tuple(reasons)
    if any(node.op == "lstm" and "h0" in node.inputs for node in graph.nodes):
        reasons.append("an LSTM is given a first state")
    ids = objective.rule.name.startswith("sparse")
    reasons += [
        f"the metric {one.metric.name!r} does not compare what the loss compares"
        for one in measured
        if one.rule.name.startswith("sparse") != ids
    ]
    if rows_apart and model.optimizer.clipvalue and any(node.op == "embedding" for node in graph.nodes):
        reasons.append("clipvalue clips the rows of an Embedding apart on TensorFlow")
    trained = {id(variable) for variable in graph.weights.values()}
    reasons += [
        f"{variable.path} is not a weight of its graph"
        for variable in model.trainable_variables
        if id(variable) not in trained
    ]
    return tuple(reasons) or StepParts(graph, objective, measured, update, rows_apart)


def _odd_variables(model: keras.Model) -> list[str]:
    """All that keeps the variables of a model from the engine."""
    reasons = [
        f"{variable.path} has a constraint"
        for variable in model.trainable_variables
        if variable.constraint is not None
    ]
    if model.losses:
        reasons.append("it adds losses of its own or of regularizers")
    rate = getattr(model.optimizer, "_learning_rate", None)
    if not isinstance(rate, keras.Variable | optimizers.schedules.LearningRateSchedule):
        reasons.append("its learning rate is a function")
    if not model.trainable_variables:
        reasons.append("it has no weights that change")
    return reasons


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
    flat = [part for part in tree.flatten(sample_weight) if part is not None]
    if not flat:
        return None
    if len(flat) > 1:
        raise Misfit("it has several sample weights")
    weights = _array(flat[0])
    each = weights.size == rows * positions and weights.shape[:1] == (rows,)
    if not each and weights.shape != (rows, 1):
        raise Misfit(f"its sample weights are {weights.shape}")
    return np.ascontiguousarray(np.broadcast_to(weights.reshape(rows, -1), (rows, positions)), np.float32)
