"""Reads a Keras model into the graph of a training step.

The nodes are a `Program`'s, with operations that packed models lack, such as dropout and noise.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
from keras import layers

from cellerate.keras_graph.graph import tensor_names
from cellerate.keras_graph.keras_layers import readers
from cellerate.keras_graph.program_layers import affine
from cellerate.keras_graph.program_nodes import (
    Nodes,
    ProgramCall,
    ProgramValue,
    Read,
    Readers,
    Refused,
    Weight,
)
from cellerate.keras_graph.to_program import ProgramReading, no_graph, own_graph
from cellerate.keras_graph.walk import walk
from cellerate.kernels.training import cpu
from cellerate.layers.engine.convolutions import OF_IMAGES, convolution, on_image
from cellerate.layers.engine.learned_scores import learned_scores
from cellerate.layers.engine.logits import OutputNodes, split_output
from cellerate.layers.engine.slopes import with_slopes_of_backend
from cellerate.program import Node

# The dtype of LSTMs whose policy asks for it. The rest of a step computes in float32, which takes no longer.
_NARROW = "bfloat16"
_SAME_LAYERS = "Use Dropout or SpatialDropout1D."
# The lower limit of SELU, with which AlphaDropout replaces the values that it drops.
_SELU_MINIMUM = -1.6732632423543772 * 1.0507009873554805
# The axes of (B, T, F) along which all values share one dropout decision, and the operation for them.
_SHARED_DROPOUT = {(False, True, False): "spatial_dropout", (False, False, True): "step_dropout"}
_carrying_layers: list[type] = []


class Drops(NamedTuple):
    """The dropout of a node in training.

    Attributes:
        inputs: The dropout rate of its inputs, or the deviation of its noise.
        state: The dropout rate of its recurrent state.
        seed: The `keras.random.SeedGenerator` of its random numbers.
    """

    inputs: float
    state: float
    seed: Any


class Carried(NamedTuple):
    """A state that a layer carries from one batch to the next.

    Attributes:
        variable: The Keras variable of the state, (B, H).
        node: The number of the node that computes the state at the end of a batch.
    """

    variable: Any
    node: int


@dataclasses.dataclass(frozen=True)
class TrainingGraph:
    """The graph of a model's training step.

    Attributes:
        nodes: The nodes; each comes after the nodes that it reads.
        outputs: The nodes of each output of the model, in the model's order.
        weights: The Keras variable, or the part of it, behind an array, by the number of the node and the name of the
            array; other arrays are constants.
        fixed: The variables whose values became constants.
        drops: The dropout of nodes, by their numbers.
        inputs: The names of the model's inputs, in the model's order; their nodes are the first input nodes.
        carried: The states carried from batch to batch; their initial values are the remaining input nodes.
        normalized: The batch normalisation layers, by the numbers of their nodes.
        narrow: The numbers of the LSTMs whose policy is bfloat16.
    """

    nodes: tuple[Node, ...]
    outputs: tuple[OutputNodes, ...]
    weights: Mapping[tuple[int, str], Weight]
    fixed: tuple[Any, ...]
    drops: Mapping[int, Drops]
    inputs: tuple[str, ...]
    carried: tuple[Carried, ...]
    normalized: Mapping[int, Any]
    narrow: tuple[int, ...]

    @property
    def divided(self) -> set[int]:
        """The `id` of each variable whose parts belong to different nodes."""
        return {id(weight.variable) for weight in self.weights.values() if weight.part is not None}

    def rates(self, number: int) -> tuple[float, float]:
        """The dropout rates of a node: of its inputs and of its state."""
        drops = self.drops.get(number)
        return (0.0, 0.0) if drops is None else (drops.inputs, drops.state)


def read_training(model: keras.Model, training: bool = True) -> TrainingGraph | tuple[str, ...]:
    """Reads the training step of a Keras model into a graph.

    Args:
        model: Any Keras model. It is not changed.
        training: Whether the step trains; if not, it evaluates.

    Returns:
        The graph; or the reasons why the model has none, one sentence each.
    """
    if (graph := own_graph(model)) is None:
        return (no_graph(model),)
    if other_types := _other_types(model):
        return other_types
    nodes = _TrainingNodes(training)
    reading = ProgramReading(nodes, _training_readers())
    names = tensor_names(graph._inputs_struct, graph.inputs)
    values = [reading.model_input(name, tensor) for name, tensor in zip(names, graph.inputs, strict=True)]
    wanted: dict[str, int] = {}
    for place, output in enumerate(walk(graph, values, reading)):
        wanted |= _output_nodes(reading, place, graph.outputs[place], output)
    if reading.refused:
        return tuple(reading.refused)
    wanted |= {f"state {place}": carried.node for place, carried in enumerate(nodes.carried)}
    found, numbers, places = reading.used(wanted)
    if reading.refused:
        return tuple(reading.refused)
    found = tuple(map(with_slopes_of_backend, found))
    if unknown := [f"{node.name}: the engine has no {node.op}" for node in found if not cpu.trains(node)]:
        return tuple(unknown)
    weights = {
        (number, name): nodes.weights.get(id(array))
        for number, node in enumerate(found)
        for name, array in node.arrays.items()
    }
    odd = [
        found[number].name
        for (number, _), weight in weights.items()
        # Scaling by constants uses no variables; neither does additive attention with unscaled features.
        if not _is_variable(weight) and not (weight is None and found[number].op in ("affine", "attention"))
    ]
    odd += _parts_alone(weights)
    if odd:
        return tuple(f"{name} computes its weights from several variables." for name in dict.fromkeys(odd))
    return TrainingGraph(
        found,
        tuple(
            OutputNodes(
                numbers[f"output {place}"],
                numbers.get(f"mask {place}", -1),
                numbers.get(f"logits {place}", -1),
            )
            for place in range(len(graph.outputs))
        ),
        {key: weight for key, weight in weights.items() if weight is not None},
        tuple(nodes.fixed),
        {places[number]: drops for number, drops in nodes.drops.items() if number in places},
        tuple(names),
        tuple(carried._replace(node=places[carried.node]) for carried in nodes.carried),
        {places[number]: layer for number, layer in nodes.normalized.items() if number in places},
        tuple(places[number] for number in nodes.narrow if number in places),
    )


class _TrainingNodes(Nodes):
    """The nodes of a program, with the facts that only training needs.

    Attributes:
        training: Whether the step trains; if not, it evaluates.
        drops: As in `TrainingGraph`.
        carried: As in `TrainingGraph`, in the order of the input nodes of their initial values.
        fixed: As in `TrainingGraph`.
        normalized: As in `TrainingGraph`.
        narrow: As in `TrainingGraph`.
    """

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.training = training
        self.drops: dict[int, Drops] = {}
        self.carried: list[Carried] = []
        self.fixed: list[Any] = []
        self.normalized: dict[int, Any] = {}
        self.narrow: list[int] = []


def _other_types(model: keras.Model) -> tuple[str, ...]:
    """The layers that compute, or keep their weights, in a dtype that the engine does not have."""
    return tuple(
        f"{layer.name} computes in {layer.compute_dtype}"
        for layer in model._flatten_layers(include_self=False)
        if layer.compute_dtype not in ("float32", _NARROW) or layer.variable_dtype != "float32"
    )


def _output_nodes(reading: ProgramReading, place: int, tensor: Any, output: ProgramValue) -> dict[str, int]:
    """The numbers of the nodes of an output, its mask and its logits, by name; only of those that exist."""
    number = reading.model_output(f"output {place}", output)
    split = None if reading.refused else split_output(reading.nodes, tensor, number)
    found = {f"output {place}": number}
    if split is not None:
        found = {f"output {place}": split[0], f"logits {place}": split[1]}
    try:
        mask = _mask_node(reading, output)
    except Refused as refused:
        reading.refuse(f"output {place}", refused)
        mask = None
    return found if mask is None else {**found, f"mask {place}": mask}


def _mask_node(reading: ProgramReading, output: ProgramValue) -> int | None:
    """The node of the mask that the model's output carries."""
    if output.mask is None:
        return None
    call = ProgramCall(None, "output", {}, output.mask, (), False, reading.nodes, _training_readers())
    found = call.used_mask()
    return None if found is None else found.number


