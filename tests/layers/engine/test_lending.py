"""Keras's variables are up to date whenever code reads them, even in the middle of an epoch."""

import copy
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import cellerate
from cellerate.layers import fused
from cellerate.layers.engine.lending import Lender
from support.keras_models.engine_models import CASES, copy_of, data_of, numbers

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
ROW = CASES["bidirectional"]
X, Y = data_of(ROW.data, 40)
TENSORFLOW = keras.backend.backend() == "tensorflow"
JAX = keras.backend.backend() == "jax"
ATOL = 2e-5
"""One five-hundredth of the change that one Adam step at this rate makes to a weight."""


def assert_close(weights: list[Any], ours: list[Any]) -> None:
    """Compare the weights of a stock model with ours."""
    for one, our in zip(weights, ours, strict=True):
        np.testing.assert_allclose(our, one, atol=ATOL)


class At(keras.callbacks.Callback):
    """Call `do` after the batches with these numbers."""

    def __init__(self, batches: tuple[int, ...], do: Callable[[keras.Model], Any]) -> None:
        super().__init__()
        self.batches, self.do, self.seen = batches, do, []  # type: ignore[var-annotated]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch not in self.batches:
            return
        if JAX:
            # Every Keras callback must do this on JAX: during an epoch the variables do not hold the values.
            self.model.jax_state_sync()
        self.seen.append(self.do(self.model))


def ready(
    model: keras.Model, engine: str | None, optimizer: Any = None, loss: Any = ROW.loss, **compiled: Any
) -> keras.Model:
    """A compiled copy of a model, with an engine or of stock Keras."""
    made = copy_of(model)
    made.compile(optimizer or keras.optimizers.Adam(0.01), loss, **compiled)
    if engine is not None:
        cellerate.accelerate(made, engine=engine)
    return made


def quick(engine: str | None) -> dict[str, bool]:
    """Arguments of `compile` for a few steps of stock Keras, which take TensorFlow longer with a graph."""
    return {"run_eagerly": engine is None and TENSORFLOW}


def fitted(made: keras.Model, *callbacks: Any) -> tuple[list[Any], Any]:
    """The weights of a model after two epochs of five batches, and its history."""
    history = made.fit(X, Y, 8, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    return made.get_weights(), history.history


def on_engine(model: keras.Model) -> keras.Model:
    """A copy that trains on the engine."""
    return ready(model, "require", metrics=ROW.metrics())


@pytest.fixture(scope="module")
def model() -> keras.Model:
    keras.utils.set_random_seed(3)
    return ROW.model()


@pytest.fixture(scope="module")
def restarted(model: keras.Model) -> Callable[[], keras.Model]:
    """Makes stock Keras as if it had never trained; its training step, which takes seconds to compile, stays."""
    made = ready(model, None, metrics=ROW.metrics())
    made.optimizer.build(made.trainable_variables)
    slots = numbers(made.optimizer.variables)

    def restart() -> keras.Model:
        made.set_weights(model.get_weights())
        for variable, value in zip(made.optimizer.variables, slots, strict=True):
            variable.assign(value)
        return made

    return restart


@pytest.fixture
def stock(restarted: Callable[[], keras.Model]) -> keras.Model:
    """Stock Keras that has not trained."""
    return restarted()


def looked_at(made: keras.Model, do: Callable[[keras.Model], Any]) -> tuple[Any, Any, Any]:
    """The weights, the history and what `do` gave in the middle."""
    at = At((1, 3), do)
    return (*fitted(made, at), at.seen)


def assert_alike(found: list[tuple[Any, Any, Any]]) -> None:
    (weights, history, seen), (our_weights, our_history, our_seen) = found
    assert_close(weights, our_weights)
    for name, values in history.items():
        np.testing.assert_allclose(our_history[name], values, rtol=2e-5)
    assert len(our_seen) == len(seen) == 4
    for one, our in zip(seen, our_seen, strict=True):
        for first, second in zip(one, our, strict=True):
            np.testing.assert_allclose(second, first, rtol=2e-5, atol=ATOL)


def part_of(model: keras.Model) -> keras.Model:
    """A model that shares layers with another one, always the same for the same model."""
    if model not in _parts:
        _parts[model] = keras.Model(model.inputs, model.layers[0].output)
    return _parts[model]


_parts: weakref.WeakKeyDictionary[keras.Model, keras.Model] = weakref.WeakKeyDictionary()
LOOKS: dict[str, Callable[[keras.Model], list[Any]]] = {
    "weights": lambda model: model.get_weights(),
    "slots": lambda model: numbers(model.optimizer.variables),
    "metrics": lambda model: [float(metric.result()) for metric in model.metrics[:1]],
    "predict": lambda model: [model.predict(X[:4], verbose=0)],
    "call": lambda model: [keras.ops.convert_to_numpy(model(X[:4]))],
    "predict of another model": lambda model: [part_of(model).predict(X[:4], verbose=0)],
    # Tracing a function writes the values back to the variables.
    "compiled": lambda model: [
        keras.ops.convert_to_numpy(fused.bridge().compiled(lambda x: model(x))(X[:4]))
    ],
    "kernel": lambda model: [
        np.asarray(keras.ops.convert_to_numpy(model.layers[0].forward_layer.cell.kernel))
    ],
    "iterations": lambda model: [int(model.optimizer.iterations)],
}


@pytest.fixture(scope="module")
def all_looks(restarted: Callable[[], keras.Model]) -> tuple[Any, Any, list[dict[str, list[Any]]]]:
    """Stock Keras, read in every way in one training: a reading there does not affect a later one."""
    return looked_at(restarted(), lambda one: {name: look(one) for name, look in LOOKS.items()})


@pytest.mark.parametrize("look", LOOKS)
def test_callback_sees_the_same_values_as_in_stock_keras(
    model: keras.Model, look: str, all_looks: Any
) -> None:
    weights, history, seen = all_looks
    ours = looked_at(on_engine(model), LOOKS[look])
    assert_alike([(weights, history, [one[look] for one in seen]), ours])


def halve_rate(model: keras.Model) -> list[Any]:
    model.optimizer.learning_rate = float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)) / 2
    return []


