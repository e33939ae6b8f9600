"""An accelerated model takes the steps of stock Keras, in each way in which its reader trains it.

Two stock runs of these programs whose weights differ by one rounding lose the same to 4e-7 after 300 steps on each
backend, so rounding does not grow here, and 1e-5 leaves room for nothing else.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import cellerate
from cellerate.layers.accelerate import restored
from documents import long_records, six_steps, text_generation
from documents.autoencoder import BATCH_OF_ONE_WITHOUT_DROPOUT
from documents.pairs import accelerated, assert_near, each_in_time, each_program, trained
from documents.program import Program

pytestmark = [pytest.mark.keras, pytest.mark.backends, pytest.mark.few_steps]

BACKEND = keras.backend.backend()
SAME = 1e-5
Losses = list[float]
only_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's own")


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def stock_and_ours(build: Callable[[], keras.Model], train: Callable[[keras.Model], Losses]) -> list[Losses]:
    """What a training loses as it is and accelerated."""
    return [train(build()), train(cellerate.accelerate(build()))]


def assert_learns_alike(stock: Losses, ours: Losses) -> None:
    np.testing.assert_allclose(ours, stock, rtol=SAME)
    assert np.mean(stock[-5:]) < 0.95 * np.mean(stock[:5])


def assert_no_further(exact: Losses, stock: Losses, ours: Losses) -> None:
    """By the rule for every number type: an error of at most twice that of Keras."""
    error, own_error = (np.sqrt(np.mean((np.array(each) - exact) ** 2)) for each in (stock, ours))
    assert 0 < own_error <= 2 * error


def assert_300_steps_lose_alike(program: Program) -> None:
    pair = trained(program)
    for name, (stock, ours) in pair.losses.items():
        np.testing.assert_allclose(ours, stock, rtol=SAME, err_msg=name)
    stock, _ = pair.losses["loss"]
    assert stock[-1] < 0.9 * stock[0]


@each_in_time
def test_300_steps_of_an_accelerated_model_lose_what_keras_loses(program: Program) -> None:
    assert_300_steps_lose_alike(program)


@pytest.mark.slow
def test_300_steps_of_the_engine_lose_what_keras_loses_where_nothing_drops() -> None:
    assert_300_steps_lose_alike(BATCH_OF_ONE_WITHOUT_DROPOUT)


@each_program
def test_accelerated_model_predicts_what_keras_predicts(program: Program) -> None:
    ours, x = accelerated(program), program.inputs()
    found = [ours.predict(x, verbose=0), ops.convert_to_numpy(ours(x))]
    with restored(ours):
        expected = ours.predict(x, verbose=0)
    for each in found:
        assert_near(each, expected)


@each_program
def test_every_layer_runs_on_kernels_and_can_be_packed(program: Program) -> None:
    explanation = cellerate.explain(accelerated(program))
    assert [one for one in explanation.layers if not one.wrapper and one.implementation == "keras"] == []
    assert explanation.can_be_packed


# Other ways in which they train.


def first_batches(data: Any, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x.numpy(), y.numpy()) for x, y in data.take(count)]


@pytest.mark.slow
def test_mixed_float16_is_no_further_from_float32_than_with_keras() -> None:
    batches = first_batches(text_generation.dataset(30), 30)

    def train(model: keras.Model) -> Losses:
        return [float(model.train_on_batch(x, y)) for x, y in batches]

    exact = train(text_generation.build())
    with policy("mixed_float16"):
        assert_no_further(exact, *stock_and_ours(text_generation.build, train))


@pytest.mark.slow
def test_accumulated_gradients_lose_what_keras_loses() -> None:
    batches = first_batches(six_steps.dataset(), 24)

    def train(model: keras.Model) -> Losses:
        return [float(model.train_on_batch(x, y)[0]) for x, y in batches]

    def build() -> keras.Model:
        return six_steps.build(gradient_accumulation_steps=4, learning_rate=0.01)

    assert_learns_alike(*stock_and_ours(build, train))


@pytest.mark.slow
def test_student_learns_from_an_accelerated_teacher_what_it_learns_with_keras() -> None:
    teacher, (x, _) = accelerated(six_steps.SIX_STEPS), six_steps.samples()
    with restored(teacher):
        soft = teacher.predict(x, verbose=0)
    assert_near(teacher.predict(x, verbose=0), soft)

    def train(model: keras.Model) -> Losses:
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="kl_divergence")
        parts = [slice(n, n + 32) for n in range(0, 640, 32)]
        return [float(np.ravel(model.train_on_batch(x[part], soft[part]))[0]) for part in parts]

    assert_learns_alike(*stock_and_ours(lambda: six_steps.build((16, 8)), train))


@pytest.mark.parametrize("options", [{}, {"implementation": 2}], ids=["default", "implementation=2"])
def test_layer_alone_computes_what_keras_computes(options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).normal(size=(200, 40, 5)).astype(np.float32)
    keras.utils.set_random_seed(1)
    layer = layers.LSTM(64, return_sequences=True, **options)
    expected = ops.convert_to_numpy(layer(x))
    assert_near(ops.convert_to_numpy(cellerate.accelerate(layer)(x)), expected)


@only_tensorflow
@pytest.mark.slow
def test_own_training_step_with_a_scaled_loss_loses_what_keras_loses() -> None:
    import tensorflow as tf

    batches = first_batches(long_records.dataset(long_records.records(40 * 16 + 12, 5)), 40)

    def train(model: keras.Model) -> Losses:
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(clipnorm=1.0), initial_scale=2.0**10
        )
        loss_of = keras.losses.MeanSquaredError()

        @tf.function
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return [float(step(tf.constant(x), tf.constant(y))) for x, y in batches]

    exact, own = stock_and_ours(long_records.build, train)
    assert_learns_alike(exact, own)
    with policy("mixed_float16"):
        assert_no_further(exact, *stock_and_ours(long_records.build, train))


@only_tensorflow
def test_own_loop_with_accumulated_gradients_loses_what_keras_loses() -> None:
    import tensorflow as tf

    def train(model: keras.Model) -> Losses:
        optimizer = keras.optimizers.Adam(0.01)
        loss_of = keras.losses.SparseCategoricalCrossentropy()
        losses, summed, every = [], None, 4
        for number, (x, y) in enumerate(six_steps.dataset().take(12), 1):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True)) / every
            gradients = tape.gradient(loss, model.trainable_variables)
            summed = gradients if summed is None else [a + b for a, b in zip(summed, gradients, strict=True)]
            if number % every == 0:
                optimizer.apply_gradients(zip(summed, model.trainable_variables, strict=True))
                summed = None
            losses.append(every * float(loss))
        return losses

    assert_learns_alike(*stock_and_ours(six_steps.build, train))


@only_tensorflow
@pytest.mark.slow
def test_training_under_the_profiler_with_xla_on_loses_what_keras_loses(tmp_path: Path) -> None:
    import tensorflow as tf

    data = text_generation.dataset(20)

    def train(model: keras.Model) -> Losses:
        return [model.fit(data, verbose=0, shuffle=False).history["loss"][0] for _ in range(2)]

    tf.config.optimizer.set_jit(True)
    try:
        with tf.profiler.experimental.Profile(str(tmp_path)):
            stock, ours = stock_and_ours(text_generation.build, train)
    finally:
        tf.config.optimizer.set_jit(False)
    np.testing.assert_allclose(ours, stock, rtol=SAME)
    assert stock[1] < stock[0]
    assert list(tmp_path.rglob("*.xplane.pb"))
