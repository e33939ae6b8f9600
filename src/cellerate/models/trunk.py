"""The trunk of a Keras model: the chain of layers that runs along the time axis and can be cut between two layers.

Each layer of the trunk needs only its own states from earlier time steps, so a chunk of time can go through the whole
trunk before the next chunk begins. The parts before and after the trunk see the whole sequence at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import layers

from cellerate.errors import ModelError
from cellerate.keras_graph.graph import functional_graph
from cellerate.keras_graph.walk import ordered_nodes
from cellerate.messages import argument

_RECURRENT = (layers.LSTM, layers.GRU, layers.SimpleRNN)
# The output of each at a time step depends on that step alone, and so does its gradient.
_STEP_BY_STEP = (
    layers.Embedding,
    layers.Dense,
    layers.Dropout,
    layers.Activation,
    layers.ReLU,
    layers.LeakyReLU,
    layers.ELU,
    layers.LayerNormalization,
)
_REMEDY = f"Train in one stage, or share the rows of each batch instead ({argument('processes')})"


@dataclasses.dataclass(frozen=True)
class Trunk:
    """A model as its trunk and the parts around it.

    Attributes:
        layers: The layers of the trunk, in order.
        before: The model from the inputs to the trunk; None if the trunk begins with an input.
        entry: The input of the trunk, a symbolic tensor (B, T, ...).
        tensors: The output of each layer of the trunk, a symbolic tensor.
        after: The model from the trunk's output, and the inputs `after_inputs`, to the outputs; None if the trunk's
            output is the model's.
        after_inputs: The numbers of the model's inputs that `after` also takes.
        before_inputs: The numbers of the inputs that `before` takes; without `before`, of the trunk's input.
    """

    layers: tuple[keras.Layer, ...]
    before: keras.Model | None
    entry: Any
    tensors: tuple[Any, ...]
    after: keras.Model | None
    after_inputs: tuple[int, ...]
    before_inputs: tuple[int, ...]


def trunk_of(model: keras.Model) -> Trunk:
    """Finds the trunk of a model.

    Raises:
        ModelError: The model has no trunk, or a layer in it needs the whole sequence: the message names it.
    """
    graph = functional_graph(model)
    if graph is None:
        raise ModelError(
            f"model {model.name!r} is a {type(model).__name__}, which has no order of layers to divide into stages: "
            "build it as keras.Model(inputs, outputs) or keras.Sequential."
        )
    nodes = list(ordered_nodes(graph))
    recurrent = [node for node in nodes if _holds_recurrence(node.operation)]
    if not recurrent:
        raise ModelError(
            f"model {model.name!r} has no recurrent layer, so there is nothing to divide into stages. {_REMEDY}."
        )
    for node in recurrent:
        _check_recurrent(node.operation)
    _check_masks(model)
    chain = _chain(graph, nodes, recurrent[0])
    if (missing := [node for node in recurrent if node not in chain]) or _ends_early(chain):
        raise _broken(graph, nodes, chain, missing)
    entry, end = chain[0].input_tensors[0], chain[-1].outputs[0]
    inputs, outputs = list(graph.inputs), list(graph.outputs)
    places = {id(tensor): number for number, tensor in enumerate(inputs)}
    around: set[int] = set()
    before: keras.Model | None = None
    before_inputs: tuple[int, ...] = (places.get(id(entry), 0),)
    if id(entry) not in places:
        before_inputs, around = _upstream(nodes, [entry], (), places)
        before = _part(nodes, around, [inputs[n] for n in before_inputs], [entry], "before_stages")
    after: keras.Model | None = None
    after_inputs: tuple[int, ...] = ()
    later: set[int] = set()
    if [id(tensor) for tensor in outputs] != [id(end)]:
        after_inputs, later = _upstream(nodes, outputs, (end,), places)
        given = [end, *(inputs[n] for n in after_inputs)]
        after = _part(nodes, later, given, outputs, "after_stages")
    _check_shared(nodes, chain, around, later)
    return Trunk(
        tuple(node.operation for node in chain),
        before,
        entry,
        tuple(node.outputs[0] for node in chain),
        after,
        after_inputs,
        before_inputs,
    )


def _holds_recurrence(operation: Any) -> bool:
    if not isinstance(operation, keras.Layer):
        return False
    return any(
        isinstance(one, layers.RNN | layers.Bidirectional)
        for one in operation._flatten_layers(include_self=True)
    )


def _check_recurrent(layer: Any) -> None:
    """Raises `ModelError` for a layer with a recurrence that cannot go on from chunk to chunk."""
    both_ways = [one for one in layer._flatten_layers() if isinstance(one, layers.Bidirectional)]
    if both_ways:
        raise ModelError(
            f"layer {both_ways[0].name!r} is Bidirectional: it reads the sequence from its end as well, so it needs "
            "all of it before it gives its first step, and no stage can begin early. "
            f"{_REMEDY}, or use layers of one direction."
        )
    if type(layer) not in _RECURRENT:
        inside = isinstance(layer, keras.Model)
        what = (
            "has recurrent layers inside a nested model"
            if inside
            else f"is a {type(layer).__name__}, whose states are not known"
        )
        raise ModelError(
            f"layer {layer.name!r} {what}. Stages need LSTM, GRU or SimpleRNN layers directly in the model. {_REMEDY}."
        )
    reasons = {
        "go_backwards=True, so it needs the whole sequence first": layer.go_backwards,
        "stateful=True": layer.stateful,
        "return_state=True": layer.return_state,
        f"recurrent_dropout={layer.cell.recurrent_dropout:g}, which is one mask for all time steps": (
            layer.cell.recurrent_dropout
        ),
        f"dropout={layer.cell.dropout:g}, which is one mask for all time steps; a Dropout layer is not": (
            layer.cell.dropout
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ModelError(f"layer {layer.name!r} has {reason}. {_REMEDY}.")


def _check_masks(model: keras.Model) -> None:
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, layers.Masking) or getattr(layer, "mask_zero", False):
            raise ModelError(f"layer {layer.name!r} makes a mask, which stages do not pass on. {_REMEDY}.")


def _check_shared(nodes: Sequence[Any], chain: Sequence[Any], around: set[int], later: set[int]) -> None:
    """Raises `ModelError` for a layer whose weights two stages would train."""
    inside = [node.operation for node in chain]
    for node in nodes:
        layer = node.operation
        if not isinstance(layer, keras.Layer) or not layer.weights:
            continue
        uses = [layer in inside, id(node) in around, id(node) in later]
        calls = sum(other.operation is layer for other in nodes)
        if calls > 1 or sum(uses) > 1:
            raise ModelError(
                f"layer {layer.name!r} is used in several places, and each stage has the weights of its own layers "
                f"only. Use a layer for each place ({argument('tie_weights', False)}). {_REMEDY}."
            )


def _chain(graph: Any, nodes: Sequence[Any], first: Any) -> list[Any]:
    """The calls of the trunk around the first recurrent layer."""
    consumers: dict[int, list[Any]] = {}
    for node in nodes:
        for tensor in node.input_tensors:
            consumers.setdefault(id(tensor), []).append(node)
    makers = {id(tensor): node for node in nodes for tensor in node.outputs}
    ends = {id(tensor) for tensor in graph.outputs}

    def only_for(tensor: Any, node: Any) -> bool:
        return consumers.get(id(tensor), []) == [node] and id(tensor) not in ends

    chain = [first]
    while (node := makers.get(id(chain[0].input_tensors[0]))) is not None:
        if not (_step_by_step(node) and only_for(node.outputs[0], chain[0])):
            break
        chain.insert(0, node)
    while _over_time(chain[-1].outputs[0]):
        following = consumers.get(id(chain[-1].outputs[0]), [])
        if len(following) != 1 or not only_for(chain[-1].outputs[0], following[0]):
            break
        (node,) = following
        if not (_step_by_step(node) or (type(node.operation) in _RECURRENT and len(node.input_tensors) == 1)):
            break
        chain.append(node)
    return chain


def _ends_early(chain: Sequence[Any]) -> bool:
    """True if a layer before the last one does not return a sequence."""
    return any(not _over_time(node.outputs[0]) for node in chain[:-1])


def _over_time(tensor: Any) -> bool:
    return len(tensor.shape) == 3


def _step_by_step(node: Any) -> bool:
    layer = node.operation
    if type(layer) not in _STEP_BY_STEP or len(node.input_tensors) != 1 or len(node.outputs) != 1:
        return False
    if isinstance(layer, layers.Embedding):
        return len(node.input_tensors[0].shape) == 2
    if isinstance(layer, layers.LayerNormalization):
        axes = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
        return list(axes) in ([-1], [2])
    if getattr(layer, "activity_regularizer", None) is not None:
        return False
    return _over_time(node.input_tensors[0]) and getattr(layer, "noise_shape", None) is None


def _broken(graph: Any, nodes: Sequence[Any], chain: Sequence[Any], missing: Sequence[Any]) -> ModelError:
    """The error that names the obstacle between two recurrent layers."""
    end = chain[-1].outputs[0]
    following = [node for node in nodes if any(tensor is end for tensor in node.input_tensors)]
    if len(following) > 1:
        reason = f"several layers read the output of layer {chain[-1].operation.name!r}"
    elif not following:
        reason = f"layer {missing[0].operation.name!r} does not follow {chain[-1].operation.name!r}"
    else:
        operation = following[0].operation
        reason = (
            f"layer {operation.name!r} ({type(operation).__name__}) between {chain[-1].operation.name!r} and "
            f"{(missing or following)[0].operation.name!r} needs more than one time step, or more than one tensor"
        )
    return ModelError(f"the recurrent layers of {graph.name!r} are not one chain: {reason}. {_REMEDY}.")


def _upstream(
    nodes: Sequence[Any], ends: Iterable[Any], stops: Iterable[Any], places: dict[int, int]
) -> tuple[tuple[int, ...], set[int]]:
    """The numbers of the inputs that some tensors depend on, and the calls that compute them, back to `stops`."""
    makers = {id(tensor): node for node in nodes for tensor in node.outputs}
    stopped = {id(tensor) for tensor in stops}
    wanted, seen, found, calls = list(ends), set(stopped), set(), set()
    while wanted:
        tensor = wanted.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        if id(tensor) in places:
            found.add(places[id(tensor)])
            continue
        calls.add(id(makers[id(tensor)]))
        wanted += makers[id(tensor)].input_tensors
    return tuple(sorted(found)), calls


def _part(
    nodes: Sequence[Any], calls: set[int], given: Sequence[Any], outputs: Sequence[Any], name: str
) -> keras.Model:
    """A model of some calls of a graph, with shared layers."""
    inputs = [keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype) for tensor in given]
    values = {id(tensor): value for tensor, value in zip(given, inputs, strict=True)}
    for node in nodes:
        if id(node) in calls:
            args, kwargs = node.arguments.fill_in(values)
            made = keras.tree.flatten(node.operation(*args, **kwargs))
            values |= {id(tensor): value for tensor, value in zip(node.outputs, made, strict=True)}
    found = [values[id(tensor)] for tensor in outputs]
    # A model of a list of one tensor would expect a list.
    inputs, found = (several if len(several) > 1 else several[0] for several in (inputs, found))
    return keras.Model(inputs, found, name=name)
