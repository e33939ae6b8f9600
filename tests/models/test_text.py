import re

import keras
import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.models.text import build_text_model, layer_seeds

pytestmark = [
    pytest.mark.keras,
    # Keras 3.15 variables have the __array__ of NumPy 1; saving and reading weights meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

IDS = np.random.default_rng(0).integers(0, 11, (3, 7)).astype("int32")


def run(model: keras.Model, ids: np.ndarray = IDS) -> np.ndarray:
    return np.asarray(model.predict(ids, verbose=0))


def call(model: keras.Model, ids: np.ndarray = IDS, **arguments: object) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(model(ids, **arguments)))


def small(**arguments: object) -> keras.Model:
    return build_text_model(11, **{"embedding": 5, "units": 6, "seed": 3, **arguments})


@pytest.mark.backends
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"units": (6, 4), "layer_norm": True, "dropout": 0.2, "recurrent_dropout": 0.1},
        {"tie_weights": True},
        {"cell": "gru", "layers": 2, "recurrent_dropout": 0.1},
        {"tie_weights": True, "units": 5, "dtype_policy": "mixed_bfloat16"},
    ],
    ids=["plain", "deep", "tied-projection", "grus", "tied-direct-bf16"],
)
def test_text_model_saved_and_loaded_in_safe_mode_gives_the_same_float32_logits(arguments, tmp_path):
    model = small(**arguments)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)

    expected = run(model)
    assert expected.shape == (3, 7, 11)
    assert model.output.dtype == loaded.output.dtype == "float32"
    np.testing.assert_array_equal(run(loaded), expected)
    assert all(type(layer).__module__.startswith("keras.") for layer in loaded.layers)


def test_text_model_next_token_logits_do_not_depend_on_later_tokens():
    model = small()
    changed = IDS.copy()
    changed[:, 4:] = (changed[:, 4:] + 1) % 11
    before, after = run(model), run(model, changed)
    np.testing.assert_allclose(before[:, :4], after[:, :4], atol=1e-6)
    assert np.abs(before[:, 4:] - after[:, 4:]).max() > 1e-4


def test_text_model_same_seed_gives_the_same_weights_and_another_seed_does_not():
    first, again, other = small(layers=2), small(layers=2), small(layers=2, seed=4)
    for a, b in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first.get_weights()[0], other.get_weights()[0])


def test_text_model_layers_of_equal_shape_start_with_different_weights():
    model = small(units=5, layers=2)
    first, second = model.get_layer("lstm_1"), model.get_layer("lstm_2")
    for a, b in zip(first.get_weights()[:2], second.get_weights()[:2], strict=True):
        assert a.shape == b.shape
        assert not np.allclose(a, b)


@pytest.mark.backends
def test_text_model_with_dropout_and_seed_drops_the_same_twice():
    first, again = (call(small(dropout=0.5, recurrent_dropout=0.2), training=True) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - call(small())).max() > 1e-4


def test_tied_text_model_has_one_table_for_both_ends_and_no_head():
    tied, untied = small(tie_weights=True, units=5), small(units=5)
    assert untied.count_params() - tied.count_params() == 5 * 11 + 11
    table = tied.get_layer("embedding")
    table.set_weights([np.zeros((11, 5), "float32")])
    assert not run(tied).any()


def test_tied_text_model_of_other_width_projects_to_the_embedding():
    assert small(tie_weights=True, units=8).get_layer("projection").units == 5


def test_text_model_layer_norm_stands_after_every_layer_even_a_single_one():
    names = [layer.name for layer in small(layer_norm=True, layers=2).layers]
    assert [n for n in names if n.startswith("norm")] == ["norm_1", "norm_2"]
    assert "norm_1" in [layer.name for layer in small(layer_norm=True).layers]


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("lstm", keras.layers.LSTM),
        ("gru", keras.layers.GRU),
        ("simple_rnn", keras.layers.SimpleRNN),
    ],
)
def test_text_model_has_layers_of_its_cell_which_start_with_different_weights(cell, kind):
    model = small(cell=cell, layers=2, embedding=6)
    found = [layer for layer in model.layers if isinstance(layer, keras.layers.RNN)]
    assert [(type(layer), layer.name) for layer in found] == [(kind, f"{cell}_1"), (kind, f"{cell}_2")]
    first, second = (layer.get_weights() for layer in found)
    assert not np.allclose(first[0], second[0])
    assert not np.allclose(first[1], second[1])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"embedding": 0}, "embedding"),
        ({"embedding": True}, "embedding"),
        ({"units": -1}, "units"),
        ({"units": (6, 0)}, "units"),
        ({"units": ()}, "units"),
        ({"units": 2.5}, "units"),
        ({"units": (6, 6), "layers": 3}, "units has 2 entries"),
        ({"layers": 0}, "layers"),
        ({"cell": "LSTM"}, "cell must be one of"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"dropout": float("nan")}, "dropout"),
        ({"recurrent_dropout": "a"}, "recurrent_dropout"),
        ({"dtype_policy": "float99"}, "float99"),
        ({"dtype_policy": "bfloat16"}, "mixed_bfloat16"),
        ({"dtype_policy": "int8_from_float32"}, "int8_from_float32"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
    ],
)
def test_text_model_with_a_bad_argument_raises_config_error_naming_it(arguments, named):
    with pytest.raises(ConfigError, match=re.escape(named)):
        small(**arguments)


def test_text_model_with_no_vocabulary_raises_config_error():
    with pytest.raises(ConfigError, match="vocabulary_size"):
        build_text_model(0)


def test_layer_seeds_never_repeat_within_a_model():
    seeds = layer_seeds(7)
    drawn = [next(seeds) for _ in range(1000)]
    assert len(set(drawn)) == 1000
