"""Pruning: the least important units go, and the training after it repairs the model."""

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.compress import prune as pruning
from cellerate.compress.prune import magnitude, prune, saliency
from cellerate.compress.sparsify import sparsify
from cellerate.errors import ConfigError, DataError, ModelError, TrainingError
from cellerate.keras_graph.ties import LayerUnits, units_of
from cellerate.layers.accelerate import accelerate, is_accelerated
from cellerate.models.text import build_text_model
from support.keras_models.prunable import (
    STEPS,
    WIDTH,
    dense,
    lstm,
    relative_error,
    rows,
    sequence,
    with_random_weights,
)

pytestmark = pytest.mark.keras


def two_layers(units: int = 8, **arguments: Any) -> keras.Model:
    x = keras.Input((None, WIDTH))
    y = lstm(units, return_sequences=True, name="first", **arguments)(x)
    y = dense(2, name="head")(lstm(units, name="second", **arguments)(y))
    return with_random_weights(keras.Model(x, y, name="two"), scale=0.5)


@pytest.mark.backends
def test_saliency_equals_the_slope_of_the_loss_along_the_weights_that_read_a_unit():
    model = two_layers(4, dropout=0.3, kernel_regularizer="l2", kernel_constraint="max_norm")
    model.layers[1].trainable = False
    units = units_of(model)
    x, y = rows(8)

    found = saliency(model, units, iter([(x, y)] * 20), "mse")

    start = model.get_weights()
    # Its kernels compile nothing.
    accelerate(model)
    step = 1e-2
    for feature in np.concatenate(list(units.layers.values())):
        losses = []
        for scale in (1 + step, 1 - step):
            values = {id(w): v.copy() for w, v in zip(model.weights, start, strict=True)}
            for axis in units.axes:
                if axis.reads:
                    np.moveaxis(values[id(axis.variable)], axis.axis, 0)[axis.features == feature] *= scale
            model.set_weights([values[id(w)] for w in model.weights])
            output = keras.ops.convert_to_numpy(model(x)).astype("float64")
            losses.append(np.mean((output - y) ** 2))
        slope = (losses[0] - losses[1]) / (2 * step)
        # The loss, about 1, has an error of 1e-7, by a step of 1e-2; the curve bends by step².
        assert np.sqrt(found[feature]) == pytest.approx(abs(slope), rel=1e-3, abs=2e-5)


@pytest.mark.parametrize("importance", ["saliency", "magnitude"])
def test_units_that_nothing_reads_go_first(importance):
    model = two_layers()
    units = units_of(model)
    dead = np.array([1, 2, 5, 7])
    first, second, head = (model.get_layer(name) for name in ("first", "second", "head"))
    readers = [first.cell.recurrent_kernel, second.cell.kernel, second.cell.recurrent_kernel, head.kernel]
    for kernel in readers:
        values = keras.ops.convert_to_numpy(kernel).copy()
        values[dead] = 0
        kernel.assign(values)
    if importance == "magnitude":
        for layer in (first, second):
            for weight in layer.weights:
                values = keras.ops.convert_to_numpy(weight).copy().reshape(-1, 4, 8)
                values[..., dead] = 0
                weight.assign(values.reshape(weight.shape))
    expected = keras.ops.convert_to_numpy(model(rows()[0]))

    smaller, record = prune(
        model, rows(), loss="mse", rounds=2, steps=0, importance=importance, multiple_of=2
    )

    assert record.details["layers"] == {name: {"units": 8, "kept": 4} for name in ("first", "second")}
    assert relative_error(keras.ops.convert_to_numpy(smaller(rows()[0])), expected) < 1e-6
    assert record.quality_after == pytest.approx(record.quality_before, rel=1e-5)
    assert set(units.layers) == {"first", "second"}


def test_magnitude_is_the_norm_of_all_weights_of_a_unit():
    model = two_layers(4)
    units = units_of(model)
    first, second = model.get_layer("first").cell, model.get_layer("second").cell
    columns = sum(
        np.sum(np.asarray(v) ** 2, axis=0) for v in (first.get_weights()[0], first.get_weights()[1])
    )
    columns = (columns + first.get_weights()[2] ** 2).reshape(4, 4).sum(0)
    into = np.sum(first.get_weights()[1] ** 2, 1) + np.sum(second.get_weights()[0] ** 2, 1)
    assert magnitude(model, units)[units.layers["first"]] == pytest.approx(np.sqrt(columns + into), rel=1e-5)


@pytest.mark.backends
def test_pruned_model_is_smaller_as_recorded_and_better_for_its_training():
    x, y = rows(128)
    results = [
        prune(
            two_layers(16),
            (x, y),
            loss="mse",
            steps=steps,
            rounds=1,
            learning_rate=1e-2,
            importance="magnitude",
        )
        for steps in (0, 60)
    ]
    (_, untrained), (model, record) = results
    assert record.quality_after < untrained.quality_after
    assert record.quality_before == untrained.quality_before
    assert [layer.units for layer in model.layers[1:3]] == [8, 8]
    assert record.details == {
        "layers": {name: {"units": 16, "kept": 8} for name in ("first", "second")},
        "kept_whole": {},
        "judged_on": "data",
        "losses": record.details["losses"],
    }
    assert len(record.details["losses"]) == 60
    assert record.parameters_after == model.count_params() < record.parameters_before
    assert record.method == "prune"
    assert record.settings["steps"] == 60
    assert record.to_json()["metric"] == "loss"
    assert not model.compiled
    assert not any(is_accelerated(layer) for layer in model.layers)