def _is_variable(weight: Weight | None) -> bool:
    return (
        weight is not None
        and isinstance(weight.variable, keras.Variable)
        and not weight.transposed
        and weight.update is None
        and weight.groups == 1
    )


def _parts_alone(weights: Mapping[tuple[int, str], Weight | None]) -> list[str]:
    """The variables whose parts are not all read."""
    parts: dict[int, set[int | None]] = {}
    variables = {}
    for weight in weights.values():
        if weight is not None:
            parts.setdefault(id(weight.variable), set()).add(weight.part)
            variables[id(weight.variable)] = weight.variable
    return [
        variables[key].path
        for key, found in parts.items()
        if found != {None} and found != set(range(variables[key].shape[0]))
    ]


def carries_states(kind: type[keras.Layer]) -> type[keras.Layer]:
    """Decorates a layer class that runs a recurrent layer, `runner`, from the `states` at the end of its last batch."""
    _carrying_layers.append(kind)
    _training_readers.cache_clear()
    return kind


@functools.cache
def _training_readers() -> Readers:
    """The readers of programs, with training's own readers for layers that behave differently in training."""
    known = readers()
    anywhere, per_step, recurrent = (
        {kind: _in_training(kind, read) for kind, read in table.items()}
        for table in (known.anywhere, known.per_step, known.recurrent)
    )
    return Readers({**anywhere, **dict.fromkeys(_carrying_layers, _carried)}, per_step, recurrent)


