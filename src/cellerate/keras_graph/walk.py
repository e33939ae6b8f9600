"""The one walk over the graph of a Keras model.

A `Visitor` says what a call makes of its inputs. The order of the calls, the values of the tensors between them and
the way into nested models are the same for all visitors.
"""

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
        path: The names of the nested models down to what is called, and its own name, joined by "/".
        values: What stands for each tensor so far, by the `id` of the tensor.
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
        """The values of all tensors that go in; a mask that Keras passes on is among them, at the end."""
        return [self.values[id(tensor)] for tensor in self.node.input_tensors]

    @property
    def outputs(self) -> list[Any]:
        """The tensors that come out."""
        return list(self.node.outputs)

    def filled_in(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as they are given, each tensor replaced by its value."""
        args, kwargs = self.node.arguments.fill_in(self.values)
        return args, kwargs

    def arguments(self) -> dict[str, Any]:
        """The arguments by their names, each tensor replaced by its value."""
        args, kwargs = self.filled_in()
        # Of the class, since the layer itself may have a replacement.
        signature = inspect.signature(type(self.operation).call.__get__(self.operation))
        # Keras accepts some arguments, such as `training`, whether a layer has them or not.
        kwargs = {name: value for name, value in kwargs.items() if name in signature.parameters}
        return dict(signature.bind(*args, **kwargs).arguments)


@dataclasses.dataclass(frozen=True)
class Inner(Generic[V]):
    """A visitor's answer that the walk should go into the nested model of a call.

    Attributes:
        graph: The graph of that model.
        inputs: The values of its inputs.
        path: Where it is.
    """

    graph: Any
    inputs: Sequence[V]
    path: str


class Visitor(Generic[V]):
    """The answers to the questions of a walk at each call."""

    def done(self) -> bool:
        """True if the walk can stop; it is asked before the first call and after each."""
        return False

    def call(self, call: GraphCall[V]) -> Sequence[V] | Inner[V]:
        """The values of a call's outputs, or the nested model that gives them."""
        raise NotImplementedError

    def output(self, tensor: Any, value: V) -> V:
        """The stand-in for an output from then on; a visitor may add what only the outer graph knows about it."""
        return value


def walk(graph: Any, inputs: Sequence[V], visitor: Visitor[V], path: str = "") -> list[V]:
    """Follows the calls of a graph in the order they run, into nested models too.

    Args:
        graph: What `graph.functional_graph` gives.
        inputs: The values of its inputs.
        visitor: Says what each call makes of its inputs.
        path: What the paths of the calls begin with: empty, or ends in "/".

    Returns:
        The values of the graph's outputs; none if the visitor was done before.
    """
    values: dict[int, V] = {id(tensor): value for tensor, value in zip(graph.inputs, inputs, strict=True)}
    if visitor.done():
        return []
    for node in ordered_nodes(graph):
        # Keras skips a call that lacks an input, too.
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


def flat_inputs(graph: Any, given: Any) -> list[Any]:
    """The first argument of a nested model's call, in the order of its graph's inputs."""
    if isinstance(given, dict) and not isinstance(graph._inputs_struct, dict):
        given = [given[tensor.name] for tensor in graph.inputs]
    return list(tree.flatten(given))


def ordered_nodes(graph: Any) -> Iterator[Any]:
    """The calls of a graph in the order they run, inputs left out."""
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            if node.operation is not None and not node.is_input:
                yield node
