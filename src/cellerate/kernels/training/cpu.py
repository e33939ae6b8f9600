"""A training step on the native core: forward, loss, backward and update in one call.

Only this module uses the core's `TrainingProgram`. The core changes the arrays of weights and optimizer slots in place.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cellerate.kernels import native
from cellerate.kernels.program.cpu import Row, Sizes, native_node, sizes_of
from cellerate.program import MASKS, OPERATIONS, Node, Shape

MOST_SLOTS = 3
"""The most arrays that an optimizer keeps for a weight."""
# Stands for the arithmetic, which operations that only move numbers do not need.
_NO_ARITHMETIC: Any = None
# The operations of training alone; their results have the shape of x.
_OF_TRAINING = (
    "dropout",
    "spatial_dropout",
    "step_dropout",
    "gaussian_dropout",
    "gaussian_noise",
    "batch_norm",
)
# A convolution in groups; its kernel is (size · features of a group, N).
GROUPED = "grouped_dense"


class TrainedWeight(NamedTuple):
    """A trainable weight.

    Attributes:
        values: float32, C-contiguous; the same array object that the nodes hold.
        slots: The optimizer's arrays for it, in the order of the update; None for an absent slot.
        accumulated: The gradients of the steps since the last update; None without accumulation.
        average: Its moving average; None without one.
        decays: Whether the weight decay applies to it.
        penalties: l1 and l2 of its regularizer, which adds l1·|w| + l2·w² to the loss, and the slope of |w| at 0.
    """

    values: np.ndarray
    slots: tuple[np.ndarray | None, ...]
    accumulated: np.ndarray | None = None
    average: np.ndarray | None = None
    decays: bool = False
    penalties: tuple[float, float, float] = (0.0, 0.0, 0.0)


class Kinks(NamedTuple):
    """The values that a backend uses for derivatives that do not exist.

    Attributes:
        size_at_zero: The derivative of |x| at 0.
        size_at_nan: The derivative of |x| at NaN.
        maximum_at_tie: The derivative of max(x, bound) at x = bound.
        maximum_at_nan: The derivative of max(x, bound) at NaN.
        clip_at_end: The derivative of a clipped x at a limit.
        inverse_root_at_zero: The derivative of 1 / sqrt(x) at 0, times a gradient of 0.
        selects: Whether a blocked gradient is 0 even if it is NaN.
    """

    size_at_zero: float = 0.0
    size_at_nan: float = 0.0
    maximum_at_tie: float = 0.5
    maximum_at_nan: float = 1.0
    clip_at_end: float = 1.0
    inverse_root_at_zero: float = math.nan
    selects: bool = True


class LossRule(NamedTuple):
    """A loss, in the terms of `csrc/training/rules.h`.

    Attributes:
        name: The name of the loss.
        from_logits: Whether outputs are logits.
        numbers: The loss's own arguments, in the order of `rules.h`.
        label_smoothing: As in Keras.
        levels: The levels of a quantile loss.
        least: The least distance of probabilities from 0 and 1.
        kinks: The values for derivatives that do not exist.
    """

    name: str
    from_logits: bool = False
    numbers: tuple[float, ...] = ()
    label_smoothing: float = 0.0
    levels: tuple[float, ...] = ()
    least: float = 1e-7
    kinks: Kinks = Kinks()

    @property
    def takes_ids(self) -> bool:
        """True if targets are ids."""
        return self.name.startswith("sparse")

    @property
    def takes_signs(self) -> bool:
        """True if targets are -1 or 1; Keras converts 0 and 1 to these."""
        return self.name in ("hinge", "squared_hinge")


class MeasureRule(NamedTuple):
    """A metric that the core averages with the loss, in the terms of `csrc/training/rules.h`."""

    name: str
    threshold: float = 0.5
    masked: bool = False
    weighted: bool = False


class LossHead(NamedTuple):
    """An output and its loss.

    Attributes:
        output: The number of the output's node.
        mask: The number of the mask's node, or -1.
        logits: The number of the node that the loss reads in place of the output, or -1.
        loss: The loss.
        mean: Whether the loss is the mean over the unmasked positions, not the sum.
        by_weight: Whether the mean is divided by the sum of the sample weights, if there are any, and not by the number
            of positions.
        factor: The factor of the loss in the total loss.
        measures: The metrics that are averaged with the loss.
    """

    output: int
    mask: int
    logits: int
    loss: LossRule
    mean: bool
    by_weight: bool
    factor: float
    measures: tuple[MeasureRule, ...]


class UpdateRule(NamedTuple):
    """The update of an optimizer, in the terms of `csrc/training/rules.h`.

    Attributes:
        name: The name of the update.
        clip: The kind of gradient clipping: "", "value", "norm" or "global_norm".
        most: The limit of the clipping.
    """

    name: str
    clip: str = ""
    most: float = 0.0


class Moments(NamedTuple):
    """The moving statistics of a batch normalisation, which each step updates.

    Attributes:
        node: The number of its node.
        mean: (F,) float32.
        variance: (F,) float32.
        momentum: The share of the old statistics that a step keeps.
    """

    node: int
    mean: np.ndarray
    variance: np.ndarray
    momentum: float


class StepRules(NamedTuple):
    """The rules by which a step changes weights.

    Attributes:
        update: The optimizer's update.
        rows_apart: Whether the square of an embedding row's gradient is the sum of its parts' squares, one part for
            each time a batch reads the row, as in Keras's optimizers on TensorFlow.
        norms: Whether to compute the norm of all gradients.
        copied: The numbers of the nodes whose values `run` copies out.
        moments: The moving statistics of batch normalisations.
        narrow: The numbers of LSTMs that compute in bfloat16, where the processor has such products.
    """

    update: UpdateRule
    rows_apart: bool = False
    norms: bool = False
    copied: tuple[int, ...] = ()
    moments: tuple[Moments, ...] = ()
    narrow: tuple[int, ...] = ()


class Compared(NamedTuple):
    """The targets and sample weights of a batch for one output.

    Attributes:
        positions: The positions in a row of the output; the loss has a value for each.
        features: The size of the output at a position.
        targets: At each position an int32 id, or as many float32 as the output has; for quantiles one for all levels.
        weights: (B, positions) float32, or None for ones.
    """

    positions: int
    features: int
    targets: np.ndarray
    weights: np.ndarray | None = None


class Numbers(NamedTuple):
    """The numbers of an update that change from step to step.

    Attributes:
        each: The numbers of the update, in the order of `csrc/training/rules.h`.
        decay: The share of itself that a decaying weight loses.
        share: 1 / the number of gradients in an accumulated mean; 0 for a step that only accumulates.
        kept: The share of themselves that moving averages keep.
        averaged: Whether weights take the values of their averages at the end.
    """

    each: tuple[float, ...]
    decay: float = 0.0
    share: float = 1.0
    kept: float = 0.0
    averaged: bool = False


class HeadTotals(NamedTuple):
    """The loss of a head, and the total and the count of each of its metrics."""

    loss: float
    measures: list[tuple[float, float]]


class Totals(NamedTuple):
    """The results of a step.

    Attributes:
        loss: The sum of all heads' losses times their factors, and of the regularizers' penalties.
        norm: The norm of all gradients before clipping, if `StepRules.norms` asks for it.
        heads: The results of each head.
    """

    loss: float
    norm: float
    heads: list[HeadTotals]


class TrainingProgram:
    """The training step of a graph on the core.

    Args:
        nodes: The nodes, each after the nodes it reads; they hold the arrays of the weights.
        rates: The dropout rates of each node: of its inputs and, for an LSTM, of its state.
        weights: The trainable weights.
        heads: The losses and metrics.
        rules: The rules of the update.

    Raises:
        ValueError: The core cannot train the graph.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        rates: Sequence[tuple[float, float]],
        weights: Sequence[TrainedWeight],
        heads: Sequence[LossHead],
        rules: StepRules,
    ) -> None:
        nodes = [_moved(node) for node in nodes]
        places = {number: number for number in range(len(nodes))}
        # The core holds only the addresses of the arrays, so this object must keep them alive.
        self._held = [node.arrays for node in nodes], weights, rules
        self._native = native.core().TrainingProgram(
            [native_node(node, places, rows()) for node in nodes],
            list(rates),
            [
                (one.values, _filled_up(one.slots), (one.accumulated, one.average), one.decays, one.penalties)
                for one in weights
            ],
            [_native_head(head) for head in heads],
            (
                *rules.update,
                rules.rows_apart,
                rules.norms,
                list(rules.copied),
                list(rules.moments),
                list(rules.narrow),
            ),
        )

    def run(
        self,
        sizes: StepSizes,
        inputs: Sequence[np.ndarray],
        keys: Sequence[int],
        compared: Sequence[Compared],
        copies: Sequence[np.ndarray] = (),
        numbers: Numbers | None = None,
        seconds: np.ndarray | None = None,
    ) -> Totals:
        """Runs a step.

        Args:
            sizes: The result of `sizes_of_step` for the rows of these inputs.
            inputs: The inputs in the order of the input nodes, (B, ...), C-contiguous, float32 or int32.
            keys: The key of the random numbers of each node.
            compared: The targets of each head.
            copies: (B, ...) float32 arrays for the values of the nodes in `StepRules.copied`.
            numbers: The numbers of the update; None to compute only losses and metrics, without dropout.
            seconds: (2 nodes + 3,) float64. The call adds the times of each node forward, of each node backward, of the
                losses, of packing weights and of the update.

        Raises:
            IndexError: An id is not a row of its table, or of the output.
        """
        loss, norm, heads = self._native.run(
            len(inputs[0]), sizes.shapes, inputs, keys, sizes.gathers, compared, copies, numbers, seconds
        )
        return Totals(loss, norm, [HeadTotals(*head) for head in heads])


