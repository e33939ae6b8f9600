"""Models that Keras 2 itself wrote compute the same here, or are refused in words that name the layer."""

from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from keras import layers

import cellerate
from cellerate.errors import ModelError
from cellerate.models.storage import load_model
from tests.support.keras_models.keras2_writer import written_by_keras_2

pytestmark = [
    pytest.mark.keras,
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file"),
    # Keras says so of nested models, whose layers get the mask all the same.
    pytest.mark.filterwarnings("ignore:Layer '.*' .of type Functional. was passed an input with a mask"),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

BEGIN = """
import numpy as np
import tf_keras
from tf_keras import layers as L

random = np.random.default_rng(0)
x = random.normal(0, 2, (3, 7, 4)).astype("f4")
x[1, 2:], x[2, ::2], x[0, 5:] = 0, 0, 0
second = random.normal(0, 2, (3, 7, 4)).astype("f4")
second[1, 4:], second[0, :3] = 0, 0
ids = np.array([[1, 2, 3, 0, 0, 0, 0], [4, 0, 2, 1, 0, 3, 0], [1, 2, 3, 4, 1, 2, 3]], "i4")


def keep(name, model, *given):
    for weight in model.weights:
        weight.assign(abs(random.normal(0, 1, weight.shape)) if "variance" in weight.name else
                      random.normal(0, 0.6, weight.shape))
    given = given or (x,)
    model.save(f"{name}.h5")
    model.save(f"{name}.keras")
    np.savez(f"{name}.npz", *given, y=model(given[0] if len(given) == 1 else list(given)))


def graph(name, build, *given):
    given = given or (x,)
    inputs = [L.Input(one.shape[1:], dtype=one.dtype, name=f"in{place}") for place, one in enumerate(given)]
    keep(name, tf_keras.Model(inputs, build(*inputs)), *given)


def chain(name, *parts, given=x):
    keep(name, tf_keras.Sequential([L.Input(given.shape[1:], dtype=given.dtype), *parts]), given)

"""

HARD = """
hard = "hard_sigmoid"
chain("lstm", L.LSTM(5, recurrent_activation=hard, return_sequences=True, use_bias=False),
      L.LSTM(3, recurrent_activation=hard, unroll=True))
chain("gru", L.GRU(4, recurrent_activation=hard, return_sequences=True),
      L.GRU(3, recurrent_activation=hard, reset_after=False, return_sequences=True),
      L.GRU(3, activation=hard, return_sequences=True), L.GRU(2, activation=hard, recurrent_activation=hard))
chain("simple", L.SimpleRNN(3, activation=hard))
chain("cells", L.RNN([L.LSTMCell(3, recurrent_activation=hard), L.GRUCell(2, recurrent_activation=hard)]))
chain("bidirectional", L.Bidirectional(L.LSTM(3, recurrent_activation=hard, return_sequences=True),
      backward_layer=L.GRU(3, recurrent_activation=hard, return_sequences=True, go_backwards=True)))
chain("dense", L.TimeDistributed(L.Dense(3, activation=hard)), L.Dense(2, activation=hard, use_bias=False))
chain("images", L.Reshape((7, 2, 2, 1)), L.ConvLSTM2D(2, 2), L.Flatten(), L.Dense(2))
chain("conv", L.Conv1D(3, 2, activation=hard), L.Dense(3))
chain("activation", L.Activation(hard), L.TimeDistributed(L.Activation(hard), name="wrapped"), L.Dense(2))
chain("half", L.Dense(3, activation=hard, dtype="float16"), L.Activation("linear", dtype="float32"))


def twice(a, b):
    shared = L.LSTM(3, recurrent_activation=hard, return_sequences=True)
    act = L.Activation(hard, name="act")
    inner = tf_keras.Sequential([L.Input((7, 3)), L.Activation(hard), L.GRU(2, recurrent_activation=hard)])
    return L.Concatenate()([inner(act(shared(a))), inner(shared(b)), L.Flatten()(act(b))])


graph("twice", twice, x, second)
chain("masked", L.Masking(), L.Activation(hard), L.LSTM(2))
chain("state", L.LSTM(3, activation=hard, name="mine"))
"""
HARD_MODELS = (
    *("lstm", "gru", "simple", "cells", "bidirectional", "twice"),
    *("dense", "conv", "images", "activation", "masked", "half"),
)
MASKS = """
for merge in (L.Add, L.Maximum, L.Concatenate):
    graph(f"{merge.__name__}-both", lambda a, b: L.LSTM(3)(merge()([L.Masking()(a), L.Masking()(b)])), x, second)
    graph(f"{merge.__name__}-one", lambda a, b: L.LSTM(3)(merge()([L.Masking()(a), b])), x, second)
graph("time", lambda a, b: L.LSTM(3)(L.Concatenate(axis=1)([L.Masking()(a), L.Masking()(b)])), x, second)
graph("words", lambda i, b: L.LSTM(3)(L.Concatenate()([L.Embedding(6, 4, mask_zero=True)(i), b])), ids, second)


def again(a, b):
    first = L.LSTM(4, return_sequences=True)(L.Concatenate()([L.Masking()(a), b]))
    return L.Bidirectional(L.GRU(3))(L.Dense(3)(L.Add()([first, L.Masking()(b)])))


def decoded(i, b):
    _, *states = L.LSTM(5, return_state=True)(L.Embedding(6, 4, mask_zero=True)(i))
    return L.Dense(3)(L.LSTM(5, return_sequences=True)(L.Masking()(b), initial_state=states))


def weighted(a, b):
    z = L.Add()([L.Masking()(a), b])
    return L.GlobalAveragePooling1D()(L.AdditiveAttention()([z, L.Masking()(b)]))


graph("again", again, x, second)
graph("weighted", weighted, x, second)
graph("decoded", decoded, ids, second)


def outside(a, b):
    left, right = L.Input((7, 4)), L.Input((7, 4))
    return L.LSTM(3)(tf_keras.Model([left, right], L.Add(name="sum")([left, right]))([L.Masking()(a), b]))


def inside(i, b):
    model = tf_keras.Sequential([L.Input((7,), dtype="int32"), L.Embedding(6, 4, mask_zero=True)])
    return L.LSTM(2)(L.Concatenate(name="beside")([model(i), b]))


graph("outside", outside, x, second)
graph("inside", inside, ids, second)
chain("normal", L.Masking(), L.Normalization(mean=0.5, variance=2.0), L.LSTM(3))
chain("reshaped", L.Masking(), L.Reshape((7, 4)), L.LSTM(3))
chain("steps", L.TimeDistributed(L.Embedding(6, 3, mask_zero=True)), L.TimeDistributed(L.LSTM(3)), given=ids[:, None])
"""
USUAL = """
def both_ways(a, b):
    states = L.Bidirectional(L.LSTM(3, return_state=True))(a)[1:]
    return L.Bidirectional(L.LSTM(3))(b, initial_state=states)


def siamese(i, j):
    model = tf_keras.Sequential([L.Input((7,), dtype="int32"), L.Embedding(6, 4, mask_zero=True), L.LSTM(3)])
    return L.Concatenate()([model(i), model(j)])


def two_outputs(a, b):
    left, right = L.Input((7, 4), name="left"), L.Input((7, 4), name="right")
    given = {"left": left, "right": right}
    first, second = tf_keras.Model(given, [L.LSTM(3)(left), L.GRU(3)(right)])({"left": a, "right": b})
    return L.Subtract()([first, second])


def last(a):
    given = L.Input((7, 4))
    return tf_keras.Model(given, L.LSTM(3)(given))(L.Masking()(a))


def hierarchy(i):
    model = tf_keras.Sequential([L.Input((7,), dtype="int32"), L.Embedding(6, 4, mask_zero=True), L.LSTM(3)])
    return L.LSTM(2)(L.TimeDistributed(model)(i))


graph("gru-state", lambda a, b: L.GRU(5)(b, initial_state=L.GRU(5, return_state=True)(a)[1]), x, second)
graph("both-ways", both_ways, x, second)
graph("siamese", siamese, ids, ids[::-1].copy())
graph("two-outputs", two_outputs, x, second)
graph("last", last)
graph("last-chain", lambda a: tf_keras.Sequential([L.Input((7, 4)), L.LSTM(3)])(a))
graph("hierarchy", hierarchy, np.stack([ids, ids[::-1]], 1))
graph("heads", lambda a, b: L.MultiHeadAttention(2, 3)(L.Masking()(a), L.Masking()(b), key=L.Dense(4)(b)), x, second)
graph("attention", lambda a, b: L.Attention()([a, b]), x, second)
graph("spatial", lambda a: L.LSTM(3)(L.SpatialDropout1D(0.2)(L.BatchNormalization()(a))))
chain("separable", L.SeparableConv1D(3, 3), L.DepthwiseConv1D(2), L.Conv1DTranspose(2, 2))
chain("old", L.GRU(3, reset_after=False, use_bias=False))
chain("threshold", L.ThresholdedReLU(0.5), L.Dense(2))
graph("threshold-graph", lambda a: L.ThresholdedReLU(0.5)(a))
graph("operation", lambda a: L.Dense(2)(a * 2))


def stacked(a):
    first, second = (L.RNN([L.LSTMCell(2), L.GRUCell(2)], return_state=True) for _ in range(2))
    return second(a, initial_state=first(a)[1:])[0]


graph("stacked", stacked)
"""
USUAL_MODELS = (
    *("gru-state", "both-ways", "siamese", "two-outputs", "last", "last-chain", "hierarchy"),
    *("heads", "attention", "spatial", "separable"),
)
MERGES = ("Add", "Maximum", "Concatenate")
MASKED = [f"{merge}-{kind}" for merge in MERGES for kind in ("both", "one")] + [
    "time",
    "words",
    "again",
    "weighted",
]
ENDS = ("h5", "keras")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_by_keras_2(BEGIN + HARD + MASKS + USUAL, tmp_path_factory.mktemp("keras2"))


def check_computes_the_same(written: Path, name: str, end: str, *, atol: float = 2e-6) -> keras.Model:
    model, _ = load_model(written / f"{name}.{end}")
    stored = np.load(written / f"{name}.npz")
    given = [stored[key] for key in stored.files if key != "y"]
    found = model.predict_on_batch(given[0] if len(given) == 1 else given)
    np.testing.assert_allclose(found, stored["y"], rtol=1e-5, atol=atol)
    return model


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", HARD_MODELS)
def test_hard_sigmoid_of_keras_2_keeps_its_numbers(written: Path, name: str, end: str) -> None:
    check_computes_the_same(written, name, end, atol=2e-3 if name == "half" else 2e-6)


@pytest.mark.parametrize("end", ENDS)
def test_hard_sigmoid_that_no_weights_make_up_for_is_refused(written: Path, end: str) -> None:
    with pytest.raises(
        ModelError, match=rf"state\.{end} has the layer '\w+' \(LSTM.*activation='hard_sigmoid'.*0\.2 x"
    ):
        load_model(written / f"state.{end}")


@pytest.mark.parametrize("end", ENDS)
def test_hard_sigmoid_of_keras_3_is_left_as_it_is(tmp_path: Path, end: str) -> None:
    model = keras.Sequential(
        [
            keras.Input((7, 4)),
            layers.Activation("hard_sigmoid"),
            layers.LSTM(3, recurrent_activation="hard_sigmoid"),
        ]
    )
    model.save(tmp_path / f"new.{end}")
    loaded, _ = load_model(tmp_path / f"new.{end}")
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in model.layers]
    for found, expected in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_file_that_names_no_version_is_of_keras_2(written: Path, tmp_path: Path) -> None:
    for name in ("lstm.h5", "lstm.npz"):
        (tmp_path / name).write_bytes((written / name).read_bytes())
    with h5py.File(tmp_path / "lstm.h5", "r+") as file:
        del file.attrs["keras_version"]
    check_computes_the_same(tmp_path, "lstm", "h5")


