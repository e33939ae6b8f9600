import json
import math

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.compress.distill import SoftLabels, distill
from cellerate.compress.fitting import endless, fine_tune, loss_on
from cellerate.data.pipeline import KerasBatches
from cellerate.data.windows.text_windows import TextBatches
from cellerate.errors import ConfigError, ModelError, TrainingError
from cellerate.layers.accelerate import accelerate, is_accelerated
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.losses import QuantileLoss
from cellerate.models.text import build_text_model

pytestmark = pytest.mark.keras

V = 6
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
RANDOM = np.random.default_rng(5)
# A text that counts up, where one step in five goes anywhere.
_STEPS = np.where(RANDOM.uniform(size=4000) < 0.8, 1, RANDOM.integers(0, V, 4000))
TEXT = _STEPS.cumsum() % V


def windows(first, count, length=8):
    """Ids (count, length) and what follows each."""
    rows = TEXT[first : first + count * length].reshape(count, length)
    return rows, TEXT[first + 1 : first + 1 + count * length].reshape(count, length)


TRAINING, FEW, HELD_OUT = windows(0, 300), windows(2500, 16), windows(3000, 60)


def text_model(units=5, seed=1, **arguments):
    # On JAX, Keras's own loop is compiled anew at each call outside of a training.
    return accelerate(build_text_model(V, embedding=4, units=units, seed=seed, **arguments))


def dense_model(*, softmax=False, seed=3, dtype=None):
    """Logits (B, V), or their softmax, of the same weights."""
    rows = keras.Input((4,), dtype="float32")
    start = keras.initializers.RandomNormal(stddev=0.7, seed=seed)
    dense = layers.Dense(V, kernel_initializer=start, dtype=dtype)
    x = dense(rows)
    return keras.Model(rows, layers.Activation("softmax", dtype=dtype)(x) if softmax else x)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture(scope="module")
def teacher():
    found = text_model(units=24, seed=2)
    fine_tune(found, endless(TRAINING, 32, seed=0), loss=LOSS, steps=120, learning_rate=0.02)
    return found


def outputs(model, x):
    return np.asarray(keras.ops.convert_to_numpy(model(x, training=False)), np.float64)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def divergence(of, model, x, temperature=1.0, weight=1.0):
    """KL(teacher || student) at a temperature, times its square, by hand."""
    one, other = (log_softmax(outputs(each, x) / temperature) for each in (of, model))
    return float(np.mean(weight * (np.exp(one) * (one - other)).sum(axis=-1)) * temperature**2)


def same_weights(first, second):
    for mine, its in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, its)


def unjudged(teacher, student, data, **arguments):
    """Distils on all rows at once, where it does not matter how good it becomes."""
    common = {
        "batch_size": len(data[1]),
        "judge": lambda model: 0.0,
        "temperature": 2.0,
        "final_weight": None,
    }
    return distill(teacher, student, data, **(common | arguments))


@pytest.mark.backends
def test_distilled_student_is_nearer_to_its_teacher_than_a_twin_of_as_many_steps(teacher):
    student = text_model()
    small, record = distill(
        teacher,
        student,
        FEW,
        loss=LOSS,
        weight=0.9,
        temperature=2.0,
        steps=160,
        learning_rate=0.02,
        batch_size=8,
        compare=True,
        judge=lambda model: divergence(teacher, model, HELD_OUT[0]),
        metric="divergence",
    )
    assert record.metric == "divergence"
    assert record.quality_before == pytest.approx(0.0, abs=1e-6)
    assert record.quality_after == pytest.approx(divergence(teacher, small, HELD_OUT[0]))
    untrained = divergence(teacher, student, HELD_OUT[0])
    assert record.quality_after < record.details["twin_quality"] < untrained
    assert record.details["soft_loss"] < 0.5 * divergence(teacher, student, FEW[0], 2.0)


def test_record_tells_of_both_models_as_json(teacher):
    small, record = distill(
        teacher, text_model(), TRAINING, validation=HELD_OUT, loss=LOSS, steps=4, temperature=3.0, seed=8
    )
    assert not is_accelerated(small.get_layer("lstm_1"))
    assert record.method == "distill"
    assert record.quality_before == pytest.approx(loss_on(teacher, HELD_OUT, loss=LOSS, batch_size=64))
    assert record.quality_after == pytest.approx(loss_on(small, HELD_OUT, loss=LOSS, batch_size=64))
    assert (
        record.parameters_before == teacher.count_params() > record.parameters_after == small.count_params()
    )
    assert record.settings == {
        "temperature": 3.0,
        "weight": 1.0,
        "final_weight": 0.0,
        "steps": 4,
        "learning_rate": 4e-3,
        "batch_size": 64,
        "seed": 8,
    }
    assert record.details.keys() == {
        "steps", "outputs", "hard_loss", "soft_loss", "losses", "hard_losses"
    }  # fmt: skip
    assert len(record.details["losses"]) == len(record.details["hard_losses"]) == 4
    assert json.loads(json.dumps(record.to_json())) == record.to_json()
    assert record.seconds > 0
    assert not small.compiled


