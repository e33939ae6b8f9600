"""Models trained on the engine equal stock Keras in weights, optimizer slots, losses and metrics."""

from typing import Any

import keras
import numpy as np
import pytest

import cellerate
from cellerate.kernels import native
from cellerate.layers.engine import seam
from cellerate.models.losses import QuantileLoss
from support.activation_names import in_keras
from support.keras_models.engine_models import CASES, copy_of, data_of, numbers, trained
from support.keras_models.engine_optimizers import OPTIMIZERS

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
ROWS, BATCH = 39, 16
"""Two whole batches, each of several pieces, and a smaller one."""


def assert_equal(case: str, optimizer: str, **fit: Any) -> None:
    """Train one copy on the engine and one in Keras, and compare all Keras state."""
    row = CASES[case]
    keras.utils.set_random_seed(1)
    model = row.model()
    x, y = data_of(row.data, ROWS)
    given = {"x": x, "y": y, "batch_size": BATCH, "epochs": 2, **fit}
    stock, history = trained(model, row, OPTIMIZERS[optimizer], None, **given)
    ours, our_history = trained(model, row, OPTIMIZERS[optimizer], "require", **given)
    assert our_history.keys() == history.keys()
    for name, values in history.items():
        np.testing.assert_allclose(our_history[name], values, rtol=2e-5, err_msg=name)
    moved = max(
        float(np.abs(one - before).max())
        for one, before in zip(stock.get_weights(), model.get_weights(), strict=True)
    )
    for one, our in zip(stock.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(our, one, rtol=1e-5, atol=1e-4 * moved)
    for one, our in zip(numbers(stock.optimizer.variables), numbers(ours.optimizer.variables), strict=True):
        np.testing.assert_allclose(our, one, rtol=1e-4, atol=1e-5 * float(np.abs(one).max()))
    batch = given["batch_size"]
    assert int(ours.optimizer._iterations) == 2 * -(-ROWS // batch)
    weights = {"sample_weight": fit["sample_weight"]} if "sample_weight" in fit else {}
    judged, our = (
        made.evaluate(x, y, batch, verbose=0, return_dict=True, **weights) for made in (stock, ours)
    )
    assert our.keys() == judged.keys()
    for name, value in judged.items():
        np.testing.assert_allclose(our[name], value, rtol=1e-4, err_msg=name)


# JAX recompiles stock Keras for a smaller batch. The engine divides rows alike on every backend, and the tests with
# BATCH pass smaller batches through the bridge to JAX.
ALIKE = ROWS // 3 if keras.backend.backend() == "jax" else BATCH


@pytest.mark.parametrize("case", CASES)
def test_every_model_trains_like_keras(case: str) -> None:
    assert_equal(case, "adam", batch_size=ALIKE)


def test_validation_equals_keras() -> None:
    assert_equal("masked", "adam", validation_data=data_of(CASES["masked"].data, 8, seed=1))


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "adam"])
# Optimizers compute the same on every backend, except for embeddings on TensorFlow.
@pytest.mark.parametrize("case", ["stack"] * (keras.backend.backend() == "torch") + ["wide vocabulary"])
def test_every_optimizer_trains_like_keras(case: str, optimizer: str) -> None:
    clipped = "clipvalue" in optimizer and CASES[case].data == "next ids"
    if clipped and keras.backend.backend() == "tensorflow":
        pytest.skip("there Keras clips the rows of an Embedding apart, which the engine leaves to it")
    assert_equal(case, optimizer, batch_size=ALIKE)


@pytest.mark.parametrize(
    "case", ["stack", "every step", "masked", "sentiment", "lines by weight", "masked by weight"]
)
def test_sample_weights_train_like_keras(case: str) -> None:
    weights = np.linspace(0.2, 2.0, ROWS).astype("float32")
    if CASES[case].data in ("steps", "next ids", "lines"):
        weights = weights[:, None] * np.linspace(0.5, 1.5, 9).astype("float32")
    assert_equal(case, "adam", sample_weight=weights)