def _in_training(kind: type, read: Read) -> Read:
    if kind is layers.Dropout:
        return _dropout
    if kind is layers.SpatialDropout1D:
        return _spatial_dropout
    if kind in (layers.GaussianDropout, layers.GaussianNoise):
        return _gaussian
    if kind is layers.AlphaDropout:
        return _alpha_dropout
    if kind in (layers.Conv1D, layers.DepthwiseConv1D, layers.SeparableConv1D):
        return functools.partial(convolution, read)
    if kind in (layers.Attention, layers.AdditiveAttention, layers.MultiHeadAttention):
        return functools.partial(_attention, read)
    if kind in OF_IMAGES:
        return on_image
    if kind is layers.BatchNormalization:
        return functools.partial(_batch_normalization, read)
    if kind is layers.Normalization:
        return functools.partial(_constant, read)
    if kind in (layers.LSTM, layers.RNN):
        return functools.partial(_recurrent, read)
    return read


def _gaussian(call: ProgramCall) -> ProgramValue:
    """A node that adds Gaussian noise, or multiplies by it."""
    layer = call.layer
    if isinstance(layer, layers.GaussianNoise):
        return _drawing(call, "gaussian_noise", float(layer.stddev))
    rate = _rate(call)
    return _drawing(call, "gaussian_dropout", math.sqrt(rate / (1 - rate)))


def _attention(read: Read, call: ProgramCall) -> ProgramValue | list[ProgramValue]:
    """The nodes of attention, with the dropout of its weights."""
    layer, before = call.layer, len(call.nodes.found)
    # AdditiveAttention is a subclass of Attention, and learns one scale for each feature.
    additive = isinstance(layer, layers.AdditiveAttention)
    learns = isinstance(layer, layers.Attention) and not additive
    learns = learns and (layer.scale is not None or layer.score_mode == "concat")
    values = learned_scores(call) if learns else read(call)
    if (rate := float(layer.dropout)) == 0:
        return values
    added = [
        number
        for number in range(before, len(call.nodes.found))
        if call.nodes.found[number].op == "attention"
    ]
    if not added or rate >= 1:
        raise Refused(
            "drops all its weights, or returns its scores",
            "Give it a dropout below 1, and call it without return_attention_scores.",
        )
    heads = type(layer) is layers.MultiHeadAttention
    _set_dropout(call, added[0], Drops(rate, 0.0, (layer._dropout_layer if heads else layer).seed_generator))
    return values


def _alpha_dropout(call: ProgramCall) -> ProgramValue:
    """Nodes that replace the values they drop by SELU's lower limit, and keep mean and variance."""
    rate = _rate(call)
    if rate == 0 or (isinstance(call.nodes, _TrainingNodes) and not call.nodes.training):
        value: ProgramValue = call.x
        return value
    if call.layer.noise_shape is not None:
        raise Refused(f"has the noise_shape {tuple(call.layer.noise_shape)}", _SAME_LAYERS)
    minimum = _SELU_MINIMUM
    scale = ((1 - rate) * (1 + rate * minimum**2)) ** -0.5
    # Shift the minimum to 0, drop, and shift back. Without a layer, or both shifts would share the layer's scale.
    alone = dataclasses.replace(call, layer=None)
    raised = affine(alone, 1.0, -minimum)
    dropped = dataclasses.replace(call.add("dropout", {"x": raised}), shape=call.x.shape)
    _set_dropout(call, dropped.number, Drops(rate, 0.0, call.layer.seed_generator))
    # The dropout has divided the kept values by 1 - rate.
    return affine(alone, scale * (1 - rate), scale * minimum * (1 - rate), dropped)


def _batch_normalization(read: Read, call: ProgramCall) -> ProgramValue | list[ProgramValue]:
    """A node that normalises with the statistics of each batch."""
    layer = call.layer
    if not layer.trainable:
        return _constant(read, call)
    if layer.axis not in (-1, len(call.x.shape) - 1):
        raise Refused(f"normalises along axis {layer.axis}", "Give it axis=-1.")
    if layer.renorm:
        raise Refused("uses the statistics of earlier batches", "Build it without renorm.")
    if call.time_axis == 2:
        raise Refused("normalises each step separately", "Leave out the TimeDistributed around it.")
    inputs, counts = {"x": call.x}, call.used_mask()
    if counts is not None:
        inputs["mask"] = counts
    added = call.add("batch_norm", inputs, call.weights(layer, "gamma", "beta"), epsilon=float(layer.epsilon))
    if isinstance(call.nodes, _TrainingNodes) and added.number is not None:
        call.nodes.normalized[added.number] = layer
    return added


