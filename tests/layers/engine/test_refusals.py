"""Models and batches that the engine leaves to Keras, and the reasons it gives."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import cellerate
from cellerate.errors import ConfigError, ModelError
from cellerate.keras_graph.keras_layers import ROWS
from cellerate.layers import accelerate as accelerating
from cellerate.layers.engine.batches import Misfit
from cellerate.layers.engine.convolutions import OF_IMAGES
from cellerate.layers.engine.parts import StepParts, parts_of
from cellerate.layers.engine.seam import reasons_of
from cellerate.layers.engine.step import EngineStep
from cellerate.layers.explain import explain
from support.keras_models.engine_models import CASES, data_of

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
X, Y = data_of("series", 8)


def model_of(*between: Any, lstm: Any = None, **compiled: Any) -> keras.Model:
    rows = [keras.Input((9, 3), batch_size=8), lstm or layers.LSTM(4), *between, layers.Dense(2)]
    model = keras.Sequential(rows)
    model.compile(**{"optimizer": "adam", "loss": "mse", **compiled})
    return model


def built_parts(model: keras.Model, batch: Any) -> StepParts:
    """The parts of a model's training step."""
    model._symbolic_build(data_batch=batch)
    parts = parts_of(model, rows_apart=False)
    assert isinstance(parts, StepParts)
    return parts


def scored(attention: keras.Layer) -> keras.Model:
    inputs = keras.Input((9, 3))
    steps = layers.LSTM(4, return_sequences=True)(inputs)
    model = keras.Model(inputs, layers.Dense(2)(layers.GlobalMaxPooling1D()(attention([steps, steps]))))
    model.compile("adam", "mse")
    return model


def of_steps(*between: keras.Layer) -> keras.Model:
    return model_of(*between, layers.LSTM(4), lstm=layers.LSTM(4, return_sequences=True))


class Halved(keras.constraints.Constraint):
    def __call__(self, w: Any) -> Any:
        return w * 0.5


def own_loss(targets: Any, outputs: Any) -> Any:
    return keras.ops.mean(keras.ops.square(targets - outputs), axis=-1)


class OwnStep(keras.Sequential):
    def train_step(self, *args: Any, **keywords: Any) -> Any:
        return super().train_step(*args, **keywords)


class Called(keras.Sequential):
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return super().__call__(*args, **keywords)


class Twice(keras.losses.MeanSquaredError):
    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return super().__call__(*args, **keywords) * 2