def halve_weights(model: keras.Model) -> list[Any]:
    model.set_weights([weights / 2 for weights in model.get_weights()])
    return []


def restart_optimizer(model: keras.Model) -> list[Any]:
    for variable in model.optimizer.variables[2:]:
        variable.assign(np.zeros(variable.shape))
    return []


@pytest.mark.parametrize("change", [halve_rate, halve_weights, restart_optimizer])
def test_next_step_uses_the_changes_of_a_callback(
    model: keras.Model, stock: keras.Model, change: Any
) -> None:
    assert_alike([looked_at(stock, change), looked_at(on_engine(model), change)])


def test_model_saved_within_an_epoch_resumes_from_that_step(model: keras.Model, tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    weights, _ = fitted(on_engine(model), At((2,), lambda one: one.save(path)))
    loaded = keras.saving.load_model(path)
    assert int(loaded.optimizer.iterations) == 8  # of the second epoch
    cellerate.accelerate(loaded, engine="require")
    loaded.fit(X[24:], Y[24:], 8, shuffle=False, verbose=0)
    for one, our in zip(weights, loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(our, one)


def test_model_copied_within_an_epoch_is_independent(model: keras.Model) -> None:
    copies: list[Any] = []

    def take(one: keras.Model) -> None:
        copies.append((copy.deepcopy(one.layers[-1].kernel), one.layers[-1].kernel.numpy().copy()))

    fitted(on_engine(model), At((2,), take))
    for kernel, values in copies:
        np.testing.assert_array_equal(kernel.numpy(), values)


def test_ctrl_c_leaves_the_weights_of_the_last_step(model: keras.Model, stock: keras.Model) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise KeyboardInterrupt

    weights = []
    for made in (stock, on_engine(model)):
        with pytest.raises(KeyboardInterrupt):
            made.fit(X, Y, 8, shuffle=False, verbose=0, callbacks=[Stop()])
        weights.append(made.get_weights())
    assert_close(*weights)


def assert_frozen_alike(model: keras.Model, *optimizers: Callable[[], keras.optimizers.Optimizer]) -> None:
    """Train, freeze a layer, recompile if there is a second optimizer, and train again, in Keras and on the engine."""
    results = []
    for engine in (None, "require"):
        made = ready(model, engine, optimizers[0](), **quick(engine))
        made.fit(X, Y, 8, shuffle=False, verbose=0)
        made.layers[0].trainable = False
        for optimizer in optimizers[1:]:
            made.compile(optimizer(), ROW.loss, **quick(engine))
        made.fit(X, Y, 8, shuffle=False, verbose=0)
        results.append(made.get_weights())
    assert_close(*results)


def test_second_optimizer_and_newly_frozen_layer_train_as_in_keras(model: keras.Model) -> None:
    assert_frozen_alike(model, lambda: keras.optimizers.SGD(0.1), lambda: keras.optimizers.Adam(0.01))


def test_train_on_batch_evaluate_and_restore_equal_keras(model: keras.Model) -> None:
    results = []
    for engine in (None, "require"):
        made = ready(model, engine, metrics=ROW.metrics(), **quick(engine))
        found = [*made.train_on_batch(X[:8], Y[:8]), *made.train_on_batch(X[8:20], Y[8:20])]
        found += [*made.evaluate(X, Y, verbose=0), *made.test_on_batch(X[:8], Y[:8])]
        if engine is not None:
            cellerate.restore(made)
        found += [*made.train_on_batch(X[:8], Y[:8])]
        results.append((found, made.get_weights()))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=2e-5)
    assert_close(results[0][1], results[1][1])


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras on torch takes one step at a time")
def test_several_steps_per_execution_equal_keras(model: keras.Model) -> None:
    results = []
    for engine in (None, "require"):
        made = ready(model, engine, steps_per_execution=3)
        history = made.fit(X, Y, 8, epochs=2, shuffle=False, verbose=0).history["loss"]
        results.append((history, made.get_weights()))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=2e-5)
    assert_close(results[0][1], results[1][1])