def _native_head(head: LossHead) -> tuple[object, ...]:
    loss = head.loss
    common = (loss.label_smoothing, loss.least)
    passed = (loss.name, loss.from_logits, list(loss.numbers), common, tuple(loss.kinks), list(loss.levels))
    return (
        head.output,
        head.mask,
        head.logits,
        passed,
        head.mean,
        head.by_weight,
        head.factor,
        [tuple(measure) for measure in head.measures],
    )


def _filled_up(slots: tuple[np.ndarray | None, ...]) -> list[np.ndarray | None]:
    return [*slots, *[None] * (MOST_SLOTS - len(slots))]


@functools.cache
def rows() -> dict[str, Row]:
    """The operations whose gradients the core knows."""
    return {name: Row(*row) for name, row in native.own_list("TRAINING_OPERATIONS", {}).items()}


def shapes_of_step(nodes: Sequence[Node], inputs: Sequence[Shape]) -> dict[int, Shape]:
    """The shape of a row of each node.

    Args:
        nodes: As `TrainingProgram` takes them.
        inputs: The shapes of the inputs' rows, in order.

    Raises:
        ValueError: The shapes do not fit a node.
    """
    shapes: dict[int, Shape] = {}
    remaining = iter(inputs)
    for number, node in enumerate(nodes):
        if node.op == "input":
            shapes[number] = next(remaining)
            continue
        read = {name: shapes[source] for name, source in node.inputs.items()}
        if node.op in _OF_TRAINING:
            shapes[number] = read["x"]
        elif node.op == "attention":
            # Additive attention may share one scale between all features.
            shapes[number] = OPERATIONS[node.op].shape(dataclasses.replace(node, arrays={}), read)
        elif node.op == GROUPED:
            shapes[number] = (*read["x"][:-1], node.arrays["kernel"].shape[1])
        else:
            shapes[number] = OPERATIONS[node.op].shape(node, read)
    return shapes


