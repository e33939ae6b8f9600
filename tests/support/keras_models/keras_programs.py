"""Compares the program of a Keras model with random weights with `model(x, training=False)`."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from cellerate.keras_graph.to_program import read_program
from cellerate.program import Program
from cellerate.runtime.program.engine import Engine

TOLERANCE = 1e-5
B, T, F, V = 6, 7, 5, 11  # batch, steps, features, rows of an Embedding
# A row for each way to pad; the last one has no padding.
MASK = np.array(
    [
        [1, 1, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 1],
        [1, 1, 0, 0, 0, 1, 1],
        [0, 1, 0, 1, 1, 0, 1],
        [0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1],
    ],
    bool,
)
Chain = Callable[[Any], Any]


def series(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape or (B, T, F)).astype("float32")


def ids(steps: int = T) -> np.ndarray:
    return (np.random.default_rng(3).integers(1, V, (B, T)).astype("int32") * MASK)[:, :steps]


def masked_series() -> np.ndarray:
    return series() * MASK[..., None]


def randomize(model: keras.Model) -> None:
    """Give every floating-point variable random values, none of them Keras's initial ones."""
    rng = np.random.default_rng(0)
    for variable in model.variables:
        if "float" in keras.backend.standardize_dtype(variable.dtype):
            values = rng.normal(scale=0.5, size=variable.shape)
            variable.assign(
                (np.abs(values) + 0.5 if "variance" in variable.name else values).astype("float32")
            )


def numpy(value: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(value))


def agree(found: Any, expected: Any, tolerance: float = TOLERANCE) -> None:
    flat = [numpy(value) for value in keras.tree.flatten(expected)]
    assert len(found) == len(flat)
    for name, value in zip(found, flat, strict=True):
        largest = np.nanmax(np.abs(value), initial=0)
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance * (1 + largest), err_msg=name)


def call(model: keras.Model, inputs: Any) -> Any:
    """`model(inputs, training=False)`; on JAX as one program, because op by op takes several times as long."""
    if keras.backend.backend() != "jax":
        return model(inputs, training=False)
    import jax

    return jax.jit(lambda given: model(given, training=False))(inputs)


def check(model: keras.Model, inputs: Any) -> Program:
    """Compare the program of a model with random weights with the model, and return it."""
    randomize(model)
    expected = call(model, inputs)
    program = read_program(model)
    agree(Engine(program).run(inputs), expected)
    return program


def chain_of(*chain: Any, shape: tuple[int | None, ...] = (T, F), dtype: str = "float32") -> keras.Model:
    """A Functional model that applies the functions or layers of a chain to one input."""
    value = inputs = keras.Input(shape, dtype=dtype, name="x")
    for link in chain:
        value = link(value)
    return keras.Model(inputs, value)


def kinds(program: Program) -> list[str]:
    return [node.op for node in program.nodes]


def masked_lstms(program: Program) -> list[bool]:
    """True for each LSTM that has a mask, else False."""
    return ["mask" in node.inputs for node in program.nodes if node.op == "lstm"]
