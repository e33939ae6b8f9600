"""A quantised model must hold what its packed file will keep, bit for bit, and be the best of the ways to round."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.compress.quantize import _Candidate, _observed, quantize
from cellerate.compress.record import QualityGate
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.keras_graph.to_program import read_program
from cellerate.kernels import native
from cellerate.layers.accelerate import accelerate, is_accelerated
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import build_text_model
from cellerate.program import Program
from cellerate.runtime.cell import narrowed, read_cell, write_cell
from support.rounding import allowed

pytestmark = pytest.mark.keras

B, T, F, V = 16, 6, 5, 11  # rows, steps, features, ids


def series(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape or (B, T, F)).astype("float32")


def ids(seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, V, (B, T)).astype("int32")


def randomize(model: keras.Model) -> keras.Model:
    """Gives every variable of numbers values that no rounding leaves alone."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if "float" in keras.backend.standardize_dtype(weight.dtype):
            values = np.abs(rng.normal(size=weight.shape)) + 0.1
            weight.assign(values.astype("float32") if "variance" in weight.name else values - 0.6)
    return model


def users_model() -> keras.Model:
    """Nested, bidirectional, normalised, a layer that is called twice, and one for each step."""
    x = keras.Input((T, F), name="x")
    inner = keras.Sequential([keras.Input((T, F)), layers.Dense(4), layers.LayerNormalization()], name="in")
    twice = layers.Dense(4, name="twice")
    y = layers.Bidirectional(layers.LSTM(3, return_sequences=True), name="both")(twice(twice(inner(x))))
    y = layers.TimeDistributed(layers.Dense(4, name="step"), name="each")(y)
    y = layers.BatchNormalization()(layers.RNN(layers.LSTMCell(3), name="rnn")(y))
    return keras.Model(x, layers.Dense(2, name="out")(y), name="users")


def tied_model(tied: bool) -> keras.Model:
    table = layers.ReversibleEmbedding(V, 4, tie_weights=tied, mask_zero=True, name="table")
    x = keras.Input((None,), dtype="int32")
    y = layers.LSTM(4, return_sequences=True, name="lstm")(table(x))
    return keras.Model(x, table(y, reverse=True), name="tied")


def low_rank_model() -> keras.Model:
    model = keras.Sequential([keras.Input((F,)), layers.Dense(4, name="low"), layers.Dense(2)])
    model.get_layer("low").enable_lora(2, lora_alpha=3)
    return model


def grouped_model() -> keras.Model:
    """Convolutions whose variables leave out the zeros between the groups of the program's kernels."""
    return keras.Sequential(
        [
            keras.Input((T, 6)),
            layers.Conv1D(4, 3, groups=2, name="groups"),
            layers.DepthwiseConv1D(2, depth_multiplier=3, name="depthwise"),
            layers.SeparableConv1D(5, 2, name="separable"),
        ]
    )


MODELS: dict[str, Callable[[], keras.Model]] = {
    "text": lambda: build_text_model(V, embedding=4, units=5, layer_norm=True),
    "forecast": lambda: build_forecast_model(T, F, 3, 2, target_columns=[0, 1], units=4),
    "autoencoder": lambda: build_autoencoder(V, embedding=4, units=4, latent=3),
    "users": users_model,
    "tied": lambda: tied_model(True),
    "untied": lambda: tied_model(False),
    "low-rank": low_rank_model,
    "groups": grouped_model,
}


def assert_same(found: Program, expected: Program) -> None:
    for node, other in zip(found.nodes, expected.nodes, strict=True):
        assert node.op == other.op
        for name, array in node.arrays.items():
            # Adding 0 takes the sign off zeros: in int4 they have that of their scale, between groups none.
            same = (array + 0.0).tobytes() == (other.arrays[name] + 0.0).tobytes()
            assert same, f"{node.name}/{name}"


def assert_packs_as_it_is(model: keras.Model, precision: str, folder: Path) -> None:
    write_cell(folder / "a.cell", read_program(model), precision=precision)
    assert_same(read_program(model), read_cell(folder / "a.cell").program)


