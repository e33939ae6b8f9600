"""The changes that `accelerate`, `restore`, `enable` and `disable` make to a model, and the parts they leave alone."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import cellerate
from cellerate.errors import BackendError, ConfigError, ModelError
from cellerate.kernels import native
from cellerate.kernels.lstm.cpu import LSTM
from cellerate.layers import fused
from cellerate.layers.accelerate import accelerate, disable, enable, is_accelerated, restore, restored
from cellerate.layers.explain import explain

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

BACKEND = keras.backend.backend()
B, T, V = 16, 12, 14
# A learnable sequence: each id depends on the one before.
WALK = np.cumsum(np.random.default_rng(0).integers(1, 4, (5 * B, T + 1)), axis=1).astype("int32") % V
IDS, NEXT = WALK[:, :-1], WALK[:, 1:]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    keras.utils.set_random_seed(0)
    yield
    disable()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the arrays passed to each call of the native core; in traced code, one entry a trace."""
    seen: list[list[str]] = []
    run = fused.bridge().run

    def spy(operation: Any, arrays: dict[str, Any], *rest: Any, **named: Any) -> Any:
        if operation is LSTM:
            seen.append(sorted(arrays))
        return run(operation, arrays, *rest, **named)

    monkeypatch.setattr(fused.bridge(), "run", spy)
    return seen


def text_model(**lstm: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(V, 8),
            layers.LSTM(24, return_sequences=True, **lstm),
            layers.Dense(V),
        ]
    )


def compiled(model: keras.Model, optimizer: Any = None, **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(1.0), loss, metrics=["accuracy"], **options)
    return model


def lstm_of(model: keras.Model) -> layers.LSTM:
    return next(layer for layer in model._flatten_layers() if isinstance(layer, layers.LSTM))


def attributes(model: keras.Model) -> dict[str, dict[str, Any]]:
    return {
        layer.name: {n: v for n, v in vars(layer).items() if n not in ("_loss_ids", "_losses", "_called")}
        for layer in model._flatten_layers()
    }


# Properties that stay.


def test_accelerate_keeps_the_weights_and_configuration_of_the_model() -> None:
    model = text_model()
    config, weights = model.get_config(), [id(w) for w in model.weights]
    assert accelerate(model) is model
    assert accelerate(model) is model
    assert is_accelerated(lstm_of(model))
    assert model.get_config() == config
    assert [id(w) for w in model.weights] == weights
    assert type(lstm_of(model)) is layers.LSTM


@pytest.mark.parametrize(
    "undo", [restore, lambda model: accelerate(model, "keras")], ids=["restore", "keras"]
)
def test_restore_brings_back_the_original_layers(undo: Callable[[Any], Any], calls: list[Any]) -> None:
    inner = keras.Sequential([keras.Input((T, 3)), layers.Bidirectional(layers.LSTM(4, activation="relu"))])
    x = keras.Input((T,), dtype="int32")
    model = keras.Model(x, inner(layers.Embedding(V, 3)(x)))
    before = attributes(model)
    accelerate(inner)
    accelerate(accelerate(model))
    assert attributes(model) != before
    assert undo(model) is model
    assert attributes(model) == before
    model(ops.convert_to_tensor(IDS[:2]))
    assert calls == []