def test_packed_file_of_keras_2_has_its_numbers(written: Path, tmp_path: Path) -> None:
    cellerate.pack(written / "bidirectional.h5", tmp_path / "packed.cell")
    stored = np.load(written / "bidirectional.npz")
    found = cellerate.load(tmp_path / "packed.cell").predict(stored["arr_0"])
    np.testing.assert_allclose(found, stored["y"], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", MASKED)
def test_masks_are_those_of_keras_2(written: Path, tmp_path: Path, name: str, end: str) -> None:
    model = check_computes_the_same(written, name, end)
    # They stay in the files that Keras 3 and Cellerate write.
    stored = np.load(written / f"{name}.npz")
    given = [stored["arr_0"], stored["arr_1"]]
    model.save(tmp_path / "again.keras")
    again = keras.saving.load_model(tmp_path / "again.keras")
    np.testing.assert_allclose(again.predict_on_batch(given), stored["y"], rtol=1e-5, atol=2e-6)
    if name != "time":  # which cannot be packed
        cellerate.pack(written / f"{name}.{end}", tmp_path / "packed.cell")
        found = cellerate.load(tmp_path / "packed.cell").predict({"in0": given[0], "in1": given[1]})
        np.testing.assert_allclose(found, stored["y"], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("normal", r"'normalization\w*' \(Normalization\) dropped the mask"),
        ("outside", r"'sum' \(Add\) got masks from outside of its model"),
        ("inside", r"'beside' \(Concatenate\) read the mask of a nested model"),
        ("reshaped", r"'reshape\w*' \(Reshape\) dropped the mask"),
        ("steps", r"\(TimeDistributed\) masked the steps inside of each step"),
    ],
)
def test_mask_that_keras_3_cannot_compute_is_refused(written: Path, name: str, said: str) -> None:
    with pytest.raises(ModelError, match=rf"{name}\.keras computes other numbers in Keras 3.*{said}"):
        load_model(written / f"{name}.keras")


