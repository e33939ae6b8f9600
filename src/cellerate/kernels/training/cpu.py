"""A training step on the native core: forward, loss, back and update in one call.

Only this module uses the core's `TrainingProgram`. The arrays of the weights and of the optimizer's slots are changed
where they are.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cellerate.kernels import native
from cellerate.kernels.program.cpu import Row, Sizes, native_node, sizes_of
from cellerate.program import OPERATIONS, Node, Shape

# How far Keras keeps probabilities from 0 and 1.
_LEAST = 1e-7
MOST_SLOTS = 3
"""Arrays that an optimizer keeps beside a weight, at most."""


class TrainedWeight(NamedTuple):
    """A weight that changes.

    Attributes:
        values: float32, C-contiguous; the very array that nodes have.
        slots: What the optimizer keeps for it, in the order of its update; None for one that it lacks.
        decays: Whether the weight decay applies to it.
    """

    values: np.ndarray
    slots: tuple[np.ndarray | None, ...]
    decays: bool


class LossRule(NamedTuple):
    """The loss, as `csrc/training/rules.h` names it."""

    name: str
    from_logits: bool = False
    delta: float = 1.0
    label_smoothing: float = 0.0


class MeasureRule(NamedTuple):
    """A measure that is averaged beside the loss, as `csrc/training/rules.h` names it."""

    name: str
    threshold: float = 0.5
    masked: bool = False


class UpdateRule(NamedTuple):
    """The update of an optimizer, as `csrc/training/rules.h` names it.

    Attributes:
        name: The update.
        clip: What is clipped: "", "value", "norm" or "global_norm".
        most: To which size.
    """

    name: str
    clip: str = ""
    most: float = 0.0


class StepRules(NamedTuple):
    """The rules by which a step minimises, measures and changes.

    Attributes:
        loss: The loss.
        measures: What else is averaged.
        update: How weights change.
        mean: Whether the loss is the mean over the positions that the mask leaves, not the sum.
        rows_apart: Whether an update takes for the square of an embedding's gradient the sum of the squares of all
            its parts, as Keras's optimizers do on TensorFlow.
    """

    loss: LossRule
    measures: Sequence[MeasureRule]
    update: UpdateRule
    mean: bool = True
    rows_apart: bool = False


class Numbers(NamedTuple):
    """The numbers of an update that change from step to step.

    Attributes:
        each: In the order that `csrc/training/rules.h` gives.
        decay: What decaying weights lose of themselves.
        scale: The factor of the sum of all positions' losses.
    """

    each: tuple[float, ...]
    decay: float
    scale: float


class Totals(NamedTuple):
    """The loss and the sums over a batch.

    Attributes:
        loss: Of a step the loss, as `Numbers.scale` makes it; else the sum over all positions, weighted.
        counted: The positions that the output's mask does not leave out.
        measures: Of each measure over all positions.
    """

    loss: float
    counted: float
    measures: list[float]


class TrainingProgram:
    """The training step of a graph on the core.

    Args:
        nodes: In order, each after those it reads; their arrays are those of the weights.
        rates: What each node drops: of its inputs and, for an LSTM, of its state.
        output: The number of the node that the loss compares.
        mask: The number of its mask's node, or -1.
        weights: Those that change.
        rules: What is minimised, measured and changed.

    Raises:
        ValueError: The graph is not one that the core trains.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        rates: Sequence[tuple[float, float]],
        output: int,
        mask: int,
        weights: Sequence[TrainedWeight],
        rules: StepRules,
    ) -> None:
        places = {number: number for number in range(len(nodes))}
        # The core has only the addresses of the arrays.
        self._held = [node.arrays for node in nodes], weights
        self._native = native.core().TrainingProgram(
            [native_node(node, places, rows()) for node in nodes],
            list(rates),
            output,
            mask,
            [(weight.values, _three(weight.slots), weight.decays) for weight in weights],
            (
                rules.loss.name,
                rules.loss.from_logits,
                (rules.loss.delta, rules.loss.label_smoothing, _LEAST),
            ),
            [tuple(measure) for measure in rules.measures],
            (rules.update.name, rules.update.clip, rules.update.most, rules.rows_apart, rules.mean),
        )

    def run(
        self,
        sizes: Sizes,
        inputs: Sequence[np.ndarray],
        keys: Sequence[int],
        targets: np.ndarray,
        weights: np.ndarray | None = None,
        numbers: Numbers | None = None,
    ) -> Totals:
        """Runs a step.

        Args:
            sizes: Of these inputs' rows, as `sizes_of_step` gives them.
            inputs: In the order of the input nodes, (B, ...), C-contiguous, float32 or int32.
            keys: For each node, of the random numbers that it draws.
            targets: What the loss compares: (B, ...) float32 in the shape of the output, or int32 without its last
                axis for a loss of ids.
            weights: (B, positions) float32, or None for ones.
            numbers: Of the update; None for the loss and the measures alone, which drop nothing.

        Raises:
            IndexError: An id is not a row of its table, or of the output.
        """
        return Totals(*self._native.run(len(inputs[0]), sizes, inputs, keys, targets, weights, numbers))


def _three(slots: tuple[np.ndarray | None, ...]) -> list[np.ndarray | None]:
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
        drops = node.op in ("dropout", "spatial_dropout")
        shapes[number] = read["x"] if drops else OPERATIONS[node.op].shape(node, read)
    return shapes


def sizes_of_step(nodes: Sequence[Node], shapes: Mapping[int, Shape]) -> Sizes:
    """The shapes of a step in the core's form; None if it does not take such shapes."""
    return sizes_of(dict(enumerate(nodes)), shapes, rows())