def test_distill_of_weight_0_is_plain_training(teacher):
    arguments = {"loss": LOSS, "steps": 6, "learning_rate": 0.01}
    small, record = unjudged(teacher, text_model(), TRAINING, weight=0, batch_size=64, **arguments)
    plain = text_model()
    fine_tune(plain, endless(TRAINING, 64, seed=0), **arguments)
    for mine, its in zip(small.get_weights(), plain.get_weights(), strict=True):
        # Another graph around the same arithmetic.
        np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-6)
    assert record.details["soft_loss"] is None
    assert record.details["hard_loss"] < math.log(2 * V)


def test_distill_of_weight_1_ignores_the_true_labels(teacher):
    x, y = FEW
    right, _ = unjudged(teacher, text_model(), (x, y), loss=LOSS, weight=1, steps=4)
    # Labels that are not classes at all.
    wrong, record = unjudged(teacher, text_model(), (x, y + 10 * V), loss=LOSS, weight=1, steps=4)
    same_weights(right, wrong)
    assert record.details["hard_loss"] is None
    assert record.details["hard_losses"] == []


def test_distill_adds_both_losses_by_their_shares(rng):
    x = rng.normal(size=(8, 4)).astype(np.float32)
    y = rng.integers(0, V, 8)
    one, other = dense_model(seed=3), dense_model(seed=4)
    _, both = unjudged(one, other, (x, y), loss=LOSS, weight=0.3, steps=1)
    assert both.details["soft_loss"] == pytest.approx(divergence(one, other, x, 2.0), rel=1e-4)
    rows = log_softmax(outputs(other, x))
    assert both.details["hard_loss"] == pytest.approx(-rows[np.arange(8), y].mean(), rel=1e-4)


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ({"weight": 1.0, "final_weight": 0.0}, [1.0, 0.75, 0.5, 0.25]),
        ({"weight": 0.2, "final_weight": 1.0}, [0.2, 0.4, 0.6, 0.8]),
        ({"weight": 0.5, "final_weight": None}, [0.5] * 4),
    ],
)
def test_share_of_the_soft_loss_goes_in_a_line_to_its_final_weight(weights, shares, rng):
    one, other = dense_model(seed=1), dense_model(seed=2)
    x = rng.normal(size=(8, 4)).astype(np.float32)
    y = rng.integers(0, V, 8)
    # So low a rate that the student stays as it is: the losses are those of one and the same model.
    _, record = unjudged(one, other, (x, y), loss=LOSS, steps=4, learning_rate=1e-9, **weights)
    soft, hard = divergence(one, other, x, 2.0), -log_softmax(outputs(other, x))[np.arange(8), y].mean()
    assert abs(soft - hard) > 0.1
    expected = [share * soft + (1 - share) * hard for share in shares]
    assert record.details["losses"] == pytest.approx(expected, rel=1e-4)
    assert record.details["hard_losses"] == pytest.approx([hard] * 4, rel=1e-4)
    assert record.details["soft_loss"] == pytest.approx(soft, rel=1e-4)
    assert record.details["hard_loss"] == pytest.approx(hard, rel=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_soft_labels_of_classes_are_the_softened_divergence_times_the_square_of_the_temperature(
    temperature, rng
):
    one, other = (3 * rng.normal(size=(2, 4, V)) for _ in range(2))
    weight = rng.uniform(0, 2, (2, 4))
    soft = [log_softmax(logits / temperature) for logits in (one, other)]
    each = (np.exp(soft[0]) * (soft[0] - soft[1])).sum(axis=-1) * temperature**2

    def found(outputs, *values, sample_weight=None):
        tensors = [keras.ops.convert_to_tensor(value, "float32") for value in values]
        labels = SoftLabels(outputs, temperature)
        return float(keras.ops.convert_to_numpy(labels.compute_loss(*tensors, sample_weight)))

    assert found("logits", one, other) == pytest.approx(each.mean(), rel=1e-4)
    assert found("logits", one, other, sample_weight=weight) == pytest.approx(
        (weight * each).mean(), rel=1e-4
    )
    probabilities = [np.exp(log_softmax(logits)) for logits in (one, other)]
    assert found("probabilities", *probabilities) == pytest.approx(each.mean(), rel=1e-3)
    # Keras's own, where no class is so unlikely that it is cut off.
    mild = [0.3 * logits for logits in (one, other)]
    keras_own = keras.distillation.LogitsDistillation(temperature, keras.losses.KLDivergence())
    tensors = [keras.ops.convert_to_tensor(value, "float32") for value in mild]
    own = float(keras.ops.convert_to_numpy(keras_own.compute_loss(*tensors)))
    assert found("logits", *mild) == pytest.approx(own, rel=1e-3)


def test_soft_labels_of_numbers_are_the_weighted_squared_differences(rng):
    for shape in ((5, 2), (5, 4, 2), (5, 4, 2, 3)):
        one, other = rng.normal(size=shape), rng.normal(size=shape)
        weight = rng.uniform(0, 2, shape[: min(2, len(shape) - 1)])
        tensors = [keras.ops.convert_to_tensor(value, "float32") for value in (one, other)]
        found = SoftLabels("values", 9.0).compute_loss(*tensors, weight)
        by_row = np.square(one - other).reshape(*weight.shape, -1).mean(axis=-1)
        expected = (weight * by_row).mean()
        assert float(keras.ops.convert_to_numpy(found)) == pytest.approx(expected, rel=1e-4)


def test_soft_loss_heeds_temperature_and_sample_weights(teacher):
    student, (x, y) = text_model(), FEW
    weight = np.tile([3.0, 0.0], (16, 4)).astype(np.float32)
    _, record = unjudged(teacher, student, (x, y, weight), loss=LOSS, weight=1, steps=1, temperature=3.0)
    expected = divergence(teacher, student, x, 3.0, weight)
    assert record.details["soft_loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.backends
def test_soft_loss_heeds_the_mask_of_the_student():
    def masked(seed):
        start = keras.initializers.RandomNormal(stddev=1.0, seed=seed)
        return keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                layers.Embedding(V, 3, mask_zero=True, embeddings_initializer=start),
                layers.Dense(V, kernel_initializer=start),
            ]
        )

    x, y = np.array([[1, 2, 3, 0], [4, 0, 0, 0]]), np.ones((2, 4), int)
    one, other = masked(1), masked(2)
    _, record = unjudged(one, other, (x, y), loss=LOSS, weight=1, steps=1)
    weight = (x > 0) * (x.size / np.count_nonzero(x))
    assert record.details["soft_loss"] == pytest.approx(divergence(one, other, x, 2.0, weight), rel=1e-4)


