"""The walk over a graph: its order, its way into nested models, its paths, and where it stops."""

from typing import Any

import keras
import pytest
from keras import layers

from cellerate.keras_graph.graph import functional_graph
from cellerate.keras_graph.walk import GraphCall, Inner, Visitor, flat_inputs, walk

pytestmark = pytest.mark.keras


class Paths(Visitor[str]):
    """The value of a tensor is the way that it has come."""

    def __init__(self, last: str | None = None) -> None:
        self.paths: list[str] = []
        self.last = last

    def done(self) -> bool:
        return self.last in self.paths

    def call(self, call: GraphCall[str]) -> list[str] | Inner[str]:
        graph = functional_graph(call.operation)
        if graph is not None:
            return Inner(graph, flat_inputs(graph, next(iter(call.arguments().values()))), call.path)
        self.paths.append(call.path)
        joined = "+".join(call.inputs)
        return [f"{call.operation.name}({joined})"] * len(call.outputs)

    def output(self, tensor: Any, value: str) -> str:
        return f"{value}:{tensor.shape[-1]}"


def nested() -> keras.Model:
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    inner = keras.Model(
        {"a": a, "b": b}, [layers.Concatenate(name="join")([b, a]), layers.Dense(4, name="wide")(a)]
    )
    inner.name = "inner"
    x, y = keras.Input((2,), name="x"), keras.Input((3,), name="y")
    joined, wide = inner({"b": y, "a": x})
    again, _ = inner({"a": x, "b": layers.Dense(3, name="first")(wide)})
    return keras.Model([x, y], [again, joined])


def test_walk_follows_values_through_nested_models():
    visitor = Paths()
    again, joined = walk(functional_graph(nested()), ["x", "y"], visitor)
    assert joined == "join(y+x):5:5"
    assert again == "join(first(wide(x):4:4):3+x):5:5"
    assert visitor.paths == ["inner/wide", "inner/join", "first", "inner/wide", "inner/join"]


def test_walk_of_a_visitor_that_is_done_stops_inside_a_nested_model():
    visitor = Paths(last="m/inner/join")
    assert walk(functional_graph(nested()), ["x", "y"], visitor, "m/") == []
    assert visitor.paths == ["m/inner/wide", "m/inner/join"]


def test_walk_of_too_few_inputs_raises_value_error():
    with pytest.raises(ValueError, match="zip"):
        walk(functional_graph(nested()), ["x"], Paths())


def test_arguments_are_named_and_leave_out_what_the_layer_does_not_take():
    found = []

    class Arguments(Visitor[str]):
        def call(self, call: GraphCall[str]) -> list[str]:
            found.append(call.arguments())
            return ["out"] * len(call.outputs)

    x, state = keras.Input((5, 2)), keras.Input((3,))
    lstm = layers.LSTM(3)(x, initial_state=[state, state])
    model = keras.Model([x, state], layers.Dense(1)(lstm))
    walk(functional_graph(model), ["x", "state"], Arguments())
    assert found == [{"sequences": "x", "initial_state": ["state", "state"]}, {"inputs": "out"}]


def test_a_layer_whose_method_names_its_first_argument_otherwise_is_read() -> None:
    class Doubled(layers.Layer):
        def call(this, given: Any, *, by: float = 2.0) -> Any:  # noqa: N805
            return given * by

    class Arguments(Visitor[str]):
        def call(self, call: GraphCall[str]) -> list[str]:
            return [str(call.arguments())]

    inputs = keras.Input((2,))
    model = keras.Model(inputs, Doubled()(inputs, by=3.0))
    assert list(walk(model, ["x"], Arguments())) == ["{'given': 'x', 'by': 3.0}"]
