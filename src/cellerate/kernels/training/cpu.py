"""A training step on the native core: forward, loss, back and update in one call.

Only this module uses the core's `TrainingProgram`. The arrays of the weights and of the optimizer's slots are changed
where they are.
"""

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
"""Arrays that an optimizer keeps beside a weight, at most."""
# Operations that only move numbers need no arithmetic.
_NO_ARITHMETIC: Any = None
# Operations that packed models lack, whose results have the shape of x.
_OF_TRAINING = (
    "dropout",
    "spatial_dropout",
    "step_dropout",
    "gaussian_dropout",
    "gaussian_noise",
    "batch_norm",
)
# A convolution in groups, whose kernel is (size·F of a group, N).
GROUPED = "grouped_dense"


class TrainedWeight(NamedTuple):
    """A weight that changes.

    Attributes:
        values: float32, C-contiguous; the very array that nodes have.
        slots: What the optimizer keeps for it, in the order of its update; None for one that it lacks.
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
    """The derivatives that a backend takes where there are none.

    Attributes:
        size_at_zero: Of |x|.
        size_at_nan: The same.
        maximum_at_tie: Of max(x, bound) where both are equal.
        maximum_at_nan: The same where x is NaN.
        clip_at_end: Of a clipped x at an end.
        inverse_root_at_zero: Of 1 / sqrt(x) at 0, times a gradient of 0.
        selects: Whether a gradient that does not pass is 0 even where it is NaN.
    """

    size_at_zero: float = 0.0
    size_at_nan: float = 0.0
    maximum_at_tie: float = 0.5
    maximum_at_nan: float = 1.0
    clip_at_end: float = 1.0
    inverse_root_at_zero: float = math.nan
    selects: bool = True


class LossRule(NamedTuple):
    """The loss, as `csrc/training/rules.h` names it.

    Attributes:
        name: As there.
        from_logits: Whether outputs are logits.
        numbers: Its own, in the order given there.
        label_smoothing: As in Keras.
        levels: Of quantiles.
        least: The distance that probabilities keep from 0 and 1.
        kinks: The derivatives where there are none.
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
        """True if targets are -1 or 1; Keras makes them of 0 and 1."""
        return self.name in ("hinge", "squared_hinge")


class MeasureRule(NamedTuple):
    """A measure that is averaged beside the loss, as `csrc/training/rules.h` names it."""

    name: str
    threshold: float = 0.5
    masked: bool = False
    weighted: bool = False


class LossHead(NamedTuple):
    """An output with the loss that compares it.

    Attributes:
        output: The number of its node.
        mask: The number of its mask's node, or -1.
        logits: The number of the node that the loss reads in place of the output, or -1.
        loss: The loss.
        mean: Whether the loss is the mean over the positions that the mask leaves, not the sum.
        by_weight: Whether such a mean is divided by the sum of all weights, where there are some, and not by their
            number.
        factor: The factor of the loss in the sum of all.
        measures: What else is averaged.
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
    """The update of an optimizer, as `csrc/training/rules.h` names it.

    Attributes:
        name: The update.
        clip: What is clipped: "", "value", "norm" or "global_norm".
        most: The size that it is clipped to.
    """

    name: str
    clip: str = ""
    most: float = 0.0


class Moments(NamedTuple):
    """The moving statistics of a batch normalisation, which steps change.

    Attributes:
        node: The number of its node.
        mean: (F,) float32.
        variance: The same.
        momentum: What they keep of themselves in a step.
    """

    node: int
    mean: np.ndarray
    variance: np.ndarray
    momentum: float


class StepRules(NamedTuple):
    """The rules by which a step changes weights.

    Attributes:
        update: How weights change.
        rows_apart: Whether an update takes for the square of an embedding's gradient the sum of the squares of all
            its parts, as Keras's optimizers do on TensorFlow.
        norms: Whether the norm of all gradients is wanted.
        copied: The numbers of nodes whose values are wanted.
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
    """A batch's targets of an output.

    Attributes:
        positions: How many a row of the output has; the loss has a value for each.
        features: The numbers of a position.
        targets: Of each position as many float32 as the output has, for quantiles one for all levels; or an int32 id.
        weights: (B, positions) float32, or None for ones.
    """

    positions: int
    features: int
    targets: np.ndarray
    weights: np.ndarray | None = None


