"""Compares an accelerated LSTM with Keras's own code: outputs, states and every gradient.

A model is measured as Keras runs it, and then the same model is accelerated and measured again.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.layers import fused
from cellerate.layers.accelerate import accelerate, implementation_of

BACKEND = keras.backend.backend()
B, T, F, D, H, V = 6, 7, 4, 5, 9, 11  # batch, steps, features, inputs, units, rows of an Embedding
# The design's limits, as shares of the RMS, for outputs and states and for gradients.
FLOORS = {"float32": (1e-6, 5e-6), "bfloat16": (5e-3, 2e-2), "float16": (1e-3, 5e-3)}
QUICK = pytest.mark.quick_on_gpu
Measured = dict[str, np.ndarray]
Build = Callable[[], keras.Model]
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
IDS = np.random.default_rng(3).integers(1, V, (B, T)).astype("int32") * MASK


def data(mask: np.ndarray = MASK) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=(B, T, F)).astype("float32"), rng.normal(size=(B, 3)).astype("float32"), mask]


def model_of(plain: Any = None, masked: Any = None, *, states: int = 0, steps: int | None = T) -> keras.Model:
    """x → Dense → two layers, one without and one with a mask → their outputs.

    The initial states come from a Dense as well, so that every gradient of the layers reaches a weight.
    """
    x, s = keras.Input((steps, F), name="x"), keras.Input((3,), name="s")
    mask = keras.Input((steps,), name="mask", dtype="bool")
    dense = layers.Dense(D)(x)
    outputs: list[Any] = []
    for layer, given in ((plain, {}), (masked, {"mask": mask})):
        if layer is not None:
            initial = [layers.Dense(H, activation="tanh")(s) for _ in range(states)]
            given = given | ({"initial_state": initial} if initial else {})
            outputs += keras.tree.flatten(layer(dense, **given))
    return keras.Model([x, s, mask], outputs)


def text_model(*recurrent: layers.Layer, rows: int = V, **embedding: Any) -> keras.Model:
    ids = keras.Input((T,), dtype="int32")
    x = layers.Embedding(rows, D, **embedding)(ids)
    for layer in recurrent:
        x = layer(x)
    return keras.Model(ids, x)


def measure(model: keras.Model, inputs: Any, *, training: bool = False) -> Measured:
    """The outputs of the model, and the gradient of each weight for one random cotangent of all outputs."""
    floatx = keras.config.floatx()
    inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
    variables, others = model.trainable_variables, model.non_trainable_variables
    # The non-trainable variables include random generators, which advance with each call.
    before = [(v, ops.convert_to_numpy(v.value)) for v in others]

    def loss_of(outputs: list[Any]) -> Any:
        rng = np.random.default_rng(2)
        weights = [ops.convert_to_tensor(rng.normal(size=tuple(y.shape)).astype(floatx)) for y in outputs]
        return sum(ops.sum(ops.cast(y, floatx) * w) for y, w in zip(outputs, weights, strict=True))

    if BACKEND == "jax":
        import jax

        @jax.jit
        def run(trained: Any, fixed: Any, inputs: Any) -> Any:
            def loss(trained: Any) -> tuple[Any, Any]:
                outputs, _ = model.stateless_call(trained, fixed, inputs, training=training)
                outputs = keras.tree.flatten(outputs)
                return loss_of(outputs), outputs

            return jax.grad(loss, has_aux=True)(trained)

        gradients, outputs = run([v.value for v in variables], [v.value for v in others], inputs)
    elif BACKEND == "torch":
        outputs = keras.tree.flatten(model(inputs, training=training))
        loss_of(outputs).backward()
        gradients = [v.value.grad for v in variables]
        for v in variables:
            v.value.grad = None
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(model(inputs, training=training))
            loss = loss_of(outputs)
        gradients = tape.gradient(loss, [v.value for v in variables])
    for variable, value in before:
        variable.assign(value)
    named = {f"output {n}": y for n, y in enumerate(outputs)}
    named |= {
        f"gradient {n} of {v.name}": g for n, (v, g) in enumerate(zip(variables, gradients, strict=True))
    }
    return {
        n: ops.convert_to_numpy(ops.cast(ops.convert_to_tensor(a), floatx))
        for n, a in named.items()
        if a is not None
    }


def rms(a: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.asarray(a, np.float64) ** 2)))


def assert_close(
    ours: Measured, stock: Measured, truth: Callable[[], Measured] | None = None, *, dtype: str = "float32"
) -> None:
    """Allow our results the floor plus twice Keras's error; results within the floor of Keras's always pass."""
    assert ours.keys() == stock.keys()
    true = None
    for name, expected in stock.items():
        assert ours[name].shape == expected.shape, name
        floor = FLOORS[dtype]["gradient" in name]
        allowed, error = floor * rms(expected), rms(ours[name] - expected)
        if error > allowed and truth is not None:
            true = true or truth()
            allowed = 2 * rms(expected - true[name]) + floor * rms(true[name])
            error = rms(ours[name] - true[name])
        assert error <= allowed, f"{name}: an error of {error:.2e}, {allowed:.2e} allowed"


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy(), keras.config.floatx()
    keras.config.set_dtype_policy(name)
    if name == "float64":
        keras.config.set_floatx(name)
    try:
        with contextlib.ExitStack() as stack:
            if name == "float64" and BACKEND == "jax":
                import jax

                stack.enter_context(jax.enable_x64(True))
            yield
    finally:
        keras.config.set_dtype_policy(before[0])
        keras.config.set_floatx(before[1])


def quick(names: Iterable[Any], *chosen: Any) -> list[Any]:
    """The values of a parameter, of which the chosen ones are quick on the GPU."""
    names = list(names)
    assert set(chosen) <= set(names)
    return [pytest.param(name, marks=QUICK if name in chosen else []) for name in names]


def lstms(model: keras.Model) -> list[layers.LSTM]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, layers.LSTM)]


def assert_accelerated_equals(
    build: Build, inputs: Any, *, training: bool = False, dtype: str = "float32"
) -> keras.Model:
    """Check that the accelerated model gives Keras's results, and return it."""
    model = build()

    def truth() -> Measured:
        with policy("float64"):
            exact = build()
            exact.set_weights([np.asarray(w, "float64") for w in model.get_weights()])
            return measure(exact, inputs)

    stock = measure(model, inputs, training=training)
    accelerate(model)
    assert {implementation_of(layer) for layer in lstms(model)} == {fused.implementation_here()}
    ours = measure(model, inputs, training=training)
    # float64 draws other dropout masks, so with dropout only Keras in the same type can be compared with.
    assert_close(ours, stock, None if training else truth, dtype=dtype)
    return model