def test_restored_runs_keras_code_within_its_block_even_during_fit() -> None:
    model = accelerate(text_model())
    before = attributes(model)
    with pytest.raises(KeyError), restored(model):
        assert not is_accelerated(lstm_of(model))
        raise KeyError
    assert attributes(model) == before

    def use_keras(*_: Any, **__: Any) -> None:
        with restored(model):
            assert not is_accelerated(lstm_of(model))

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=use_keras)
    compiled(model).fit(IDS[:B], NEXT[:B], batch_size=B // 2, callbacks=[callback], verbose=0)
    assert is_accelerated(lstm_of(model))


def test_clone_of_an_accelerated_model_is_plain_keras_with_equal_outputs(calls: list[Any]) -> None:
    model = accelerate(text_model())
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert not is_accelerated(lstm_of(clone))
    expected = clone.predict_on_batch(IDS[:B])
    assert calls == []
    np.testing.assert_allclose(model.predict_on_batch(IDS[:B]), expected, atol=1e-6)
    assert calls


WITHOUT_CELLERATE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "cellerate":
            raise ImportError("cellerate is not here")
sys.meta_path.insert(0, Refuse())
import keras, numpy as np
model = keras.saving.load_model(sys.argv[1])
np.save(sys.argv[3], model.predict(np.load(sys.argv[2]), verbose=0))
assert "cellerate" not in sys.modules
"""


def test_trained_accelerated_model_loads_without_cellerate(tmp_path: Path) -> None:
    model = compiled(accelerate(text_model(recurrent_dropout=0.1)))
    model.fit(IDS, NEXT, batch_size=B, verbose=0)
    model.save(tmp_path / "a.keras")
    np.save(tmp_path / "x.npy", IDS)
    paths = [str(tmp_path / name) for name in ("a.keras", "x.npy", "y.npy")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CELLERATE, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), model.predict(IDS, verbose=0), atol=1e-5)


# Which code runs, and when.


def test_accelerate_after_fit_takes_effect_and_so_does_restore(calls: list[Any]) -> None:
    model = compiled(text_model())
    for step in (lambda: None, lambda: accelerate(model), lambda: restore(model)):
        step()
        del calls[:]
        model.fit(IDS, NEXT, batch_size=B, verbose=0)
        model.predict(IDS, verbose=0)
        assert bool(calls) is is_accelerated(lstm_of(model))


# The engine and Keras draw different random numbers.
@pytest.mark.parametrize(("engine", "dropout"), [("off", 0.2), ("require", 0.0)])
def test_each_entry_point_of_a_model_equals_keras(engine: str, dropout: float) -> None:
    results = []
    for step in (lambda model: model, functools.partial(accelerate, engine=engine)):
        model = step(compiled(text_model(recurrent_dropout=dropout, seed=1)))
        fitted = model.fit(IDS, NEXT, batch_size=B, epochs=2, shuffle=False, validation_split=0.2, verbose=0)
        numbers = [*np.ravel(list(fitted.history.values())), *model.evaluate(IDS, NEXT, B, verbose=0)]
        numbers += [*model.train_on_batch(IDS[:B], NEXT[:B]), *model.test_on_batch(IDS[:B], NEXT[:B])]
        arrays = [model.predict(IDS[:B], verbose=0), model.predict_on_batch(IDS[:B])]
        arrays.append(ops.convert_to_numpy(model(ops.convert_to_tensor(IDS[:B]))))
        results.append((np.array(numbers), np.array(arrays)))
    (numbers, arrays), (our_numbers, our_arrays) = results
    np.testing.assert_allclose(our_numbers, numbers, rtol=1e-4)
    np.testing.assert_allclose(our_arrays, arrays, atol=2e-5)


@pytest.mark.parametrize(
    "options", [{"run_eagerly": True}, {"steps_per_execution": 2}], ids=["eager", "steps"]
)
def test_eager_and_multi_step_training_equals_keras(options: dict[str, Any]) -> None:
    if BACKEND == "torch" and "steps_per_execution" in options:
        pytest.skip("Keras on torch takes one step at a time")
    losses = []
    for step in (lambda model: model, accelerate):
        model = step(compiled(text_model(), **options))
        losses.append(model.fit(IDS[:B], NEXT[:B], batch_size=B // 4, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_model_compiled_with_xla_trains_where_xla_can_call_the_core(calls: list[Any]) -> None:
    if BACKEND == "torch":
        pytest.skip("torch compiles with inductor: tests/bridges/test_lstm.py")
    model = compiled(text_model(activation="relu"), jit_compile=True)
    expected = model.train_on_batch(IDS[:B], NEXT[:B])
    model = compiled(text_model(activation="relu"), jit_compile=True)
    if BACKEND == "tensorflow":
        with pytest.warns(UserWarning, match="jit_compile=False"):
            accelerate(model)
    else:
        accelerate(model)
    assert model.jit_compile is (BACKEND == "jax")
    np.testing.assert_allclose(model.train_on_batch(IDS[:B], NEXT[:B]), expected, rtol=1e-5)
    assert calls
    with restored(model):
        assert model.jit_compile
    assert model.jit_compile is (BACKEND == "jax")
    restore(model)
    assert model.jit_compile and lstm_of(model).supports_jit


@pytest.mark.parametrize("how", ["accelerate", "inside", "enable"])
@pytest.mark.filterwarnings("ignore")
def test_export_runs_keras_code_and_computes_the_same(how: str, tmp_path: Path, calls: list[Any]) -> None:
    if BACKEND == "torch":
        pytest.skip("Keras exports no model at all with this torch")
    import tensorflow as tf

    if how == "enable":
        enable()
    inner = keras.Sequential([keras.Input((T, 3)), layers.LSTM(4)])
    disable()
    x = keras.Input((T, 3))
    model = keras.Model(x, layers.Dense(2)(inner(x)))
    if how != "enable":
        accelerate(model if how == "accelerate" else inner)
    exported = inner if how == "inside" else model
    batch = np.random.default_rng(0).normal(size=(3, T, 3)).astype("float32")
    expected = exported.predict_on_batch(batch)
    del calls[:]
    exported.export(tmp_path / "saved", verbose=False)
    assert calls == [] and is_accelerated(lstm_of(model))
    served = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(served.serve(batch).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_training_curve_equals_keras(policy: str) -> None:
    """TensorFlow takes SGD, because Keras gives Adam there an unsummed Embedding gradient."""
    curves = []
    for step in (lambda model: model, accelerate):
        keras.config.set_dtype_policy(policy)
        try:
            model = text_model()
        finally:
            keras.config.set_dtype_policy("float32")
        adam = keras.optimizers.Adam(0.01)
        step(compiled(model, keras.optimizers.SGD(1.0, 0.9) if BACKEND == "tensorflow" else adam))
        batches = [slice(n % 5 * B, n % 5 * B + B) for n in range(30)]
        curves.append([float(model.train_on_batch(IDS[b], NEXT[b])[0]) for b in batches])
    stock, ours = map(np.array, curves)
    # 1e-2 is less than the 1.3e-2 by which the outputs of a step may differ (tests/support/rounding.py, 17 roundings in
    # each of the two), and a loss of at least one nat differs by less than its outputs.
    np.testing.assert_allclose(ours, stock, rtol=1e-4 if policy == "float32" else 1e-2)
    assert stock[-1] < 0.8 * stock[0]


# enable and disable.


def test_enable_accelerates_created_loaded_and_cloned_models_until_disable(tmp_path: Path) -> None:
    plain, originals = text_model(), (layers.LSTM.__init__, layers.Embedding.__init__)
    plain.save(tmp_path / "a.keras")
    enable()
    enable("cellerate-cpu")
    made = [
        text_model(),
        keras.saving.load_model(tmp_path / "a.keras"),
        keras.models.clone_model(plain),
        keras.Sequential([keras.Input((3, 2)), layers.Bidirectional(layers.LSTM(4))]),
    ]
    assert all(is_accelerated(lstm_of(model)) for model in made)
    assert not is_accelerated(lstm_of(plain))
    assert made[2].get_config() == plain.get_config()
    disable()
    disable()
    assert (layers.LSTM.__init__, layers.Embedding.__init__) == originals
    assert not is_accelerated(lstm_of(text_model()))
    assert is_accelerated(lstm_of(made[0]))
    assert not is_accelerated(lstm_of(restore(made[0])))
    x = ops.convert_to_tensor(IDS[:2])
    made[1].set_weights(plain.get_weights())
    np.testing.assert_allclose(ops.convert_to_numpy(made[1](x)), ops.convert_to_numpy(plain(x)), atol=1e-6)


def test_enable_accelerates_the_other_layers_when_a_model_is_compiled() -> None:
    original = keras.Model.compile
    enable()
    model = keras.Sequential([keras.Input((8, 4)), layers.LSTM(6), layers.Dense(3)])
    plain = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    for one in (model, plain):
        assert "call" not in vars(one.layers[-1])
        one.compile("sgd", "mse")
    disable()
    assert keras.Model.compile is original
    assert "call" in vars(model.layers[-1]) and "call" not in vars(plain.layers[-1])
    model.fit(np.zeros((2, 8, 4)), np.zeros((2, 3)), verbose=0)
    assert "call" not in vars(restore(model).layers[-1])


@pytest.mark.skipif(BACKEND != "torch", reason="the other backends compile a step themselves")
def test_enable_captures_the_training_step_on_a_gpu(gpu: None) -> None:
    enable()
    model = keras.Sequential([keras.Input((8, 4)), layers.LSTM(6), layers.Dense(3)])
    model.compile("sgd", "mse")
    disable()
    planned = "a CUDA graph, once three steps of its shape have run"
    assert explain(model).training_step == planned
    restore(model)
    assert "make_train_function" not in vars(model)


def test_enable_skips_unsupported_layers_and_named_refuses_them() -> None:
    class Mine(layers.LSTM):
        def inner_loop(self, *args: Any, **keywords: Any) -> Any:
            return super().inner_loop(*args, **keywords)

    enable()
    for layer in (layers.LSTM(4, activation="softmax"), Mine(4), layers.GRU(4)):
        assert not is_accelerated(layer)
    enable("cellerate-cpu")
    with pytest.raises(ModelError, match="softmax"):
        layers.LSTM(4, activation="softmax")
    enable("keras")
    assert not is_accelerated(layers.LSTM(4))


# Refusals.

UNFIT: dict[str, tuple[Callable[[], layers.LSTM], str]] = {
    "softmax": (lambda: layers.LSTM(4, activation="softmax"), "activation: softmax"),
    "glu": (lambda: layers.LSTM(4, recurrent_activation="glu"), "recurrent_activation: glu"),
    "function": (lambda: layers.LSTM(4, activation=lambda x: x * ops.sin(x)), "activation: <lambda>"),
    "partial": (lambda: layers.LSTM(4, activation=functools.partial(ops.sin)), "activation: partial"),
    "layer-of-another-dtype": (
        lambda: layers.LSTM(4, layers.ReLU(dtype="bfloat16"), dtype="float32"),
        "activation: relu in bfloat16",
    ),
    "float64": (lambda: layers.LSTM(4, dtype="float64"), "dtype: float64"),
    "cudnn": (lambda: layers.LSTM(4, use_cudnn=True), "use_cudnn=True"),
    "four-masks": (lambda: layers.LSTM(4, dropout=0.1, implementation=1), "implementation=1"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_layer_that_cannot_be_fused_is_left_to_keras_or_refused_by_name(name: str) -> None:
    build, reason = UNFIT[name]
    layer = build()
    assert not is_accelerated(accelerate(layer))
    with pytest.raises(ModelError, match=f"{layer.name}.*{reason}.*implementation=.auto."):
        accelerate(layer, "cellerate-cpu")


GATED: dict[str, Callable[[], list[Any]]] = {
    "gru": lambda: [layers.GRU(4, name="gated")],
    "lstm-and-gru": lambda: [layers.LSTM(4, return_sequences=True), layers.GRU(4, name="gated")],
    "bidirectional": lambda: [layers.Bidirectional(layers.GRU(4, name="gated"))],
}


@pytest.mark.parametrize("name", GATED)
def test_named_implementation_refuses_layers_that_have_no_kernels(name: str) -> None:
    model = keras.Sequential([keras.Input((3, 2)), *GATED[name]()])
    with pytest.raises(
        ModelError, match=r"gated': class: GRU, where Cellerate has kernels for keras.layers.LSTM"
    ):
        accelerate(model, "cellerate-cpu")
    assert not any(is_accelerated(layer) for layer in model._flatten_layers())
    assert "Cellerate has no kernels for GRU: it stays with Keras" in str(explain(accelerate(model)))


def test_named_implementation_refuses_a_model_without_recurrent_layers() -> None:
    model = keras.Sequential([keras.Input((3, 2)), layers.Dense(2)], name="plain")
    with pytest.raises(
        ModelError, match="'plain' has no recurrent layers, so cellerate-cpu has nothing to run"
    ):
        accelerate(model, "cellerate-cpu")
    assert accelerate(model) is model


def test_refusal_of_a_named_implementation_names_every_layer() -> None:
    chain = [
        layers.LSTM(4, activation="softmax", return_sequences=True, name="one"),
        layers.GRU(4, name="two"),
    ]
    with pytest.raises(
        ModelError, match=r"layers 'one': activation: softmax; 'two': class: GRU.*implementation=.auto."
    ):
        accelerate(keras.Sequential([keras.Input((3, 2)), *chain]), "cellerate-cpu")


def test_refusal_keeps_an_accelerated_model_accelerated() -> None:
    good, bad = layers.LSTM(4, return_sequences=True), layers.LSTM(4, activation="softmax")
    model = accelerate(keras.Sequential([keras.Input((3, 2)), good, bad]))
    with pytest.raises(ModelError, match=bad.name):
        accelerate(model, "cellerate-cpu")
    assert is_accelerated(good) and not is_accelerated(bad)


def test_unrolled_lstm_by_name_is_refused_when_called_with_a_mask() -> None:
    layer = accelerate(layers.LSTM(4, unroll=True), "cellerate-cpu")
    x = ops.ones((2, 3, 2))
    assert tuple(layer(x).shape) == (2, 4)
    with pytest.raises(ModelError, match="unroll=True with a mask"):
        layer(x, mask=ops.ones((2, 3), dtype="bool"))


def test_wrong_arguments_are_refused() -> None:
    model = text_model()
    for function in (functools.partial(accelerate, model), enable):
        with pytest.raises(ConfigError, match="auto, cellerate-cpu, cellerate-cuda, keras, not 'cuda'"):
            function("cuda")
    for function in (accelerate, restore):
        with pytest.raises(ModelError, match=r"got str.*load_model"):
            function("model.keras")  # type: ignore[type-var]
    for count in (0, -1, 1025, True, 2.0, "2", None):
        with pytest.raises(ConfigError, match="count: expected a"):
            cellerate.set_num_threads(count)  # type: ignore[arg-type]


def test_any_number_of_threads_gives_the_same_bits_for_a_small_batch() -> None:
    model, before = accelerate(text_model()), native.num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            cellerate.set_num_threads(count)
            assert native.num_threads() == count
            results.append(model.predict_on_batch(IDS[:B]))
    finally:
        cellerate.set_num_threads(before)
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], atol=1e-6)


def test_without_the_native_core_keras_runs_and_everything_says_so(
    monkeypatch: pytest.MonkeyPatch, calls: list[Any]
) -> None:
    monkeypatch.setattr(native, "why_unavailable", lambda: "the native core is not installed (test)")
    model = compiled(text_model())
    for use in (lambda name: accelerate(model, name), enable):
        use("auto")
        with pytest.raises(BackendError, match="not installed"):
            use("cellerate-cpu")
    assert not is_accelerated(lstm_of(model)) and not is_accelerated(layers.LSTM(4))
    model.fit(IDS, NEXT, batch_size=B, verbose=0)
    assert calls == []
    (report,) = explain(model).layers
    assert report.implementation == "keras"
    assert "not installed" in str(explain(model))


def test_core_without_vector_instructions_runs_where_keras_is_not_faster_or_by_name(
    calls: list[Any],
) -> None:
    model, before = compiled(text_model()), native.target()
    try:
        native.set_target("scalar")
        accelerate(model)
        assert is_accelerated(lstm_of(model)) == (BACKEND == "torch")
        accelerate(model, "cellerate-cpu")
        assert is_accelerated(lstm_of(model))
        model.predict_on_batch(IDS[:B])
        assert calls
        restore(model)
        told = str(explain(model))
        assert ("Keras's own code is faster" in told) == (BACKEND != "torch")
    finally:
        native.set_target(before)
    assert "vector instructions" not in str(explain(accelerate(model)))


def test_explanation_of_an_accelerated_model_is_plain_json() -> None:
    json.dumps(explain(accelerate(text_model())).to_dict())