@pytest.mark.parametrize("loss", ["mse", "mae"])
def test_zero_weights_with_l1_take_the_step_of_the_backend(loss: str) -> None:
    """The slope of an absolute value at 0 is 1 in JAX and 0 in the other backends."""
    head = keras.layers.Dense(2, kernel_initializer="zeros", bias_regularizer="l1")
    model = keras.Sequential([keras.Input((9, 3)), keras.layers.LSTM(4), head])
    x = data_of("series", ROWS)[0]
    y = np.zeros((ROWS, 2), np.float32)
    found = []
    for engine in (None, "require"):
        made = copy_of(model)
        made.compile(keras.optimizers.SGD(0.1), loss)
        if engine is not None:
            cellerate.accelerate(made, engine=engine)
        made.train_on_batch(x, y)
        found.append(made.get_weights()[-1])
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        *(("selu", 0.0), ("leaky_relu", 0.0), ("celu", 0.0), ("relu(max_value=2.0)", 2.0)),
        *((name, end) for name in ("hard_tanh", "sparse_sigmoid") for end in (-1.0, 1.0)),
    ],
)
def test_activation_without_a_derivative_takes_the_slope_of_the_backend(name: str, end: float) -> None:
    """A row of zeros before a constant bias reaches exactly the kink of the activation."""
    options = {"kernel_initializer": "zeros", "bias_initializer": keras.initializers.Constant(end)}
    recurrent = {"recurrent_initializer": "zeros", "unit_forget_bias": False}

    def built() -> keras.Model:
        x, function = keras.Input((9, 3)), in_keras(name)
        made = [
            keras.layers.LSTM(4, function, **recurrent, **options)(x),
            keras.layers.LSTM(4, recurrent_activation=function, **recurrent, **options)(x),
            keras.layers.Dense(4, function, **options)(x[:, -1]),
            keras.layers.Activation(function)(keras.layers.Dense(4, **options)(x[:, 0])),
        ]
        return keras.Model(x, keras.layers.Concatenate()(made))

    found = []
    for engine in (None, "require"):
        model = built()
        model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=False)
        if engine is not None:
            cellerate.accelerate(model, engine=engine)
        model.train_on_batch(np.zeros((ROWS, 9, 3), np.float32), np.full((ROWS, 16), 9.0, np.float32))
        found.append(model.get_weights())
    for stock, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-4, atol=1e-5)


def test_weights_of_rows_of_quantiles_without_steps_train_like_keras() -> None:
    """The last two axes of (B, targets, quantiles) are not steps."""
    head = [keras.layers.LSTM(4), keras.layers.Dense(6), keras.layers.Reshape((2, 3))]
    model = keras.Sequential([keras.Input((9, 3)), *head])
    x, found = data_of("series", ROWS)[0], []
    for engine in (None, "require"):
        made = copy_of(model)
        made.compile(keras.optimizers.SGD(0.1), QuantileLoss((0.1, 0.5, 0.9)), jit_compile=False)
        if engine is not None:
            cellerate.accelerate(made, engine=engine)
        made.train_on_batch(x, x[:, 0, :2], sample_weight=np.linspace(0.2, 2.0, ROWS).astype("float32"))
        found.append(made.get_weights())
    for stock, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("misfits")
def test_weights_of_rows_before_an_output_of_steps_are_left_to_keras() -> None:
    """It takes one number a row for one a step where there are as many rows as steps, and refuses others."""
    head = keras.layers.Dense(2)
    model = keras.Sequential([keras.Input((9, 3)), keras.layers.LSTM(4, return_sequences=True), head])
    x = np.random.default_rng(0).standard_normal((9, 9, 3)).astype("float32")
    weights, found = np.array([5.0, *[0.0] * 8], np.float32), []
    for accelerated in (False, True):
        made = copy_of(model)
        made.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        if accelerated:
            cellerate.accelerate(made)
        made.fit(x, x[..., :2], batch_size=9, shuffle=False, sample_weight=weights, verbose=0)
        found.append(made.get_weights())
    for stock, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, stock, rtol=1e-4, atol=1e-6)


def test_class_weights_train_like_keras() -> None:
    assert_equal("sentiment", "sgd", class_weight={0: 0.3, 1: 1.7}, batch_size=ALIKE)


def test_loss_weights_and_frozen_layers_train_like_keras() -> None:
    row = CASES["stack"]
    model = row.model()
    model.layers[0].trainable = False
    x, y = data_of("series", ROWS)
    results = []
    for engine in (None, "require"):
        made = copy_of(model)
        made.layers[0].trainable = False
        made.compile(keras.optimizers.Adam(0.01), "mse", loss_weights=[0.25])
        if engine is not None:
            cellerate.accelerate(made, engine=engine)
        results.append((made.fit(x, y, BATCH, shuffle=False, verbose=0).history["loss"], made.get_weights()))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5)
    for one, our in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(our, one, atol=2e-6)


def test_summed_embedding_gradients_equal_the_step_without_the_engine() -> None:
    row = CASES["characters"]
    keras.utils.set_random_seed(1)
    model = row.model()
    x, y = data_of(row.data, ROWS)
    results = []
    for engine in ("off", "require"):
        made = copy_of(model)
        made.compile(keras.optimizers.Adam(0.01), row.loss)
        cellerate.accelerate(made, engine=engine, sum_embedding_gradients=True)
        made.fit(x, y, BATCH, shuffle=False, verbose=0)
        results.append(made.get_weights())
    for one, our in zip(*results, strict=True):
        np.testing.assert_allclose(our, one, atol=5e-6)