def judged(*qualities: float) -> Callable[[keras.Model], float]:
    """A judge of what it is asked about one after the other: the model itself, plain, calibrated, ..."""
    answers = iter(qualities)
    return lambda model: next(answers)


@pytest.mark.parametrize("precision", ["int8", "int4", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_quantized_model_holds_what_the_packed_file_keeps(name: str, precision: str, tmp_path: Path) -> None:
    model = randomize(MODELS[name]())
    before = read_program(model)
    found, record = quantize(model, precision=precision)
    assert_same(read_program(found), narrowed(before, precision))
    assert_packs_as_it_is(found, precision, tmp_path)
    assert_same(read_program(model), before)
    assert type(found) is type(model)
    assert [layer.name for layer in found.layers] == [layer.name for layer in model.layers]
    assert [weight.shape for weight in found.weights] == [weight.shape for weight in model.weights]
    assert not found.compiled
    assert record.quality_before is record.quality_after is record.details["passed"] is None
    assert record.details["kept"] == "plain"


def test_record_counts_the_bytes_of_the_file_and_is_plain_json() -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    sizes = {"int8": 4 * 3 + 4 * 3 + 4 * 3, "int4": 4 * 2 + 2 * 3 + 4 * 3, "bfloat16": 2 * 4 * 3 + 4 * 3}
    for precision, expected in sizes.items():
        _, record = quantize(model, precision=precision)
        assert (record.details["bytes_before"], record.details["bytes_after"]) == (60, expected)
        assert record.parameters_before == record.parameters_after == 15
        assert json.loads(json.dumps(record.to_json()))["method"] == "quantize"


def test_every_int8_kernel_is_calibrated_wherever_it_is() -> None:
    model = randomize(users_model())
    _, record = quantize(model, (series(), series(B, 2)), judge=judged(1.0, 1.0, 0.5))
    kernels = {
        f"{node.name}/{name}"
        for node in read_program(model).nodes
        for name in node.arrays
        if name in ("kernel", "recurrent_kernel")
    }
    # Two directions, an RNN and four Dense, one of which is called twice.
    assert len(kernels) == 2 * 3 + 4
    assert sorted(record.details["calibrated"]) == sorted(kernels)


def outlier(kernel: np.ndarray, row: int = 0) -> np.ndarray:
    kernel = np.array(kernel)
    kernel[row] = 10.0
    return kernel


def test_calibration_clips_weights_of_inputs_that_are_always_small_and_is_kept_if_better(
    tmp_path: Path,
) -> None:
    model = keras.Sequential([keras.Input((32,)), layers.Dense(8, use_bias=False)])
    model.set_weights([outlier(series(32, 8))])
    x = series(64, 32)
    x[:, 0] = 0
    y = x @ model.get_weights()[0]
    found, record = quantize(model, (x, y), loss="mse")
    assert np.median(found.get_weights()[0][0]) < 8.0
    assert record.details["kept"] == "calibrated"
    assert record.quality_after == record.details["qualities"]["calibrated"]
    # The steps of the columns are 10 / 127 plain and near 6 / 127 clipped, and the loss is as their squares.
    assert record.quality_after < 0.6 * record.details["qualities"]["plain"]
    assert_packs_as_it_is(found, "int8", tmp_path)


def test_calibration_in_int4_clips_each_group_by_itself(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((64,)), layers.Dense(8, use_bias=False)])
    model.set_weights([outlier(series(64, 8))])
    x = series(64, 64)
    x[:, 0] = 0
    found, record = quantize(model, (x, x @ model.get_weights()[0]), precision="int4", loss="mse")
    first, second = np.split(np.abs(found.get_weights()[0]), 2)
    assert np.median(first[0]) < 8.0
    # Beside the weights that are clipped lies a group without any such.
    np.testing.assert_allclose(second.max(axis=0), np.abs(series(64, 8)[32:]).max(axis=0), rtol=0.41)
    assert record.details["kept"] == "calibrated"
    assert record.quality_after < 0.7 * record.details["qualities"]["plain"]
    assert_packs_as_it_is(found, "int4", tmp_path)


def test_calibration_that_does_not_help_is_not_kept(tmp_path: Path) -> None:
    model = randomize(keras.Sequential([keras.Input((F,)), layers.Dense(8)]))
    found, record = quantize(model, (series(B, F), series(B, 8)), judge=judged(1.0, 1.1, 1.1))
    assert record.details["kept"] == "plain"
    assert_same(read_program(found), narrowed(read_program(model), "int8"))


@pytest.mark.backends
@pytest.mark.parametrize("way", [{}, {"go_backwards": True}, {"return_sequences": True}])
def test_calibration_takes_the_outputs_of_an_lstm_for_the_inputs_of_its_recurrent_kernel(
    way: dict[str, bool], tmp_path: Path
) -> None:
    units = 32
    model = keras.Sequential([keras.Input((T, F)), layers.LSTM(units, **way)])
    recurrent = outlier(series(units, 4 * units))
    kernel, bias, gate = series(F, 4 * units), np.zeros(4 * units, "float32"), 3 * units
    kernel[:, gate] = recurrent[:, gate] = 0.0
    largest = []
    # Shut, the gate that lets the first unit out keeps its output at about 0.
    for bias[gate] in (-30.0, 0.0):
        model.set_weights([kernel, recurrent, bias])
        found, _ = quantize(model, (series(), series(B, units)), judge=judged(1.0, 1.0, 0.5))
        largest.append(np.median(found.get_weights()[1][0]))
        assert_packs_as_it_is(found, "int8", tmp_path)
    assert largest[0] < 8.0
    assert largest[1] > 9.5


def test_calibration_sees_all_steps_of_a_layer_that_gives_its_last_alone() -> None:
    found = []
    for sequences in (True, False):
        model = keras.Sequential(
            [keras.Input((T, F)), layers.LSTM(32, return_sequences=sequences, seed=1), layers.Dense(2)]
        )
        model.set_weights([series(*weights.shape) * 0.3 for weights in model.get_weights()])
        program = read_program(model)
        (moments,) = (
            moment
            for key, moment in _observed(model, program, [(series(),)]).items()
            if key[1] == "recurrent_kernel"
        )
        found.append(moments)
        if sequences:
            steps = keras.ops.convert_to_numpy(model.layers[0](series())).reshape(-1, 32)
            np.testing.assert_allclose(moments, (steps.astype(np.float64) ** 2).sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_calibration_leaves_masked_steps_out() -> None:
    model = keras.Sequential(
        [keras.Input((T,), dtype="int32"), layers.Embedding(V, 32, mask_zero=True), layers.LSTM(3)]
    )
    randomize(model)
    table, kernel, *others = model.get_weights()
    # Only what stands for padding has anything in the first feature.
    table[:, 0], table[0, 0] = 0.0, 100.0
    model.set_weights([table, outlier(series(*kernel.shape)), *others])
    x = ids()
    x[:, 3:] = 0
    found, _ = quantize(model, (x, series(B, 3)), judge=judged(1.0, 1.0, 0.5))
    assert np.abs(found.get_weights()[1]).max() < 8.0


class Batches(keras.utils.PyDataset):
    """Two batches of an autoencoder, its inputs by name."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return {"target_in": ids(index), "source": ids(index + 5)}, ids(index)


def test_data_of_dictionaries_and_datasets_calibrate_as_arrays_do() -> None:
    model = randomize(build_autoencoder(V, embedding=4, units=4, latent=3))
    kept = []
    for data in (Batches(), ({"target_in": ids(0), "source": ids(5)}, ids(0))):
        found, record = quantize(model, data, judge=judged(1.0, 1.0, 0.5))
        assert any("decoder/recurrent_kernel" in path for path in record.details["calibrated"])
        kept.append(found.get_weights())
    assert [weight.shape for weight in kept[0]] == [weight.shape for weight in kept[1]]


def test_data_may_leave_out_a_last_axis_of_one_as_in_keras() -> None:
    model = randomize(keras.Sequential([keras.Input((T, 1)), layers.LSTM(3)]))
    _, record = quantize(model, (series(B, T), series(B, 3)), judge=judged(1.0, 1.0, 0.5))
    assert record.details["kept"] == "calibrated"


def regression() -> tuple[keras.Model, tuple[np.ndarray, np.ndarray]]:
    """A model that fits its data perfectly, until it is rounded: each column has a weight that coarsens the rest."""
    x = keras.Input((F,))
    model = keras.Model(x, layers.Dense(6, use_bias=False)(layers.Dense(16, activation="tanh")(x)))
    randomize(model)
    kernel, bias, head = model.get_weights()
    model.set_weights([outlier(kernel), bias, outlier(head, 3)])
    inputs = series(256, F, seed=4) * 0.3
    return model, (inputs, np.asarray(model.predict(inputs, verbose=0)))


@pytest.mark.backends
def test_gate_that_rounding_fails_is_met_by_fine_tuning_or_the_best_is_given(tmp_path: Path) -> None:
    model, (x, y) = regression()
    # The fit is not perfect, so that there is a loss to lose a share of.
    y = y + 0.05 * series(*y.shape, seed=6)
    told = []
    found, record = quantize(
        model, (x, y), loss="mse", gate=QualityGate(0.0), steps=40, on_step=lambda *s: told.append(s)
    )
    assert [step[:2] for step in told] == [(done, 40) for done in range(1, 41)]
    assert record.details["losses"] == [step[2] for step in told]
    qualities = record.details["qualities"]
    assert record.details["kept"] == "fine-tuned"
    assert record.quality_after == qualities["fine-tuned"] < min(qualities["plain"], qualities["calibrated"])
    assert record.details["passed"] == (record.quality_after <= record.quality_before)
    assert_packs_as_it_is(found, "int8", tmp_path)


def test_gate_that_nothing_passes_gives_the_best_there_was() -> None:
    model = randomize(keras.Sequential([keras.Input((F,)), layers.Dense(4)]))
    judge = judged(1.0, 1.5, 1.4, 3.0, 1.2, float("nan"), 2.0)
    data = series(B, F), series(B, 4)
    _, record = quantize(model, data, loss="mse", gate=QualityGate(0.1), steps=4, batch_size=8, judge=judge)
    assert (record.details["kept"], record.details["passed"]) == ("fine-tuned", False)
    assert record.quality_after == record.details["qualities"]["fine-tuned"] == 1.2


@pytest.mark.parametrize("none", [None, float("nan"), float("inf")])
def test_way_of_rounding_that_nothing_judged_is_never_the_better_one(none: float | None) -> None:
    unjudged, judged_bad = (_Candidate("plain", quality, []) for quality in (none, 1e30))
    assert judged_bad.better_than(unjudged)
    assert not unjudged.better_than(judged_bad)
    assert not unjudged.better_than(unjudged)


def test_gate_that_is_passed_at_once_starts_no_training() -> None:
    model = randomize(keras.Sequential([keras.Input((F,)), layers.Dense(4)]))
    data = series(B, F), series(B, 4)
    _, record = quantize(
        model, data, loss="mse", gate=QualityGate(0.1), judge=judged(1.0, 1.05, 1.2), metric="mae"
    )
    assert (record.details["kept"], record.details["passed"], record.metric) == ("plain", True, "mae")
    assert record.quality_loss == pytest.approx(0.05)
    assert "fine-tuned" not in record.details["qualities"]
    assert record.details["losses"] == []


def test_model_that_is_given_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    model = keras.Sequential([keras.Input((T, F)), layers.LSTM(3, name="lstm"), layers.Dense(2)])
    randomize(model)
    model.get_layer("lstm").trainable = False
    model.compile(optimizer="sgd", loss="mse")
    optimizer, before = model.optimizer, [np.array(weight) for weight in model.get_weights()]
    data = series(), series(B, 2)
    capsys.readouterr()
    found, _ = quantize(model, data, gate=QualityGate(0.0), steps=4, batch_size=8)
    assert capsys.readouterr() == ("", ""), "a function that is called does not print"
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert model.optimizer is optimizer
    assert model.compiled and found.compiled and found.loss == "mse"
    assert not is_accelerated(model.get_layer("lstm"))
    assert not model.get_layer("lstm").trainable
    assert not found.get_layer("lstm").trainable
    accelerate(model)
    quantize(model, data, precision="bfloat16")
    assert is_accelerated(model.get_layer("lstm")) == (native.why_unavailable() is None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": "float32"}, r"precision must be one of bfloat16, int8, int4, not 'float32'"),
        ({"gate": QualityGate(0.1)}, "gate needs something to judge by: give data, validation or judge"),
        ({"gate": 0.1}, "gate must be a QualityGate or None, not float"),
        ({"steps": -1}, "steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"data": (series(B, F), series(B, 4))}, "give `loss`"),
    ],
    ids=[
        "precision",
        "nothing-to-judge",
        "gate",
        "steps",
        "learning-rate",
        "batch-size",
        "part-of-a-row",
        "no-loss",
    ],
)
def test_bad_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    model = keras.Sequential([keras.Input((F,)), layers.Dense(4)])
    with pytest.raises(ConfigError, match=message):
        quantize(model, **arguments)


def test_layer_that_cannot_be_packed_is_named() -> None:
    model = keras.Sequential([keras.Input((T, F)), layers.Conv1DTranspose(3, 2, name="old")])
    with pytest.raises(ModelError, match=r"old \(Conv1DTranspose\)"):
        quantize(model)


def test_quantized_gru_and_simple_rnn_compute_what_their_packed_file_does() -> None:
    x = np.random.default_rng(0).normal(size=(6, T, F)).astype("float32")
    chain = [layers.GRU(5, return_sequences=True, name="gru"), layers.SimpleRNN(4, name="simple")]
    model = keras.Sequential([keras.Input((T, F)), *chain])
    small, record = quantize(model, (x, np.zeros((6, 4), "float32")), loss="mse")
    assert record.details["calibrated"] == [
        f"{layer}/{kernel}" for layer in ("gru", "simple") for kernel in ("kernel", "recurrent_kernel")
    ]
    program = read_program(small)
    for node, kept in zip(program.nodes, narrowed(program, "int8").nodes, strict=True):
        assert all(np.array_equal(array, kept.arrays[name]) for name, array in node.arrays.items())


def test_weights_that_cannot_hold_what_they_are_rounded_to_are_refused(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((F,)), layers.Dense(4, dtype="bfloat16", name="narrow")])
    with pytest.raises(ModelError, match=r"narrow/kernel is bfloat16.*mixed_bfloat16"):
        quantize(model)
    assert_packs_as_it_is(quantize(model, precision="bfloat16")[0], "bfloat16", tmp_path)


@pytest.mark.parametrize(
    ("x", "message"),
    [({"source": ids()}, "lacks the input 'target_in'"), ([ids()], "has 1 inputs in a batch; expected 2")],
    ids=["names", "count"],
)
def test_data_that_do_not_fit_the_model_are_refused(x: Any, message: str) -> None:
    model = build_autoencoder(V, embedding=4, units=4, latent=3)
    with pytest.raises(DataError, match=message):
        quantize(model, (x, ids()), judge=judged(1.0, 1.0))


@pytest.mark.parametrize("wrong", ["inputs", "targets"])
def test_arrays_of_other_shapes_than_the_models_are_refused(wrong: str) -> None:
    model = keras.Sequential([keras.Input((T, F)), layers.LSTM(3), layers.Dense(2)])
    x, y = series(), np.zeros((B, 2), "float32")
    x, y = (x[..., :-1], y) if wrong == "inputs" else (x, np.zeros((B, 3), "float32"))
    with pytest.raises(DataError, match=r"cannot be judged on data.* Give inputs and targets"):
        quantize(model, (x, y), loss="mse")


def test_stateful_model_is_judged_and_quantised_from_zeros() -> None:
    rows = keras.Input((T, F), batch_size=B)
    model = randomize(keras.Model(rows, layers.Dense(2)(layers.LSTM(3, stateful=True)(rows))))
    y = np.zeros((B, 2), "float32")
    for precision in ("bfloat16", "int8"):
        small, record = quantize(model, (series(), y), loss="mse", precision=precision, batch_size=B)
        # Two products of the LSTM and one of the head. The loss is the mean square of outputs that are off by so much.
        off = allowed(precision, roundings=2 * 3, terms=max(F, 3))
        assert record.quality_after == pytest.approx(record.quality_before, rel=2 * off)
        assert read_program(small)