def test_generators_and_keras_datasets_train_like_keras(model: keras.Model, stock: keras.Model) -> None:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, place: int) -> Any:
            rows = slice(8 * place, 8 * place + 8)
            return X[rows], Y[rows]

    results = []
    generated = ((X[n : n + 8], Y[n : n + 8]) for n in range(0, 40, 8))
    for made, feed in ((stock, Batches()), (on_engine(model), Batches()), (on_engine(model), generated)):
        made.fit(feed, shuffle=False, verbose=0, steps_per_epoch=5)
        results.append(made.get_weights())
    for ours in results[1:]:
        assert_close(results[0], ours)


@pytest.mark.parametrize("regularizer", [None, "l2"], ids=["engine", "left to Keras"])
def test_each_of_several_losses_counts_batches_as_keras_does(regularizer: str | None) -> None:
    inputs = keras.Input(X.shape[1:])
    hidden = keras.layers.LSTM(4, activity_regularizer=regularizer)(inputs)
    outputs = [keras.layers.Dense(1, name=name)(hidden) for name in ("first", "second")]
    source = keras.Model(inputs, outputs)
    targets = [X[:20].sum(axis=(1, 2))[:, None], X[:20, 0, :1] * 4]
    found = []
    for engine in (None, "auto"):
        made = ready(source, engine, "sgd", "mse")
        # The last batch is smaller.
        found.append(made.fit(X[:20], targets, 16, epochs=2, shuffle=False, verbose=0).history)
    for name in ("loss", "first_loss", "second_loss"):
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=2e-5)


@pytest.mark.skipif(JAX, reason="there the variables are empty during an epoch")
def test_thread_that_reads_the_variables_loses_no_training_step(model: keras.Model) -> None:
    found = []
    for readers in (0, 1):
        made = copy_of(model)
        made.compile(keras.optimizers.Adam(0.01), ROW.loss)
        cellerate.accelerate(made, engine="require")
        done = threading.Event()

        def read(made: keras.Model = made, done: threading.Event = done) -> None:
            while not done.is_set():
                numbers(made.variables)

        threads = [threading.Thread(target=read) for _ in range(readers)]
        for thread in threads:
            thread.start()
        history = made.fit(X, Y, 4, epochs=8, shuffle=False, verbose=0).history["loss"]
        done.set()
        for thread in threads:
            thread.join()
        found.append([*history, int(made.optimizer.iterations)])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


def test_value_written_while_another_thread_gives_back_stays() -> None:
    first, second = keras.Variable(np.zeros(2, np.float32)), keras.Variable(np.zeros(2, np.float32))
    lender = Lender([first, second])
    lender.take()
    assign = first.assign
    begun, written = threading.Event(), threading.Event()

    def slow(value: Any) -> None:
        begun.set()
        written.wait(0.2)
        assign(value)

    object.__setattr__(first, "assign", slow)
    thread = threading.Thread(target=lender.give_back)
    thread.start()
    assert begun.wait(10)
    second.assign(np.ones(2, np.float32))
    written.set()
    thread.join()
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(second), 1)


def test_model_evaluated_first_trains_the_weights_made_trainable_later(model: keras.Model) -> None:
    """Keras builds the optimizer in the first training step on TensorFlow, and before it on other backends."""
    results = []
    for engine in (None, "require"):
        made = ready(model, engine, **quick(engine))
        made.layers[0].trainable = TENSORFLOW is False
        made.evaluate(X[:8], Y[:8], verbose=0)
        made.layers[0].trainable = True
        made.fit(X[:16], Y[:16], 8, shuffle=False, verbose=0)
        results.append(made.get_weights())
    assert_close(*results)


def test_model_built_by_its_first_batch_takes_batches_of_any_size() -> None:
    rows: list[Any] = [
        keras.layers.LSTM(6, return_sequences=True),
        keras.layers.LSTM(4),
        keras.layers.Dense(2),
    ]
    model = keras.Sequential(rows)
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    cellerate.accelerate(model, engine="require")
    losses = model.fit(X[:39], Y[:39], 16, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert model.predict(X[:5], verbose=0).shape == (5, 2)
    assert np.isfinite(model.evaluate(X[:39], Y[:39], 13, verbose=0)).all()


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="elsewhere Keras trains what it has compiled")
def test_optimizer_slots_stay_with_their_weights_when_a_layer_freezes(model: keras.Model) -> None:
    assert_frozen_alike(model, lambda: keras.optimizers.Adam(0.01))