class StepSizes(NamedTuple):
    """The shapes of a step in the core's form.

    Attributes:
        shapes: The shapes of all nodes; only the core reads them.
        gathers: For each node that only moves numbers, the index in the input's row of each number of its own row.
    """

    shapes: Sizes
    gathers: list[np.ndarray | None]


def sizes_of_step(nodes: Sequence[Node], shapes: Mapping[int, Shape]) -> StepSizes | None:
    """The shapes of a step in the core's form; None if the core does not support them."""
    flat = {}
    gathers = []
    for number, node in enumerate(nodes):
        if any(
            not _takes(node, shapes[number], shapes[source], name) for name, source in node.inputs.items()
        ):
            return None
        flat[number] = _flat(shapes[number])
        gathers.append(_gather(node, shapes[node.inputs["x"]]) if _moves(node) else None)
    free = {name: row._replace(shapes="positions") for name, row in rows().items()}
    sizes = sizes_of(dict(enumerate(map(_moved, nodes))), flat, free)
    return None if sizes is None else StepSizes(sizes, gathers)


def trains(node: Node) -> bool:
    """True if the core computes the gradient of a node."""
    return _moved(node).op in rows()


def _moves(node: Node) -> bool:
    """True if a node only moves numbers and the core has no operation for it but `gather`."""
    return node.op in ("take", "permute") or (node.op == "flip" and node.options["axis"] != 1)


def _moved(node: Node) -> Node:
    return dataclasses.replace(node, op="gather") if _moves(node) else node


def _gather(node: Node, shape: Shape) -> np.ndarray:
    """The index in the input's row of each number of the node's own row."""
    indices = np.arange(math.prod(shape), dtype=np.int32).reshape(1, *shape)
    move: Any = OPERATIONS[node.op].run
    return np.ascontiguousarray(move(node, {"x": indices}, _NO_ARITHMETIC)).ravel()


def _takes(node: Node, shape: Shape, read: Shape, name: str) -> bool:
    """True if the core computes a node of shape `shape` from the input `name` of shape `read`."""
    takes = rows()[_moved(node).op].shapes
    if name.startswith("mask") or takes in ("any", "positions"):
        return True
    if takes == "time":
        return len(read) == 2
    if takes in ("features", "joined"):
        axis = node.options["axis"]
        return axis in (-1, len(shape)) or (node.op == "concatenate" and axis == 1)
    if takes == "either":
        return len(read) < 4 and node.options["axis"] in (len(read), max(len(read) - 1, 1))
    if node.op in MASKS:
        return read in (shape, (1,))
    # An input with fewer positions is repeated.
    read = (1,) * (len(shape) - len(read)) + read
    first = next((axis for axis, size in enumerate(read[:-1]) if size != 1), len(read) - 1)
    stretches = takes == "stretched" and read[-1:] == (1,)
    return read[first:-1] == shape[first:-1] and (stretches or read[-1:] == shape[-1:])


def _flat(shape: Shape) -> Shape:
    """A shape of at most three axes: of four or more, all but the last two become one."""
    return shape if len(shape) < 4 else (math.prod(shape[:-2]), *shape[-2:])