def own_call() -> keras.Model:
    model = Called([keras.Input((9, 3)), layers.LSTM(4), layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def replaced_call() -> keras.Model:
    model = model_of(layers.Dense(3, name="doubled"))
    call = model.layers[1].call
    model.layers[1].call = lambda *args, **keywords: call(*args, **keywords) * 2
    return model


def own_step() -> keras.Model:
    model = OwnStep([keras.Input((9, 3)), layers.LSTM(4), layers.Dense(2)])
    model.compile("adam", "mse")
    return model


def own_apply() -> keras.Model:
    model = model_of()
    apply = model.optimizer.apply
    model.optimizer.apply = lambda *given, **named: apply(*given, **named)
    return model


def overwritten() -> keras.Model:
    model = model_of()
    model.layers[-1].kernel.overwrite_with_gradient = True
    return model


REFUSED: dict[str, tuple[Callable[[], keras.Model], str]] = {
    "noise": (lambda: model_of(layers.AlphaDropout(0.1, noise_shape=(8, 1))), "has the noise_shape (8, 1)"),
    "drops all inputs": (lambda: model_of(lstm=layers.LSTM(4, dropout=1.0)), "drops everything"),
    "drops all": (lambda: scored(layers.Attention(dropout=1.0)), "drops all its weights"),
    "batch normalization": (
        lambda: model_of(layers.BatchNormalization(renorm=True)),
        "the statistics of earlier batches",
    ),
    "statistics of each step": (
        lambda: of_steps(layers.TimeDistributed(layers.BatchNormalization())),
        "normalises each step separately",
    ),
    "features of each step": (
        lambda: of_steps(
            layers.Reshape((3, 3, 4)),
            layers.TimeDistributed(layers.SpatialDropout1D(0.2)),
            layers.Reshape((9, 4)),
        ),
        "drops other features in each step",
    ),
    "image": (
        lambda: of_steps(layers.Reshape((3, 3, 4)), layers.Conv2D(4, 1), layers.Reshape((9, 4))),
        "works on images",
    ),
    "images of a video": (
        lambda: of_steps(
            layers.Reshape((9, 2, 2, 1)),
            layers.TimeDistributed(layers.SpatialDropout2D(0.5)),
            layers.TimeDistributed(layers.Flatten()),
        ),
        "works on images",
    ),
    "lambda": (lambda: model_of(layers.Lambda(lambda x: x)), "Lambda"),
    "gru": (lambda: model_of(layers.GRU(4), lstm=layers.LSTM(4, return_sequences=True)), "no gru"),
    "loss": (lambda: model_of(loss=own_loss, metrics=["mae"]), "no loss 'own_loss'"),
    "several losses": (lambda: model_of(loss=["mse", "mae"]), "several losses for its only output"),
    "moving weight": (
        lambda: model_of(loss_weights=[keras.Variable(2.0, trainable=False)]),
        "whose value may change",
    ),
    "moving loss": (
        lambda: model_of(loss=keras.losses.Huber(delta=keras.Variable(0.5, trainable=False))),
        "the loss 'huber_loss' with delta=",
    ),
    "nearest loss": (
        lambda: model_of(loss=keras.losses.Dice(name="mean_square_error")),
        "such as 'mean_squared_error'",
    ),
    "optimizer": (lambda: model_of(optimizer=keras.optimizers.Lamb()), "no optimizer Lamb"),
    "changed optimizer": (own_apply, "replaces its method apply"),
    "regularizer": (
        lambda: model_of(layers.Dense(3, kernel_regularizer="orthogonal_regularizer")),
        "the regularizer OrthogonalRegularizer",
    ),
    "activity": (lambda: model_of(layers.Dense(3, activity_regularizer="l2")), "losses of its own"),
    "constraint": (lambda: model_of(layers.Dense(3, kernel_constraint=Halved())), "the constraint Halved"),
    "stateful": (lambda: model_of(lstm=layers.LSTM(4, stateful=True)), "stateful"),
    "precision": (lambda: model_of(layers.Dense(3, dtype="mixed_float16")), "computes in float16"),
    "overwritten": (overwritten, "takes its gradient as its value"),
    "own call": (own_call, "has a call of its own"),
    "replaced call": (replaced_call, "doubled has a call of its own"),
    "own loss class": (lambda: model_of(loss=Twice()), "in its class Twice"),
    "own step": (own_step, "train_step of its own"),
    "eagerly": (lambda: model_of(run_eagerly=True), "runs eagerly"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_model_that_the_engine_does_not_support_trains_as_in_keras(name: str) -> None:
    make, reason = REFUSED[name]
    stateful = {"batch_size": 8}
    model = cellerate.accelerate(make())
    before = explain(model).training_step
    model.fit(X, Y, verbose=0, **stateful)
    told = explain(model).training_step
    assert told is not None and told.startswith("Keras's own")
    assert reason in told, told
    assert before == told
    required = cellerate.accelerate(make(), engine="require")
    with pytest.raises(ModelError, match="cannot train on the engine") as error:
        required.fit(X, Y, verbose=0, **stateful)
    assert reason in str(error.value)


def test_no_layer_on_images_trains_on_the_engine() -> None:
    known = {kind for kind, row in ROWS.items() if row.program is not None and kind.__name__.endswith("2D")}
    assert known == set(OF_IMAGES)


# A reason that is known before the first step, and one that is found in it.
@pytest.mark.parametrize("name", ["own step", "gru"])
def test_required_engine_refuses_every_fit(name: str) -> None:
    make, reason = REFUSED[name]
    model = cellerate.accelerate(make(), engine="require")
    for _ in range(2):
        with pytest.raises(ModelError, match=reason):
            model.fit(X, Y, verbose=0)


def test_required_engine_refuses_a_model_without_kernels() -> None:
    model = cellerate.accelerate(model_of(lstm=layers.GRU(4)), engine="require")
    with pytest.raises(ModelError, match="no gru"):
        model.fit(X, Y, verbose=0)


def test_required_engine_trains_a_model_whose_layers_stay_with_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a processor without vectors, where JAX and TensorFlow run an LSTM faster than the kernels.
    monkeypatch.setattr(accelerating, "_accelerate_layer", lambda *_: None)
    model = cellerate.accelerate(model_of(), engine="require")
    model.fit(X, Y, verbose=0)
    assert not any(map(accelerating.is_accelerated, model.layers))
    assert reasons_of(model) == ()


@pytest.mark.parametrize(
    ("compiled", "reason"),
    [
        (
            {"loss": "mean_square_error"},
            "Keras has no loss 'mean_square_error': expected one of keras.losses",
        ),
        ({"metrics": ["acc", "rsme"]}, "Keras has no metric 'rsme'"),
    ],
    ids=["loss", "metric"],
)
def test_name_that_keras_refuses_is_reported_before_the_first_step(
    compiled: dict[str, Any], reason: str
) -> None:
    model = cellerate.accelerate(model_of(**compiled))
    told = explain(model).training_step
    assert told is not None and told.splitlines()[1:] == [told.splitlines()[1]]
    assert reason in told
    with pytest.raises(ValueError, match="Could not interpret"):
        model.fit(X, Y, verbose=0)


def test_explain_says_that_steps_are_native() -> None:
    model = model_of()
    assert explain(model).training_step is None
    assert explain(cellerate.accelerate(model)).training_step == "whole steps in one native call"
    assert explain(cellerate.accelerate(model, engine="off")).training_step is None
    assert explain(cellerate.restore(model)).training_step is None


def test_unknown_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match="engine"):
        cellerate.accelerate(model_of(), engine="sometimes")


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="JAX says it later, and has lost the weights by then"
)
def test_id_beyond_the_table_is_refused_and_changes_nothing(misfits: None) -> None:
    row = CASES["characters"]
    keras.utils.set_random_seed(1)
    model = row.model()
    model.compile("adam", row.loss)
    cellerate.accelerate(model, engine="require")
    x, y = data_of(row.data, 8)
    model.train_on_batch(x, y)
    before = model.get_weights()
    wrong = x.copy()
    wrong[2, 3] = 99
    with pytest.raises(Exception, match=r"99|out of range"):
        model.train_on_batch(wrong, y)
    for one, weights in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(weights, one)
    assert np.isfinite(model.train_on_batch(x, y))


def test_batch_with_targets_of_another_shape_trains_in_keras(misfits: None) -> None:
    """Keras broadcasts such targets; the engine leaves the batch to Keras."""
    results = []
    for engine in (None, "require"):
        keras.utils.set_random_seed(1)
        model = model_of()
        if engine is not None:
            cellerate.accelerate(model, engine=engine)
        losses = [model.train_on_batch(X, Y), model.train_on_batch(X, Y[:1]), model.train_on_batch(X, Y)]
        results.append(losses)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


def test_two_batches_that_need_keras_move_all_training_to_keras(misfits: None) -> None:
    model = cellerate.accelerate(model_of(), engine="require")
    for targets in (Y, Y[:1], Y, Y[:1], Y[:1], Y):
        assert np.isfinite(model.train_on_batch(X, targets))
    told = explain(model).training_step
    assert told is not None and "the targets have the shape (1, 2)" in told


def test_ids_beyond_32_bits_are_refused_instead_of_truncated() -> None:
    row = CASES["characters"]
    model = row.model()
    model.compile("sgd", row.loss)
    cellerate.accelerate(model, engine="require")
    x, y = data_of(row.data, 8)
    step = EngineStep(model, built_parts(model, (x, y)))
    with pytest.raises(Misfit, match="larger than any table"):
        step.run((x.astype("int64") + 2**32, y), training=True)


def test_refused_batch_changes_no_state() -> None:
    """The random generators and the momentum product of Nadam stay unchanged too."""
    model = keras.Sequential(
        [keras.Input((9, 3)), layers.LSTM(4, dropout=0.2), layers.Dropout(0.3), layers.Dense(4)]
    )
    model.compile("nadam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    cellerate.accelerate(model, engine="require")
    right = np.zeros(8, np.int32)
    step = EngineStep(model, built_parts(model, (X, right)))
    assert step.lender.take()
    step.run((X, right), training=True)
    before = {key: array.copy() for key, array in step.lender._arrays.items()}
    for targets, reason in ((right + 4, "not one of the outputs"), (right + 0.5, "not whole numbers")):
        with pytest.raises(Misfit, match=reason):
            step.run((X, targets), training=True)
    for key, array in step.lender._arrays.items():
        np.testing.assert_array_equal(array, before[key])
    step.run((X, right), training=True)
    assert any((array != before[key]).any() for key, array in step.lender._arrays.items())