def test_models_of_keras_3_have_its_masks_after_a_file_of_keras_2_was_read(written: Path) -> None:
    def merged() -> list[str]:
        x = keras.Input((7, 4))
        model = keras.Model(x, layers.LSTM(3)(layers.Add()([layers.Masking()(x), layers.Masking(1.0)(x)])))
        return [type(operation).__name__ for operation in model.operations]

    before = merged()
    load_model(written / "Add-both.keras")
    assert merged() == before and "LogicalOr" in before and "LogicalAnd" not in before


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", USUAL_MODELS)
def test_usual_model_of_keras_2_is_read(written: Path, name: str, end: str) -> None:
    check_computes_the_same(written, name, end)


def test_gru_of_a_file_that_is_older_than_reset_after_has_none(written: Path, tmp_path: Path) -> None:
    for name in ("old.h5", "old.npz"):
        (tmp_path / name).write_bytes((written / name).read_bytes())
    with h5py.File(tmp_path / "old.h5", "r+") as file:
        file.attrs["model_config"] = (
            file.attrs["model_config"]
            .replace('"reset_after": false, ', "")
            .replace(', "reset_after": false', "")
        )
        assert "reset_after" not in file.attrs["model_config"]
    check_computes_the_same(tmp_path, "old", "h5")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("threshold", r"ThresholdedReLU is of Keras 2: write keras\.layers\.ReLU"),
        ("threshold-graph", r"ThresholdedReLU is of Keras 2: write keras\.layers\.ReLU"),
        ("operation", r"TFOpLambda is of Keras 2: write operations between layers.*keras\.ops"),
    ],
)
def test_what_keras_3_cannot_rebuild_is_named(written: Path, name: str, end: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load_model(written / f"{name}.{end}")


@pytest.mark.parametrize("end", ENDS)
def test_whole_file_that_keras_3_cannot_rebuild_is_not_called_damaged(written: Path, end: str) -> None:
    with pytest.raises(
        ModelError, match=r"was written by Keras 2, and Keras 3.* cannot rebuild the model"
    ) as caught:
        load_model(written / f"stacked.{end}")
    assert "damaged" not in str(caught.value) and "not known here" not in str(caught.value)