class Numbers(NamedTuple):
    """The numbers of an update that change from step to step.

    Attributes:
        each: In the order that `csrc/training/rules.h` gives.
        decay: What decaying weights lose of themselves.
        share: Of accumulated gradients, that of each in their mean; 0 for a step that only adds its own to them.
        kept: What moving averages keep of themselves.
        averaged: Whether weights become their averages at the end.
    """

    each: tuple[float, ...]
    decay: float = 0.0
    share: float = 1.0
    kept: float = 0.0
    averaged: bool = False


class HeadTotals(NamedTuple):
    """The loss of a head, and the total and the count of each of its measures."""

    loss: float
    measures: list[tuple[float, float]]


class Totals(NamedTuple):
    """The results of a step.

    Attributes:
        loss: All heads' losses times their factors, and what regularizers add.
        norm: Of all gradients before they are clipped, if it is wanted.
        heads: The results of each head.
    """

    loss: float
    norm: float
    heads: list[HeadTotals]


class TrainingProgram:
    """The training step of a graph on the core.

    Args:
        nodes: In order, each after those it reads; their arrays are those of the weights.
        rates: What each node drops: of its inputs and, for an LSTM, of its state.
        weights: Those that change.
        heads: What is minimised and measured.
        rules: How weights change.

    Raises:
        ValueError: The graph is not one that the core trains.
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
        # The core has only the addresses of the arrays.
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
        sizes: "StepSizes",
        inputs: Sequence[np.ndarray],
        keys: Sequence[int],
        compared: Sequence[Compared],
        copies: Sequence[np.ndarray] = (),
        numbers: Numbers | None = None,
        seconds: np.ndarray | None = None,
    ) -> Totals:
        """Runs a step.

        Args:
            sizes: Of these inputs' rows, as `sizes_of_step` gives them.
            inputs: In the order of the input nodes, (B, ...), C-contiguous, float32 or int32.
            keys: For each node, of the random numbers that it draws.
            compared: What the heads compare.
            copies: (B, ...) float32 arrays that take the values of the nodes in `StepRules.copied`.
            numbers: Of the update; None for the losses and the measures alone, which drop nothing.
            seconds: (2 nodes + 3,) float64 to which the time is added that each node takes forward, then backward, and
                that the losses, packing weights and the update take.

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
        ValueError: They do not fit a node.
    """
    shapes: dict[int, Shape] = {}
    given = iter(inputs)
    for number, node in enumerate(nodes):
        if node.op == "input":
            shapes[number] = next(given)
            continue
        read = {name: shapes[source] for name, source in node.inputs.items()}
        if node.op in _OF_TRAINING:
            shapes[number] = read["x"]
        elif node.op == "attention":
            # Additive weights may be one number for all features.
            shapes[number] = OPERATIONS[node.op].shape(dataclasses.replace(node, arrays={}), read)
        elif node.op == GROUPED:
            shapes[number] = (*read["x"][:-1], node.arrays["kernel"].shape[1])
        else:
            shapes[number] = OPERATIONS[node.op].shape(node, read)
    return shapes


class StepSizes(NamedTuple):
    """The shapes of a step in the core's form.

    Attributes:
        shapes: Of all nodes; only the core reads it.
        gathers: Of each node that moves numbers, where each number of a row lies in a row of its input.
    """

    shapes: Sizes
    gathers: list[np.ndarray | None]


def sizes_of_step(nodes: Sequence[Node], shapes: Mapping[int, Shape]) -> StepSizes | None:
    """The shapes of a step in the core's form; None if it does not take such shapes."""
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
    """True if a node only moves numbers, in a way that the core has no operation for."""
    return node.op in ("take", "permute") or (node.op == "flip" and node.options["axis"] != 1)


def _moved(node: Node) -> Node:
    return dataclasses.replace(node, op="gather") if _moves(node) else node


def _gather(node: Node, shape: Shape) -> np.ndarray:
    """The places in a row of the input that each number of a result's row comes from."""
    places = np.arange(math.prod(shape), dtype=np.int32).reshape(1, *shape)
    move: Any = OPERATIONS[node.op].run
    return np.ascontiguousarray(move(node, {"x": places}, _NO_ARITHMETIC)).ravel()


def _takes(node: Node, shape: Shape, read: Shape, name: str) -> bool:
    """True if the core computes a node of a shape from an input of a shape."""
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
    """A shape of at most three axes; all but the last may be counted as one."""
    return shape if len(shape) < 4 else (math.prod(shape[:-1]), shape[-1])
