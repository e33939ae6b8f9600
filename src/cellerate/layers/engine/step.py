"""Runs a model's training steps on the engine, and keeps Keras's metrics and variables up to date."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.keras_graph.graph import functional_graph
from cellerate.kernels.training import cpu
from cellerate.layers.engine.batches import (
    Misfit,
    Outputs,
    compared_with,
    for_each_input,
    for_each_output,
    input_array,
    weights_for_each,
)
from cellerate.layers.engine.constraints import projection_of
from cellerate.layers.engine.gradient_norm import norms_of
from cellerate.layers.engine.lending import Lender
from cellerate.layers.engine.logits import activations_of_logits, reads_logits
from cellerate.layers.engine.losses import Measured
from cellerate.layers.engine.observer import Observer
from cellerate.layers.engine.parts import StepParts
from cellerate.layers.engine.updates import (
    StepCounter,
    average_weight,
    has_penalty,
    in_parts,
    kept_by,
    rule_of,
    trained_weight,
)
from cellerate.program import Node, Shape


class Watch:
    """Adds up the times of steps.

    Args:
        nodes: The nodes of the step, with their arrays.

    Attributes:
        nodes: The same nodes.
        seconds: The sums, in the order of `TrainingProgram.run`.
        shapes: The shape of one row of each node, in the last step.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.seconds = np.zeros(2 * len(nodes) + 3)
        self.shapes: Mapping[int, Shape] = {}