@pytest.mark.parametrize("accelerated", [True, False])
def test_model_that_is_pruned_is_left_as_it_was(accelerated):
    model = accelerate(two_layers(16), "auto" if accelerated else "keras")
    model.compile(optimizer="adam", loss="mse")
    model.get_layer("first").trainable = False
    weights, optimizer = model.get_weights(), model.optimizer

    smaller, record = prune(model, rows(), steps=2, rounds=1, validation=rows(seed=1))

    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert model.optimizer is optimizer
    assert is_accelerated(model.get_layer("first")) == accelerated
    assert [layer.trainable for layer in model.layers] == [layer.trainable for layer in smaller.layers]
    assert not smaller.get_layer("first").trainable
    assert record.details["judged_on"] == "validation"


def test_pruned_model_saves_and_loads(tmp_path):
    model = build_text_model(11, embedding=5, units=16, layer_norm=True, dropout=0.1, tie_weights=True)
    ids = np.random.default_rng(0).integers(0, 11, (16, 6)).astype("int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    smaller, record = prune(model, (ids, ids), loss=loss, steps=0, rounds=1, judge=lambda model: 0.0)
    smaller.save(tmp_path / "smaller.keras")
    loaded = keras.saving.load_model(tmp_path / "smaller.keras")
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(m(ids)) for m in (smaller, loaded)))
    assert record.details["layers"] == {"lstm_1": {"units": 16, "kept": 8}}


def test_rounds_remove_most_units_early_and_end_at_the_share(monkeypatch):
    seen = []

    def watch(model: keras.Model, *args: Any, **arguments: Any) -> None:
        seen.append((model.get_layer("first").units, arguments["steps"]))

    monkeypatch.setattr(pruning, "fine_tune", watch)
    prune(
        two_layers(32),
        rows(),
        loss="mse",
        steps=11,
        rounds=4,
        importance="magnitude",
        judge=lambda model: 1.0,
    )
    # 32 - 16 · (1 - (1 - r/4)³)
    assert seen == [(23, 2), (18, 2), (16, 2), (16, 5)]