@pytest.mark.parametrize(("teacher_softmax", "student_softmax"), [(True, True), (True, False), (False, True)])
def test_models_that_end_in_a_softmax_have_the_soft_loss_of_their_logits(
    teacher_softmax, student_softmax, rng
):
    x = rng.normal(size=(8, 4)).astype(np.float32)
    one, other = dense_model(softmax=teacher_softmax), dense_model(softmax=student_softmax, seed=4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not student_softmax)
    y = rng.integers(0, V, 8)
    _, record = unjudged(one, other, (x, y), loss=loss, weight=1, steps=1, judge=None)
    assert record.details["outputs"] == ("probabilities" if student_softmax else "logits")
    expected = divergence(dense_model(), dense_model(seed=4), x, 2.0)
    assert record.details["soft_loss"] == pytest.approx(expected, rel=1e-4)
    # The teacher is judged by the student's loss, which must be told logits or probabilities as it expects.
    rows = log_softmax(outputs(dense_model(), x))
    assert record.quality_before == pytest.approx(-rows[np.arange(8), y].mean(), rel=1e-4)


def test_student_that_ends_in_a_softmax_learns_from_its_teacher(rng):
    x = rng.normal(size=(64, 4)).astype(np.float32)
    one, other = dense_model(softmax=True), dense_model(softmax=True, seed=4)
    loss = "sparse_categorical_crossentropy"
    data = (x, rng.integers(0, V, 64))
    small, _ = unjudged(one, other, data, loss=loss, weight=1, steps=150, learning_rate=0.05)
    before = np.abs(outputs(one, x) - outputs(other, x)).mean()
    assert np.abs(outputs(one, x) - outputs(small, x)).mean() < 0.2 * before