class EngineStep:
    """A step that trains or evaluates a compiled model, whose optimizer, losses and metrics are built.

    Attributes:
        lender: Holds the values of the model's variables.
        watch: Times the next steps; None for no timing.

    Args:
        model: The model.
        parts: The result of `parts_of` for the model.
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
        # As vectors of one number: arithmetic with arrays of no axes takes several µs.
        self._sums = {
            id(one): (self._array(one.total).reshape(1), self._array(one.count).reshape(1)) for one in metrics
        }
        self.watch: Watch | None = None
        self._activations = activations_of_logits(graph.nodes, graph.outputs)
        self._observer = Observer(parts.observed, self._activations) if parts.observed else None
        functional: Any = functional_graph(model)
        self._inputs_structure = functional._inputs_struct
        self._outputs = Outputs(model)
        self._declared = [tensor.dtype for tensor in functional.inputs]
        self._sizes: dict[Any, Any] = {}
        self._nodes = [
            dataclasses.replace(node, arrays={name: self._node_array(number, name) for name in node.arrays})
            for number, node in enumerate(graph.nodes)
        ]
        # Carried states come after the inputs.
        self._expected = [
            (tuple(node.options["shape"]), str(node.options["dtype"]))
            for node in self._nodes
            if node.op == "input"
        ]
        self._seen = sorted({one.output for one in parts.observed})
        # For each loss, the metrics that the core averages with it.
        self._measured = [self._measures(index) for index in range(len(parts.objectives))]
        self._logits = [
            graph.outputs[one.output].logits if reads_logits(one.rule) else -1 for one in parts.objectives
        ]
        self._states = [self._array(carried.variable) for carried in graph.carried]
        seeds = {id(drops.seed): drops.seed for drops in graph.drops.values()}
        self._seeds = [self._array(seed.state) for seed in seeds.values()]
        self._averages, self._projections = self._changes_after_update(trained)
        self._program = self._build_program(trained)

    def begin_watch(self) -> Watch:
        """Times the steps from now on, until `watch` is set to None."""
        self.watch = Watch(self._nodes)
        return self.watch

    def _array(self, variable: Any) -> np.ndarray:
        return self.lender.array(variable)

    def _node_array(self, number: int, name: str) -> np.ndarray:
        """An array of a node: a variable's, a part of one, or a constant."""
        graph = self._parts.graph
        weight, own = graph.weights.get((number, name)), graph.nodes[number].arrays[name]
        if weight is None:
            return own
        array = self._array(weight.variable)
        # A convolution's kernel, (size, F, N), is a matrix in its node.
        return (array if weight.part is None else array[weight.part]).reshape(own.shape)

    def _changes_after_update(self, trained: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The arrays that Python changes after the core's step.

        Returns:
            Pairs of a weight and its moving average, if gradients are accumulated, as averages then also move between
            updates; and pairs of a weight with a constraint and the constraint's projection.
        """
        optimizer, update = self._model.optimizer, self._parts.update
        if update is None:
            return [], []
        averages: list[Any] = []
        if optimizer.use_ema and optimizer.gradient_accumulation_steps:
            weights = [trained_weight(optimizer, update, one, self._array) for one in trained]
            averages = [(weight.values, weight.average) for weight in weights]
        projections = [(self._array(one), projection_of(one.constraint)) for one in trained]
        return averages, [(array, project) for array, project in projections if project is not None]

    def _build_program(self, trained: Sequence[Any]) -> cpu.TrainingProgram:
        """The step as a program of the core."""
        parts, optimizer = self._parts, self._model.optimizer
        outputs = parts.graph.outputs
        heads = [
            cpu.LossHead(
                outputs[one.output].output,
                outputs[one.output].mask,
                logits,
                one.rule if logits < 0 else one.rule._replace(from_logits=True),
                one.mean,
                one.by_weight,
                one.factor,
                tuple(measured.rule for measured in measures),
            )
            for one, logits, measures in zip(parts.objectives, self._logits, self._measured, strict=True)
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
                    *(
                        outputs[place].logits if place in self._activations else outputs[place].output
                        for place in self._seen
                    ),
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
                parts.graph.narrow,
            ),
        )

    def _measures(self, index: int) -> list[Measured]:
        """The metrics averaged with a loss: the metrics of its output, if no earlier loss has that output."""
        output = self._parts.objectives[index].output
        first = next(n for n, one in enumerate(self._parts.objectives) if one.output == output)
        return [one for one in self._parts.measured if one.output == output] if first == index else []

    def run(self, data: Any, *, training: bool, counts_rows: bool = True) -> dict[str, Any]:
        """Trains or evaluates on a batch, like Keras's `train_step` or `test_step`, and returns the logs.

        Args:
            data: The batch.
            training: Whether the step trains; if not, it evaluates.
            counts_rows: Whether each of several losses weights a batch by its number of rows in the mean. Keras gives
                each batch the weight 1 if it compiles a step without knowing the number of rows.

        Raises:
            Misfit: Keras must take the batch; nothing has changed.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        inputs = self._inputs(x)
        rows = len(inputs[0])
        sizes, shapes = self._sizes_of(tuple(array.shape for array in inputs))
        targets = for_each_output(y, self._outputs)
        weights = weights_for_each(sample_weight, self._outputs)
        compared = [
            compared_with(
                one, targets[one.output], weights[one.output], (rows, *shapes[one.output]), logits >= 0
            )
            for one, logits in zip(self._parts.objectives, self._logits, strict=True)
        ]
        copies = [np.empty((rows, *shapes[place]), np.float32) for place in self._seen]
        after = [np.empty_like(state) for state in self._states]
        keys = self._keys() if training else [0] * len(self._nodes)
        numbers = self._counter.numbers() if training else None
        try:
            seconds = None if self.watch is None else self.watch.seconds
            totals = self._program.run(sizes, inputs, keys, compared, [*copies, *after], numbers, seconds)
        except (IndexError, ValueError) as error:
            raise Misfit(str(error)) from error
        if numbers is not None:
            if numbers.share == 0:
                for values, average in self._averages:
                    average_weight(values, average, numbers)
            for values, project in self._projections:
                values[...] = project(values)
            self._counter.count(totals.norm)
            for seed in self._seeds:
                seed[1] += 1
        for state, value in zip(self._states, after, strict=True):
            state[...] = value
        positions = [rows * one.positions for one in compared]
        logs = self._logs(totals, rows, positions, rows if counts_rows else 1)
        if self._observer is not None:
            outputs = dict(zip(self._seen, copies, strict=True))
            logs.update(self._observer.update(targets, outputs, weights))
        return logs

    def _inputs(self, x: Any) -> list[np.ndarray]:
        names = self._parts.graph.inputs
        flat = for_each_input(x, self._inputs_structure, names)
        if len(flat) != len(names):
            raise Misfit(f"expected {len(names)} inputs, got {len(flat)}")
        found = [
            input_array(values, declared, *expected)
            for values, declared, expected in zip(flat, self._declared, self._expected, strict=False)
        ]
        if self._states and any(len(state) != len(found[0]) for state in self._states):
            raise Misfit(f"expected as many rows as the carried states have, got {len(found[0])}")
        return found + self._states

    def _sizes_of(self, shapes: tuple[tuple[int, ...], ...]) -> tuple[Any, list[tuple[int, ...]]]:
        """The shapes of a step in the core's form, and the shape of one row of each output."""
        key = tuple(shape[1:] for shape in shapes)
        found = self._sizes.get(key)
        if found is None:
            try:
                known = cpu.shapes_of_step(self._nodes, key)
            except ValueError as error:
                raise Misfit(str(error)) from error
            sizes = cpu.sizes_of_step(self._nodes, known)
            if sizes is None:
                raise Misfit("the engine cannot tell the shapes of the step")
            found = self._sizes[key] = sizes, known
        if self.watch is not None:
            self.watch.shapes = found[1]
        return found[0], [found[1][one.output] for one in self._parts.graph.outputs]

    def _keys(self) -> list[int]:
        """The keys of this step's random numbers."""
        keys = [0] * len(self._nodes)
        for number, drops in self._parts.graph.drops.items():
            first, second = self._array(drops.seed.state).tolist()
            keys[number] = first & 0xFFFFFFFF | (second & 0xFFFFFFFF) << 32
        return keys

    def _logs(self, totals: cpu.Totals, rows: int, positions: Sequence[int], counted: int) -> dict[str, Any]:
        """Updates the metrics of the epoch, and returns their values so far."""
        logs: dict[str, Any] = {self._tracker.name: self._add(self._tracker, totals.loss * rows, rows)}
        for index, (objective, head) in enumerate(zip(self._parts.objectives, totals.heads, strict=True)):
            if objective.tracker is not None:
                logs[objective.tracker.name] = self._add(objective.tracker, head.loss * counted, counted)
            for measured, (total, count) in zip(self._measured[index], head.measures, strict=True):
                # Keras takes the mean over each row first.
                each = positions[index] / rows
                logs[measured.name] = measured.result(self._add(measured.metric, total / each, count / each))
        return logs

    def _add(self, metric: Any, total: float, count: float) -> float:
        """Adds to a metric's total and count, and returns its mean."""
        totals, counts = self._sums[id(metric)]
        totals[0] += total
        counts[0] += count
        return float(totals[0]) / float(counts[0]) if counts[0] else 0.0