@pytest.mark.parametrize("rows", [1, 2, 7, 130])
def test_batches_of_any_size_train_like_keras(rows: int) -> None:
    row = CASES["bidirectional"]
    keras.utils.set_random_seed(1)
    model = row.model()
    x, y = data_of(row.data, rows)
    stock, _ = trained(model, row, OPTIMIZERS["sgd"], None, x=x, y=y, batch_size=rows, epochs=3)
    ours, _ = trained(model, row, OPTIMIZERS["sgd"], "require", x=x, y=y, batch_size=rows, epochs=3)
    for one, our in zip(stock.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(our, one, atol=2e-6)


def test_lengths_may_change_from_batch_to_batch() -> None:
    row = CASES["any length"]
    keras.utils.set_random_seed(1)
    model = row.model()
    batches = [
        (np.random.default_rng(steps).standard_normal((6, steps, 3), np.float32), np.ones((6, 2), np.float32))
        for steps in (4, 9, 1, 4)
    ]
    results = []
    for engine in (None, "require"):
        made = copy_of(model)
        made.compile(keras.optimizers.Adam(0.01), "mse")
        if engine is not None:
            cellerate.accelerate(made, engine=engine)
        losses = [made.train_on_batch(x, y) for x, y in batches]
        results.append((losses, made.get_weights()))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5)
    for one, our in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_allclose(our, one, atol=2e-6)


@pytest.mark.parametrize(
    "case", ["bidirectional", "wide vocabulary", "masked", "convolutions", "pooled windows", "masked heads"]
)
def test_any_number_of_threads_gives_the_same_bits(case: str) -> None:
    row = CASES[case]
    keras.utils.set_random_seed(1)
    model = row.model()
    x, y = data_of(row.data, 70)
    found = []
    threads = native.num_threads()
    try:
        for count in (1, 2, 3, 1):
            native.set_num_threads(count)
            made, history = trained(model, row, OPTIMIZERS["adam"], "require", x=x, y=y, batch_size=32)
            found.append((history["loss"], made.get_weights()))
    finally:
        native.set_num_threads(threads)
    for losses, weights in found[1:]:
        assert losses == found[0][0]
        for one, first in zip(weights, found[0][1], strict=True):
            np.testing.assert_array_equal(one, first)


def test_diverged_training_gives_nan_as_keras_does() -> None:
    row = CASES["plain"]
    model = row.model()
    x, y = data_of(row.data, 8)
    x[3, 2] = np.nan
    for engine in (None, "require"):
        made, history = trained(model, row, OPTIMIZERS["adam"], engine, x=x, y=y, batch_size=8)
        assert np.isnan(history["loss"]).all()
        assert all(np.isnan(weights).any() for weights in made.get_weights())


@pytest.mark.parametrize(
    "case", ["stack", "bidirectional", "sentiment", "classes", "wide vocabulary", "frames", "attention"]
)
def test_every_instruction_set_takes_the_same_steps(case: str) -> None:
    row = CASES[case]
    keras.utils.set_random_seed(1)
    model = row.model()
    x, y = data_of(row.data, ROWS)
    before = native.target()
    found = []
    try:
        for target in native.available_targets():
            native.set_target(target)
            made = copy_of(model)
            made.compile(OPTIMIZERS["sgd"](), row.loss, metrics=row.metrics(), **row.options())
            # By name, because "auto" leaves the model to Keras on the target without vector instructions.
            cellerate.accelerate(made, "cellerate-cpu", engine="require")
            history = made.fit(x, y, BATCH, epochs=2, shuffle=False, verbose=0).history
            assert seam.step_of(made) is not None, f"{target} left the steps to Keras"
            found.append((history["loss"], made.get_weights()))
    finally:
        native.set_target(before)
    for losses, weights in found[1:]:
        np.testing.assert_allclose(losses, found[0][0], rtol=2e-5)
        for one, first in zip(weights, found[0][1], strict=True):
            np.testing.assert_allclose(one, first, atol=5e-6)


def test_threads_split_a_batch_smaller_than_one_piece() -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((20, 8)), keras.layers.LSTM(48), keras.layers.Dense(1)])
    random = np.random.default_rng(0)
    x, y = random.standard_normal((8, 20, 8), np.float32), random.standard_normal((8, 1), np.float32)

    def weights_after(engine: str | None, count: int) -> list[Any]:
        native.set_num_threads(count)
        made = keras.models.clone_model(model)
        made.set_weights(model.get_weights())
        made.compile("sgd", "mse")
        if engine is not None:
            cellerate.accelerate(made, engine=engine)
        made.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0)
        return [np.array(weight) for weight in made.get_weights()]

    threads = native.num_threads()
    try:
        stock, alone = weights_after(None, 1), weights_after("require", 1)
        shared, again = weights_after("require", 2), weights_after("require", 2)
    finally:
        native.set_num_threads(threads)
    for one, our, both, same in zip(stock, alone, shared, again, strict=True):
        np.testing.assert_allclose(our, one, atol=2e-6)
        np.testing.assert_allclose(both, one, atol=2e-6)
        np.testing.assert_array_equal(both, same)
    # Two pieces add up in another order.
    assert any((our != both).any() for our, both in zip(alone, shared, strict=True))