@pytest.mark.parametrize(
    ("from_logits", "expected"), [(None, "values"), (True, "logits"), (False, "probabilities")]
)
def test_outputs_under_a_loss_of_ones_own_are_what_from_logits_says(from_logits, expected, rng):
    x = rng.normal(size=(8, 4)).astype(np.float32)
    softmax = from_logits is False
    one, other = dense_model(softmax=softmax), dense_model(softmax=softmax, seed=4)

    def own(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

    data = (x, np.zeros((8, V), np.float32))
    _, record = unjudged(one, other, data, loss=own, weight=1, steps=1, from_logits=from_logits)
    assert record.details["outputs"] == expected
    by_hand = divergence(dense_model(), dense_model(seed=4), x, 2.0)
    if expected == "values":
        by_hand = np.square(outputs(one, x) - outputs(other, x)).mean()
    assert record.details["soft_loss"] == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("quantiles", [None, (0.1, 0.5, 0.9)], ids=["point", "quantiles"])
def test_forecast_student_learns_the_values_of_its_teacher(quantiles, rng):
    def forecaster(units, seed):
        found = build_forecast_model(
            6, 3, 4, 2, target_columns=[0, 2], units=units, quantiles=quantiles, residual=False, seed=seed
        )
        found.compile(loss="mse" if quantiles is None else QuantileLoss(quantiles))
        return accelerate(found)

    x = rng.normal(size=(32, 6, 3)).astype(np.float32)
    y = rng.normal(size=(32, 4, 2)).astype(np.float32)
    weight = rng.uniform(0, 2, (32, 4)).astype(np.float32)
    one, other = forecaster(8, 1), forecaster(4, 2)
    small, record = unjudged(one, other, (x, y, weight), weight=1, steps=60, learning_rate=0.02)
    assert record.details["outputs"] == "values"
    before = np.square(outputs(one, x) - outputs(other, x)).mean()
    assert np.square(outputs(one, x) - outputs(small, x)).mean() < 0.5 * before


@pytest.mark.backends
def test_autoencoder_with_a_dict_of_inputs_and_weights_learns_from_its_teacher(rng):
    source = rng.integers(1, V, (24, 5)).astype(np.int32)
    source[::2, 3:] = 0
    x = {"source": source, "target_in": np.roll(source, 1, axis=1)}
    weight = (source > 0).astype(np.float32)
    one, other = (
        accelerate(build_autoencoder(V, embedding=4, units=units, latent=3, seed=seed))
        for units, seed in ((6, 1), (3, 2))
    )
    data, arguments = (x, source, weight), {"loss": LOSS, "weight": 1, "learning_rate": 0.02}
    _, record = unjudged(one, other, data, steps=40, batch_size=12, **arguments)
    assert record.details["soft_loss"] < 0.9 * divergence(one, other, x, 2.0, weight)


@pytest.mark.parametrize("narrow", ["teacher", "student"])
def test_model_of_bfloat16_outputs_beside_one_of_float32_is_distilled_in_float32(narrow, rng):
    x = rng.normal(size=(8, 4)).astype(np.float32)
    types = {narrow: "mixed_bfloat16"}
    one, other = dense_model(dtype=types.get("teacher")), dense_model(seed=4, dtype=types.get("student"))
    assert {one.outputs[0].dtype, other.outputs[0].dtype} == {"bfloat16", "float32"}
    data = (x, rng.integers(0, V, 8))
    small, record = unjudged(one, other, data, loss=LOSS, weight=1, steps=1)
    # By hand from the same rounded outputs.
    assert record.details["soft_loss"] == pytest.approx(divergence(one, other, x, 2.0), rel=1e-4)
    assert small.outputs[0].dtype == other.outputs[0].dtype


def test_text_student_that_computes_in_bfloat16_is_distilled_the_same_twice_dropout_included(teacher):
    student = text_model(dtype_policy="mixed_bfloat16", dropout=0.5, seed=None)
    arguments = {"loss": LOSS, "steps": 30, "learning_rate": 0.02}
    found = []
    for _ in range(2):
        if keras.config.backend() == "torch":
            # Keras leaves dropout to torch there, which draws from one generator for all.
            keras.utils.set_random_seed(0)
        found.append(unjudged(teacher, student, FEW, **arguments)[0])
    first, second = found
    same_weights(first, second)
    assert divergence(teacher, first, FEW[0]) < divergence(teacher, student, FEW[0])
    assert first.get_layer("lstm_1").compute_dtype == "bfloat16"


def test_twin_sees_the_batches_that_the_student_saw(teacher):
    batches = KerasBatches(TextBatches(TEXT[:600], length=8, batch_size=8, seed=3))
    _, record = distill(teacher, text_model(), batches, loss=LOSS, weight=0, steps=12, compare=True)
    # Without soft labels the student is its own twin.
    assert record.details["twin_quality"] == pytest.approx(record.quality_after, rel=1e-5)
    assert batches.epoch == 0


@pytest.mark.parametrize("compare", [False, True])
def test_distill_tells_of_each_step_those_of_the_twin_too(teacher, compare):
    told = []
    unjudged(
        teacher, text_model(), FEW, loss=LOSS, steps=3, compare=compare, on_step=lambda *s: told.append(s[:2])
    )
    in_all = 6 if compare else 3
    assert told == [(done, in_all) for done in range(1, in_all + 1)]


def test_regularisers_of_the_student_count_beside_soft_labels_alone(rng):
    x = rng.normal(size=(8, 4)).astype(np.float32)
    rows = keras.Input((4,), dtype="float32")
    student = keras.Model(rows, layers.Dense(V, kernel_regularizer=keras.regularizers.L2(100.0))(rows))
    # Far enough for the largest weight that a layer may begin with.
    arguments = {"loss": LOSS, "weight": 1, "steps": 40, "learning_rate": 0.1}
    small, _ = unjudged(dense_model(), student, (x, np.zeros(8, int)), **arguments)
    # Its teacher's kernel is larger than that with which it began.
    assert np.abs(small.get_weights()[0]).mean() < 0.3 * np.abs(student.get_weights()[0]).mean()


def test_arguments_stay_as_they_were():
    large = build_text_model(V, embedding=4, units=8, seed=4)
    student = build_text_model(V, embedding=4, units=5, dropout=0.2)
    large.compile("sgd", LOSS)
    student.compile("adam", LOSS)
    student.get_layer("embedding").trainable = False
    optimizers = large.optimizer, student.optimizer
    before = [model.get_weights() for model in (large, student)]
    states = [
        [np.array(keras.ops.convert_to_numpy(v)) for v in model.variables] for model in (large, student)
    ]
    small, _ = distill(large, student, FEW, steps=2)
    for model, weights, variables in zip((large, student), before, states, strict=True):
        for mine, its in zip(model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(mine, its)
        for mine, its in zip(model.variables, variables, strict=True):
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(mine), its)
        assert model.compiled
        assert not is_accelerated(model.get_layer("lstm_1"))
    assert (large.optimizer, student.optimizer) == optimizers
    assert isinstance(small.optimizer, keras.optimizers.Adam) and small.optimizer is not student.optimizer
    assert large.trainable
    assert all(layer.trainable for layer in large.layers)
    # What was frozen stays frozen, in the copy as well.
    assert not small.get_layer("embedding").trainable
    np.testing.assert_array_equal(small.get_weights()[0], student.get_weights()[0])
    assert small.get_layer("lstm_1").trainable


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"weight": 1.01}, "weight"),
        ({"weight": -0.1}, "weight"),
        ({"final_weight": 2}, "final_weight"),
        ({"steps": 0}, "steps"),
        ({"learning_rate": 0}, "learning_rate"),
        ({"batch_size": 0.5}, "batch_size"),
        ({"loss": None}, "not compiled"),
        ({"loss": "no such loss"}, "no such loss"),
        ({"loss": ["mse", "mse"]}, "one loss"),
    ],
)
def test_distill_with_an_argument_out_of_range_raises_config_error(teacher, arguments, message):
    with pytest.raises(ConfigError, match=message):
        distill(teacher, text_model(), FEW, **({"loss": LOSS} | arguments))


class Subclassed(keras.Model):
    def call(self, inputs):
        return inputs


def two_outputs():
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(V, V)(ids)
    return keras.Model(ids, [x, x])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build_text_model(V + 1, embedding=4, units=5), "the same shape"),
        (dense_model, "same batches"),
        (Subclassed, "student is a Subclassed"),
        (two_outputs, "2 outputs"),
        (lambda: keras.Sequential([layers.Dense(2)]), "not built"),
        (lambda: 3, "student is a int"),
    ],
    ids=["vocabulary", "inputs", "subclassed", "outputs", "unbuilt", "no model"],
)
def test_student_that_does_not_fit_its_teacher_raises_model_error(teacher, make, message):
    with pytest.raises(ModelError, match=message):
        distill(teacher, make(), FEW, loss=LOSS)


def test_distill_whose_loss_is_no_number_raises_training_error():
    x = np.full((8, 4), np.nan, np.float32)
    with pytest.raises(TrainingError, match="NaN or infinity"):
        distill(
            dense_model(),
            dense_model(seed=4),
            (x, np.zeros(8, int)),
            loss=LOSS,
            steps=2,
            judge=lambda model: 0.0,
        )
