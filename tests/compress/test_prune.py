"""Pruning: what is left computes what the whole would with the removed units unread; the least important ones go."""

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.compress import prune as pruning
from cellerate.compress.prune import magnitude, prune, saliency, without
from cellerate.errors import ConfigError, DataError, ModelError, TrainingError
from cellerate.keras_graph.ties import LayerUnits, units_of
from cellerate.layers.accelerate import accelerate, is_accelerated
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import build_text_model

pytestmark = pytest.mark.keras

BATCH, STEPS, WIDTH, UNITS = 3, 5, 4, 6


def sequence(*shape: Any) -> Any:
    return keras.Input(shape or (None, WIDTH))


def lstm(units: int = UNITS, **arguments: Any) -> layers.LSTM:
    """All weights 0 at first: each random initializer is compiled for each shape, and weights are set anyway."""
    return layers.LSTM(units, kernel_initializer="zeros", recurrent_initializer="zeros", **arguments)


def dense(units: int = 2, activation: str | None = None, **arguments: Any) -> layers.Dense:
    return layers.Dense(units, activation, kernel_initializer="zeros", **arguments)


def text() -> keras.Model:
    return build_text_model(11, embedding=5, units=(6, 7), layers=2, dropout=0.1, tie_weights=True)


def forecast() -> keras.Model:
    return build_forecast_model(
        STEPS,
        WIDTH,
        2,
        1,
        target_columns=[1],
        units=6,
        layers=2,
        bidirectional=True,
        quantiles=[0.1, 0.5, 0.9],
    )


def autoencoder() -> keras.Model:
    return build_autoencoder(9, embedding=4, units=6, latent=5, dropout=0.1)


def chain() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((STEPS, WIDTH)),
            lstm(return_sequences=True),
            layers.BatchNormalization(),
            layers.SpatialDropout1D(0.2),
            layers.Activation("tanh"),
            lstm(5, return_sequences=True, go_backwards=True),
            layers.TimeDistributed(dense(4, "relu")),
            layers.TimeDistributed(layers.Dropout(0.2)),
            lstm(5, use_bias=False),
            dense(),
        ]
    )


def repeated() -> keras.Model:
    inner = keras.Sequential(
        [keras.Input((STEPS, WIDTH)), lstm(), layers.RepeatVector(3), lstm(return_sequences=True)]
    )
    outer = sequence(STEPS, WIDTH)
    return keras.Model(outer, layers.TimeDistributed(dense())(inner(outer)))


def nested() -> keras.Model:
    """A nested model that takes pruned features in, is called twice, and is nested in another."""
    part_in = keras.Input((None, UNITS))
    part = keras.Model(part_in, layers.BatchNormalization()(lstm(return_sequences=True)(part_in)))
    middle = keras.Sequential([keras.Input((None, UNITS)), part, layers.ReLU()])
    x = sequence()
    y = middle(lstm(return_sequences=True)(x))
    y = layers.GlobalAveragePooling1D()(middle(y))
    return keras.Model(x, dense()(y))


def branches() -> keras.Model:
    x = sequence()
    one, other = lstm(return_sequences=True)(x), lstm(5, return_sequences=True)(x)
    both = layers.Concatenate()([one, x, other])
    later = layers.Concatenate(axis=1)([lstm(return_sequences=True)(both), one])
    pooled = layers.Concatenate()(
        [layers.GlobalMaxPooling1D()(later), keras.ops.mean(both, axis=1), one[:, -1]]
    )
    return keras.Model(x, dense()(pooled))


def residual() -> keras.Model:
    x = sequence()
    first = lstm(return_sequences=True)(x)
    second = lstm(return_sequences=True)(first)
    gate = dense(UNITS, "sigmoid")(first)
    summed = keras.ops.multiply(layers.Add()([first, second]) * 0.5, gate)
    return keras.Model(x, dense()(summed))


def encoder_decoder() -> keras.Model:
    source, target = sequence(), sequence()
    _, h, c = lstm(return_state=True)(source)
    decoded = lstm(return_sequences=True)(target, initial_state=[h, c])
    return keras.Model([source, target], dense()(decoded))


def bidirectional_states() -> keras.Model:
    """The states of two directions, side by side, start a layer of twice the width; those of a third, its like."""
    source, target = sequence(), sequence()
    _, *states = layers.Bidirectional(lstm(return_state=True))(source)
    both = [layers.Concatenate()(states[place::2]) for place in (0, 1)]
    decoded = lstm(2 * UNITS, return_sequences=True)(target, initial_state=both)
    like = layers.Bidirectional(lstm(return_sequences=True))(decoded, initial_state=states)
    return keras.Model([source, target], dense()(like))


def bidirectional(mode: str | None) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        x = sequence()
        y = layers.Bidirectional(lstm(return_sequences=True), merge_mode=mode)(x)
        if mode is None:
            y = layers.Concatenate()(list(y))
        y = layers.Bidirectional(lstm(5), merge_mode=mode or "concat")(y)
        return keras.Model(x, dense()(y))

    return build


def stateful() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(batch_shape=(BATCH, STEPS, WIDTH)),
            lstm(return_sequences=True, stateful=True),
            layers.Bidirectional(lstm(stateful=True)),
            dense(),
        ]
    )


def masked_ids() -> keras.Model:
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(9, WIDTH, mask_zero=True)(ids)
    x = lstm(return_sequences=True)(x)
    y = layers.Bidirectional(lstm(return_sequences=True))(x)
    unmasked = sequence()
    x = layers.Concatenate()([x, y, lstm(5, return_sequences=True)(unmasked)])
    x = lstm(return_sequences=True, zero_output_for_mask=True)(x)
    both = layers.Concatenate()([layers.GlobalAveragePooling1D()(x), lstm(5)(layers.Add()([y, y]))])
    return keras.Model([ids, unmasked], dense()(both))


