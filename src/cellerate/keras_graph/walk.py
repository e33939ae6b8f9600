"""The one walk over the graph of a Keras model.

A `Visitor` computes the outputs of each call from its inputs. For all visitors, the walk handles the order of the
calls, the values of the tensors between them, and nested models.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from keras.src import tree

V = TypeVar("V")


@dataclasses.dataclass(frozen=True)
class GraphCall(Generic[V]):
    """One call of a layer or operation in a graph.

    Attributes:
        node: Keras's record of the call.
        path: The names of the nested models around the operation, and its own name, joined by "/".
        values: The values of the tensors so far, by the `id` of the tensor.
    """

    node: Any
    path: str
    values: Mapping[int, V]

    @property
    def operation(self) -> Any:
        """The layer, nested model or operation that is called."""
        return self.node.operation

    @property
    def inputs(self) -> list[V]:
        """The values of all input tensors; a mask that Keras passes on comes last."""
        return [self.values[id(tensor)] for tensor in self.node.input_tensors]

    @property
    def outputs(self) -> list[Any]:
        """The output tensors."""
        return list(self.node.outputs)

    def filled_in(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and keyword arguments, with each tensor replaced by its value."""
        args, kwargs = self.node.arguments.fill_in(self.values)
        return args, kwargs

    def arguments(self) -> dict[str, Any]:
        """The arguments by their names, with each tensor replaced by its value."""
        args, kwargs = self.filled_in()
        # The class's `call`, because the layer itself may have a replacement.
        signature = inspect.signature(type(self.operation).call.__get__(self.operation))
        # Keras accepts some arguments, such as `training`, whether a layer has them or not.
        kwargs = {name: value for name, value in kwargs.items() if name in signature.parameters}
        return dict(signature.bind(*args, **kwargs).arguments)


@dataclasses.dataclass(frozen=True)
class Inner(Generic[V]):
    """A visitor's answer that sends the walk into the nested model of a call.

    Attributes:
        graph: The graph of the nested model.
        inputs: The values of its inputs.
        path: The path of the nested model.
    """

    graph: Any
    inputs: Sequence[V]
    path: str


class Visitor(Generic[V]):
    """Computes the values of a walk, call by call."""

    def done(self) -> bool:
        """True if the walk can stop; the walk asks before the first call and after each call."""
        return False

    def call(self, call: GraphCall[V]) -> Sequence[V] | Inner[V]:
        """The values of a call's outputs, or the nested model that computes them."""
        raise NotImplementedError

    def output(self, tensor: Any, value: V) -> V:
        """The final value of an output; a visitor may add facts that only the outer graph knows."""
        return value


def walk(graph: Any, inputs: Sequence[V], visitor: Visitor[V], path: str = "") -> list[V]:
    """Follows the calls of a graph in the order they run, into nested models too.

    Args:
        graph: A result of `graph.functional_graph`.
        inputs: The values of the graph's inputs.
        visitor: Computes the outputs of each call.
        path: The prefix of the calls' paths: empty, or ends in "/".

    Returns:
        The values of the graph's outputs; none if the visitor was done earlier.
    """
    values: dict[int, V] = {id(tensor): value for tensor, value in zip(graph.inputs, inputs, strict=True)}
    if visitor.done():
        return []
    for node in ordered_nodes(graph):
        # Like Keras, skip a call that lacks an input.
        if not all(id(tensor) in values for tensor in node.input_tensors):
            continue
        made = visitor.call(GraphCall(node, f"{path}{node.operation.name}", values))
        if isinstance(made, Inner):
            made = walk(made.graph, made.inputs, visitor, f"{made.path}/")
        if visitor.done():
            return []
        for tensor, value in zip(node.outputs, made, strict=True):
            values[id(tensor)] = visitor.output(tensor, value)
    return [values[id(tensor)] for tensor in graph.outputs]


def flat_inputs(graph: Any, argument: Any) -> list[Any]:
    """The first argument of a nested model's call, in the order of its graph's inputs."""
    if isinstance(argument, dict) and not isinstance(graph._inputs_struct, dict):
        argument = [argument[tensor.name] for tensor in graph.inputs]
    return list(tree.flatten(argument))


def ordered_nodes(graph: Any) -> Iterator[Any]:
    """The calls of a graph in the order they run, without its inputs."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.operation is not None and not node.is_input:
                yield node
