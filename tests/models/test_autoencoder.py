import keras
import numpy as np
import pytest

from cellerate.errors import ConfigError, ModelError
from cellerate.models.autoencoder import build_autoencoder, encoder_and_decoder, stepwise_decoder

pytestmark = [
    pytest.mark.keras,
    # Keras 3.15 variables have the __array__ of NumPy 1; saving and reading weights meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

LINES = [[4, 5, 6], [7, 8, 9, 10, 4, 4], [12, 11, 4], [12, 4, 11, 10, 9, 6]]
TARGET_IN = np.random.default_rng(0).integers(1, 13, (4, 7)).astype("int32")


def padded(length: int, side: str) -> np.ndarray:
    rows = np.zeros((len(LINES), length), "int32")
    for row, line in zip(rows, LINES, strict=True):
        if side == "right":
            row[: len(line)] = line
        else:
            row[length - len(line) :] = line
    return rows


def small(**arguments: object) -> keras.Model:
    return build_autoencoder(13, **{"embedding": 5, "units": 6, "latent": 4, "seed": 2, **arguments})


def run(model: keras.Model, inputs: object) -> np.ndarray:
    return np.asarray(model.predict(inputs, verbose=0))


def test_autoencoder_vector_is_the_same_for_any_side_and_amount_of_padding():
    encode, _ = encoder_and_decoder(small())
    expected = np.empty((4, 4), "float32")
    for rows in ([0, 2], [1, 3]):  # of one length each, so without padding
        expected[rows] = run(encode, np.array([LINES[row] for row in rows], "int32"))
    assert np.abs(expected[0] - expected[2]).max() > 1e-3
    for side in ("right", "left"):
        np.testing.assert_allclose(run(encode, padded(17, side)), expected, atol=1e-5)


def test_autoencoder_vector_of_an_empty_line_is_finite():
    encode, _ = encoder_and_decoder(small())
    assert np.isfinite(run(encode, np.zeros((2, 5), "int32"))).all()


@pytest.mark.backends
def test_autoencoder_saved_and_loaded_in_safe_mode_gives_the_same_float32_results(tmp_path):
    model = small(dtype_policy="mixed_bfloat16", dropout=0.1, decoder_dropout=0.2)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    inputs = {"source": padded(6, "right"), "target_in": TARGET_IN}
    expected = run(model, inputs)
    assert expected.shape == (4, 7, 13)
    np.testing.assert_array_equal(run(loaded, inputs), expected)
    assert loaded.output.dtype == encoder_and_decoder(loaded)[0].output.dtype == "float32"


def test_autoencoder_parts_one_after_the_other_equal_the_whole():
    model = small()
    encode, decode = encoder_and_decoder(model)
    source = padded(6, "right")
    parts = run(decode, [run(encode, source), TARGET_IN])
    np.testing.assert_allclose(parts, run(model, {"source": source, "target_in": TARGET_IN}), atol=1e-5)


def test_autoencoder_logits_do_not_depend_on_later_target_ids_nor_on_their_padding():
    model = small()
    source = padded(6, "right")
    whole = run(model, {"source": source, "target_in": TARGET_IN})
    prefix = run(model, {"source": source, "target_in": TARGET_IN[:, :3]})
    filled = np.concatenate([TARGET_IN[:, :3], np.zeros((4, 9), "int32")], axis=1)
    np.testing.assert_allclose(prefix, whole[:, :3], atol=1e-5)
    np.testing.assert_allclose(run(model, {"source": source, "target_in": filled})[:, :3], prefix, atol=1e-5)


def test_autoencoder_logits_depend_on_the_line_through_the_vector():
    model = small()
    one = run(model, {"source": padded(6, "right"), "target_in": TARGET_IN})
    other = run(model, {"source": padded(6, "right")[::-1].copy(), "target_in": TARGET_IN})
    assert np.abs(one - other).max() > 1e-4


def test_autoencoder_decoder_dropout_while_training_hides_whole_characters():
    layer = encoder_and_decoder(small(decoder_dropout=0.5))[1].get_layer("character_dropout")
    seen = keras.ops.convert_to_numpy(layer(np.ones((8, 20, 5), "float32"), training=True))
    assert (seen.min(axis=-1) == seen.max(axis=-1)).all()
    assert 0.3 < (seen[..., 0] == 0).mean() < 0.7


def test_autoencoder_same_seed_gives_the_same_weights_and_no_two_tables_are_equal():
    first, again = small().get_weights(), small().get_weights()
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    tables = [w for w in first if w.shape == (13, 5)]
    assert len(tables) == 2
    assert not np.allclose(*tables)


@pytest.mark.backends
def test_autoencoder_trained_on_four_lines_reproduces_them():
    model = small(units=32, latent=16, embedding=16)
    target = np.concatenate([padded(6, "right"), np.zeros((4, 1), "int32")], axis=1)
    for row, line in zip(target, LINES, strict=True):
        row[len(line)] = 2
    target_in = np.concatenate([np.ones((4, 1), "int32"), target[:, :-1]], axis=1)
    weight = (target != 0).astype("float32")
    inputs = {"source": padded(6, "right"), "target_in": target_in}
    model.compile(keras.optimizers.Adam(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(inputs, target, sample_weight=weight, epochs=30, batch_size=4, verbose=0)
    found = run(model, inputs).argmax(-1)
    assert (found == target)[weight > 0].all()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"embedding": 0}, "embedding"),
        ({"units": 0}, "units"),
        ({"units": (3, 3)}, "units"),
        ({"latent": -2}, "latent"),
        ({"dropout": 1.0}, "dropout"),
        ({"decoder_dropout": 1.5}, "decoder_dropout"),
    ],
)
def test_autoencoder_with_a_bad_argument_raises_config_error_naming_it(arguments, named):
    with pytest.raises(ConfigError, match=named):
        small(**arguments)


def test_encoder_and_decoder_of_another_model_raises_model_error_with_what_to_do():
    tensor = keras.Input((3,))
    with pytest.raises(ModelError, match="cellerate train embed"):
        encoder_and_decoder(keras.Model(tensor, keras.layers.Dense(2)(tensor)))


def test_stepwise_decoder_a_character_at_a_time_gives_the_logits_of_the_whole_decoder():
    _, decode = encoder_and_decoder(small(dropout=0.3, decoder_dropout=0.3))
    vectors = np.random.default_rng(1).normal(size=(4, 4)).astype("float32")
    expected = run(decode, [vectors, TARGET_IN])
    start, step = stepwise_decoder(decode)
    state = start.predict(vectors, verbose=0)
    for place in range(TARGET_IN.shape[1]):
        logits, *state = step.predict([TARGET_IN[:, place : place + 1], *state], verbose=0)
        np.testing.assert_allclose(logits, expected[:, place], atol=1e-5)


def test_stepwise_decoder_of_another_model_raises_model_error():
    tensor = keras.Input((3,))
    with pytest.raises(ModelError, match="cannot be stepped"):
        stepwise_decoder(keras.Model(tensor, keras.layers.Dense(2)(tensor)))