def _constant(read: Read, call: ProgramCall) -> ProgramValue | list[ProgramValue]:
    """The node of a layer whose weights training does not change."""
    if isinstance(call.nodes, _TrainingNodes):
        call.nodes.fixed += call.layer.variables
    return read(call)


def _dropout(call: ProgramCall) -> ProgramValue:
    """A node that drops single values, or all values along an axis together."""
    noise_shape, x_shape = call.layer.noise_shape, call.x.shape
    if call.layer.rate == 0 or noise_shape is None:
        return _dropping(call, "dropout")
    if len(noise_shape) == len(x_shape):
        pairs = list(zip(noise_shape, x_shape, strict=True))
        shared = tuple(noise == 1 and size != 1 for noise, size in pairs)
        known = all(one or noise in (None, size) for one, (noise, size) in zip(shared, pairs, strict=True))
        op = _SHARED_DROPOUT.get(shared) if any(shared) else "dropout"
        if known and op is not None:
            return _dropping(call, op)
    raise Refused(f"has the noise_shape {tuple(noise_shape)}", _SAME_LAYERS)


def _spatial_dropout(call: ProgramCall) -> ProgramValue:
    """A node that drops a feature at all steps together."""
    if len(call.x.shape) != 3:
        raise Refused(f"drops features of a tensor of {len(call.x.shape)} axes, not of (B, T, F)")
    return _dropping(call, "spatial_dropout")


def _dropping(call: ProgramCall, op: str) -> ProgramValue:
    if op == "spatial_dropout" and call.time_axis == 2:
        raise Refused("drops other features in each step", "Leave out the TimeDistributed, or use Dropout.")
    return _drawing(call, op, _rate(call))


def _rate(call: ProgramCall) -> float:
    """The dropout rate of a layer; refused if it is 1."""
    rate = float(call.layer.rate)
    if rate >= 1:
        raise Refused("drops everything", "Give it a rate below 1.")
    return rate


def _drawing(call: ProgramCall, op: str, rate: float) -> ProgramValue:
    """A node that draws random numbers with a rate or deviation; its input if `rate` is 0."""
    if rate == 0:
        value: ProgramValue = call.x
        return value
    added = call.add(op)
    _set_dropout(call, added.number, Drops(rate, 0.0, call.layer.seed_generator))
    return added


def _set_dropout(call: ProgramCall, number: int | None, drops: Drops) -> None:
    if isinstance(call.nodes, _TrainingNodes) and number is not None:
        call.nodes.drops[number] = drops


def _carried(call: ProgramCall) -> ProgramValue:
    """The nodes of a recurrent layer that continues from the states of the last batch."""
    layer = call.layer
    before = [call.add("input", {}, shape=(-1, state.shape[-1]), dtype="float32") for state in layer.states]
    before = [
        dataclasses.replace(value, shape=(None, state.shape[-1]))
        for value, state in zip(before, layer.states, strict=True)
    ]
    read = _training_readers().anywhere[type(layer.runner)]
    arguments = {**call.arguments, "initial_state": before}
    values: Any = read(dataclasses.replace(call, layer=layer.runner, arguments=arguments))
    outputs, *after = values
    if isinstance(call.nodes, _TrainingNodes):
        call.nodes.carried += [
            Carried(state, value.number) for state, value in zip(layer.states, after, strict=True)
        ]
    return outputs


def _recurrent(read: Read, call: ProgramCall) -> ProgramValue | list[ProgramValue]:
    """The nodes of a recurrent layer, with the dropout of its cells."""
    before = len(call.nodes.found)
    values = read(call)
    if call.layer.stateful:
        raise Refused("is stateful", "Build it with stateful=False.")
    cell = call.layer.cell
    cells = cell.cells if type(cell) is layers.StackedRNNCells else [cell]
    added = [
        number
        for number in range(before, len(call.nodes.found))
        if call.nodes.found[number].op in ("lstm", "gru", "simple_rnn")
    ]
    if isinstance(call.nodes, _TrainingNodes) and call.layer.compute_dtype == _NARROW:
        call.nodes.narrow += added
    for number, one in zip(added, cells, strict=True):
        inputs, state = float(one.dropout), float(one.recurrent_dropout)
        if inputs == 0 and state == 0:
            continue
        if max(inputs, state) >= 1:
            raise Refused("drops everything", "Give it a dropout below 1.")
        if inputs > 0 and state == 0 and one.implementation == 1:
            raise Refused("has dropout with implementation=1", "Build it with implementation=2.")
        _set_dropout(call, number, Drops(inputs, state, one.seed_generator))
    return values