def test_both_takes_the_units_of_the_lowest_places_in_the_two_orders(monkeypatch):
    scores = {
        "saliency": [8e9, 1, 2, 3, 4, 5, 6, 7],
        "magnitude": [0.0, 0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
    }

    def told(values: list[float]) -> Callable[..., np.ndarray]:
        def score(model: keras.Model, units: LayerUnits, *_: Any) -> np.ndarray:
            found = np.zeros(pruning._count(units))
            for features in units.layers.values():
                found[features] = values
            return found

        return score

    for name, values in scores.items():
        monkeypatch.setattr(pruning, name, told(values))
    model = two_layers()
    gone = {}
    for importance in ("saliency", "magnitude", "both"):
        smaller, _ = prune(
            model, rows(), keep=0.75, loss="mse", steps=0, importance=importance, multiple_of=2
        )
        whole, kept = (m.get_layer("head").get_weights()[0] for m in (model, smaller))
        gone[importance] = [number for number, row in enumerate(whole) if row not in kept]
    # Places in the two orders: 7 + 0, 0 + 7, 1 + 1, 2 + 2, ...
    assert gone == {"saliency": [1, 2], "magnitude": [0, 2], "both": [2, 3]}


@pytest.mark.parametrize("judged", [True, False], ids=["judge", "validation"])
def test_best_model_of_the_training_is_kept_and_its_quality_told(judged):
    x, y = rows(64)
    seen = []

    def judge(model: keras.Model) -> float:
        # Worse and worse, but for the second look of the training.
        seen.append(model.get_weights())
        return [0.0, 5.0, 4.0, 6.0, 7.0][len(seen) - 1]

    arguments = {"judge": judge} if judged else {"validation": rows(64, seed=1)}
    model, record = prune(two_layers(16), (x, y), loss="mse", steps=8, batch_size=8, **arguments)
    if judged:
        assert (len(seen), record.quality_after) == (5, 4.0)
        for mine, its in zip(model.get_weights(), seen[2], strict=True):
            np.testing.assert_array_equal(mine, its)
    else:
        found = pruning.loss_on(model, rows(64, seed=1), loss="mse", batch_size=8)
        assert record.quality_after == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize(
    ("units", "keep", "multiple_of", "kept"),
    [(32, 0.5, 8, 16), (20, 0.5, 8, 8), (24, 0.1, 8, 8), (20, 0.55, 1, 11), (9, 0.05, 1, 1), (12, 0.9, 8, 8)],
)
def test_units_kept_are_the_share_in_multiples(units, keep, multiple_of, kept):
    model, record = prune(
        two_layers(units),
        rows(),
        keep=keep,
        multiple_of=multiple_of,
        rounds=1,
        steps=0,
        importance="magnitude",
        judge=lambda judged: judged.count_params(),
        metric="weights",
    )
    assert model.get_layer("second").units == kept
    assert record.details["judged_on"] == "judge"
    assert (record.metric, record.quality_after) == ("weights", record.parameters_after)


def test_rounds_are_stretches_of_one_course():
    told = []
    _, record = prune(
        two_layers(16), rows(), loss="mse", steps=5, rounds=2, batch_size=8, on_step=lambda *s: told.append(s)
    )
    assert [step[:2] for step in told] == [(done, 5) for done in range(1, 6)]
    assert [step[2] for step in told] == record.details["losses"]


def test_same_seed_gives_the_same_model():
    weights = [
        prune(two_layers(), rows(), loss="mse", steps=2, rounds=1, batch_size=8, multiple_of=2)[
            0
        ].get_weights()
        for _ in range(2)
    ]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_mixed_precision_and_batches_of_a_dataset_are_pruned():
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
            return rows(8, seed=index)

    model, record = prune(two_layers(16, dtype="mixed_bfloat16"), Batches(), loss="mse", rounds=1, steps=2)
    assert model.get_layer("first").units == 8
    assert model.get_layer("first").compute_dtype == "bfloat16"
    assert np.isfinite(record.quality_after)


def test_layer_that_cannot_lose_units_is_named_beside_those_that_can():
    model = build_text_model(11, embedding=16, units=16, layers=2, tie_weights=True)
    smaller, record = prune(
        model,
        (np.zeros((2, 3), "int32"), np.zeros((2, 3), "int32")),
        loss="mse",
        rounds=1,
        steps=0,
        importance="magnitude",
        judge=lambda judged: 0.0,
    )
    assert (smaller.get_layer("lstm_1").units, smaller.get_layer("lstm_2").units) == (8, 16)
    assert "'embedding' (ReversibleEmbedding)" in record.details["kept_whole"]["lstm_2"]


def test_model_without_units_to_remove_is_refused_with_each_reason():
    x = sequence(STEPS, WIDTH)
    flat = layers.Flatten(name="flat")(lstm(name="inner", return_sequences=True)(x))
    model = keras.Model(x, [lstm(name="outer")(x), dense()(flat)])
    with pytest.raises(ModelError) as raised:
        prune(model, rows(), loss="mse")
    assert "'inner' stays whole: its units reach 'flat' (Flatten)" in str(raised.value)
    assert "'outer' stays whole: its units are an output of the model" in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"keep": 1.0}, "keep must be a number above 0 and below 1, not 1.0"),
        ({"keep": 0}, "keep must be"),
        ({"rounds": 0}, "rounds must be"),
        ({"steps": -1}, "steps must be"),
        ({"multiple_of": 1.5}, "multiple_of must be"),
        ({"importance": "taylor"}, "importance must be one of both, saliency, magnitude"),
        ({"multiple_of": 16}, "give a lower keep or multiple_of=1"),
        ({"loss": None}, "give `loss`"),
    ],
)
def test_argument_out_of_range_is_a_config_error(arguments, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        prune(two_layers(), rows(), **{"loss": "mse", "multiple_of": 2} | arguments)


def test_data_that_cannot_be_used_are_an_error():
    with pytest.raises(DataError, match="rows"):
        prune(two_layers(), (rows()[0], rows()[1][1:]), loss="mse", multiple_of=2)
    x, y = rows()
    with pytest.raises(TrainingError, match="look for NaN"):
        prune(two_layers(), (x * np.nan, y), loss="mse", multiple_of=2)


@pytest.mark.parametrize("compress", [prune, sparsify])
def test_path_in_place_of_a_model_is_refused(compress):
    with pytest.raises(ModelError, match="expected a Keras model, got str"):
        compress("model.keras", rows(8), loss="mse")


def test_subclassed_model_is_refused():
    class Own(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    with pytest.raises(ModelError, match="Functional or Sequential"):
        prune(Own(), rows(), loss="mse")


@pytest.mark.backends
def test_model_with_a_list_of_inputs_is_pruned_and_judged_on_its_batches():
    x, s = keras.Input((5, WIDTH), name="x"), keras.Input((3,), name="s")
    y = dense(1, name="head")(layers.Concatenate()([lstm(6, name="first")(x), s]))
    model = with_random_weights(keras.Model([x, s], y))
    rng = np.random.default_rng(0)
    given = [
        rng.standard_normal((16, 5, WIDTH)).astype("float32"),
        rng.standard_normal((16, 3)).astype("float32"),
    ]
    small, record = prune(
        model,
        (given, rng.standard_normal((16, 1)).astype("float32")),
        loss="mse",
        keep=0.5,
        multiple_of=1,
        steps=2,
        batch_size=8,
    )
    assert small.get_layer("first").units == 3
    assert np.isfinite(record.quality_before)