def masked_features() -> keras.Model:
    x = sequence()
    y = lstm(return_sequences=True)(layers.Masking()(x))
    return keras.Model(x, dense()(lstm(5)(layers.Dropout(0.1)(y))))


CASES: dict[str, Callable[[], keras.Model]] = {
    "text": text,
    "forecast": forecast,
    "autoencoder": autoencoder,
    "chain": chain,
    "repeated": repeated,
    "nested": nested,
    "branches": branches,
    "residual": residual,
    "encoder-decoder": encoder_decoder,
    "bidirectional-states": bidirectional_states,
    "bidirectional-concat": bidirectional("concat"),
    "bidirectional-sum": bidirectional("sum"),
    "bidirectional-two": bidirectional(None),
    "stateful": stateful,
    "masked-ids": masked_ids,
    "masked-features": masked_features,
}


def with_random_weights(model: keras.Model, scale: float = 1.0) -> keras.Model:
    rng = np.random.default_rng(3)
    model.set_weights([scale * rng.uniform(0.1, 1.0, w.shape) * _sign(w, rng) for w in model.weights])
    return model


def _sign(variable: Any, rng: np.random.Generator) -> Any:
    return 1 if "variance" in variable.name else rng.choice([-1.0, 1.0], variable.shape)


def inputs_of(model: keras.Model) -> Any:
    """Ids and features of which some are masked, in the middle and at the ends."""
    return keras.tree.map_structure(
        _input_of, model.inputs[0] if isinstance(model, keras.Sequential) else model.input
    )


def _input_of(tensor: Any) -> np.ndarray:
    rng = np.random.default_rng(4)
    shape = [BATCH, *(STEPS if size is None else size for size in tensor.shape[1:])]
    if tensor.dtype == "int32":
        ids = rng.integers(1, 9, shape)
        ids[0, 3:], ids[1, :2] = 0, 0
        return ids.astype("int32")
    features = rng.standard_normal(shape)
    features[0, 3:], features[1, 1] = 0, 0
    return features.astype("float32")


def outputs_of(model: keras.Model) -> np.ndarray:
    """On the native kernels, which compile nothing."""
    return keras.ops.convert_to_numpy(accelerate(model)(inputs_of(model)))


def half(units: LayerUnits, seed: int = 5) -> np.ndarray:
    """About half of the features of the layers, chosen at random; of each group some stay."""
    rng = np.random.default_rng(seed)
    groups = units.groups().values()
    return np.concatenate([rng.permutation(features)[: len(features) // 2] for features in groups])


def without_reading(model: keras.Model, units: LayerUnits, removed: np.ndarray) -> keras.Model:
    """The whole model, in which no weight reads the features."""
    values = {id(w): v for w, v in zip(model.weights, model.get_weights(), strict=True)}
    for axis in units.axes:
        if axis.reads:
            rows = np.moveaxis(values[id(axis.variable)], axis.axis, 0)
            rows[np.isin(axis.features, removed)] = 0
    model.set_weights([values[id(w)] for w in model.weights])
    return model


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


@pytest.mark.backends
@pytest.mark.parametrize("case", CASES)
def test_model_without_units_equals_the_one_that_does_not_read_them(case):
    model = with_random_weights(CASES[case]())
    units = units_of(model)
    assert not units.kept_whole
    removed = half(units)

    smaller = without(model, units, removed)

    whole, found = outputs_of(without(model, units, np.array([]))), outputs_of(smaller)
    expected = outputs_of(without_reading(model, units, removed))
    assert smaller.count_params() < model.count_params()
    assert [w.name for w in smaller.weights] == [w.name for w in model.weights]
    assert relative_error(found, expected) < 1e-6
    # Else the test could not fail.
    assert relative_error(whole, expected) > 1e-2


def test_layer_norm_of_pruned_units_is_that_of_the_units_left():
    model = keras.Sequential([sequence(), lstm(return_sequences=True), layers.LayerNormalization(), dense()])
    with_random_weights(model)
    units = units_of(model)
    (features,) = units.layers.values()
    removed, kept = features[[1, 4]], [0, 2, 3, 5]

    found = outputs_of(without(model, units, removed))

    recurrent = model.layers[0].cell.recurrent_kernel
    rows = keras.ops.convert_to_numpy(recurrent).copy()
    rows[[1, 4]] = 0
    recurrent.assign(rows)
    h = keras.ops.convert_to_numpy(model.layers[0](inputs_of(model)))[..., kept]
    norm, head = model.layers[1:]
    gamma, beta = (keras.ops.convert_to_numpy(w)[kept] for w in norm.weights)
    kernel, bias = (keras.ops.convert_to_numpy(w) for w in head.weights)
    deviation = np.sqrt(h.var(-1, keepdims=True) + norm.epsilon)
    expected = ((h - h.mean(-1, keepdims=True)) / deviation * gamma + beta) @ kernel[kept] + bias
    assert relative_error(found, expected) < 1e-6


def two_layers(units: int = 8, **arguments: Any) -> keras.Model:
    x = keras.Input((None, WIDTH))
    y = lstm(units, return_sequences=True, name="first", **arguments)(x)
    y = dense(2, name="head")(lstm(units, name="second", **arguments)(y))
    return with_random_weights(keras.Model(x, y, name="two"), scale=0.5)


def rows(count: int = 24, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, STEPS, WIDTH)).astype("float32")
    return x, np.stack([x[:, :, 0].sum(1), x[:, -1, 1]], -1)


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


def test_subclassed_model_is_refused():
    class Own(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    with pytest.raises(ModelError, match="Functional or Sequential"):
        prune(Own(), rows(), loss="mse")
