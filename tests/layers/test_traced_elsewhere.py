"""An accelerated model where the native core cannot run: in XLA, in a SavedModel and in LiteRT."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.errors import ModelError
from cellerate.layers import fused
from cellerate.layers.accelerate import accelerate, restore
from cellerate.layers.explain import explain

BACKEND = keras.backend.backend()
pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's own"),
    # TensorFlow's converter and loader warn.
    pytest.mark.filterwarnings("ignore"),
]
V, T = 20, 10
IDS = np.random.default_rng(0).integers(0, V, (4, T)).astype("int32")


def build(implementation: str = "auto") -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((T,), dtype="int32"),
            layers.Embedding(V, 8),
            layers.Bidirectional(layers.LSTM(16, return_sequences=True)),
            layers.LSTM(16, return_sequences=True),
            # Large enough for the native core.
            layers.Dense(2000),
        ]
    )
    return accelerate(model, implementation)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operations called on the native core; in traced code, one entry a trace."""
    seen: list[Any] = []
    run = fused.bridge().run

    def spy(operation: Any, *rest: Any, **named: Any) -> Any:
        seen.append(operation.name)
        return run(operation, *rest, **named)

    monkeypatch.setattr(fused.bridge(), "run", spy)
    return seen


def stock() -> np.ndarray:
    return np.asarray(build("keras")(IDS))


def saved(model: Any, folder: Path, **options: Any) -> np.ndarray:
    import tensorflow as tf

    tf.saved_model.save(model, str(folder), **options)
    (found,) = tf.saved_model.load(str(folder)).signatures["serving_default"](tf.constant(IDS)).values()
    return found.numpy()


def function_of(model: keras.Model, **options: Any) -> Any:
    import tensorflow as tf

    return tf.function(lambda ids: model(ids), **options)


def spec() -> Any:
    import tensorflow as tf

    return tf.TensorSpec(IDS.shape, tf.int32)


def test_saved_model_of_an_accelerated_model_gives_the_results_of_keras(
    tmp_path: Path, calls: list[Any]
) -> None:
    model = build()
    np.testing.assert_allclose(saved(model, tmp_path), stock(), atol=1e-6)
    assert calls == []
    model(IDS)
    assert "lstm" in calls and "dense" in calls


def test_saved_model_after_training_and_after_a_call_gives_the_results_of_keras(tmp_path: Path) -> None:
    import tensorflow as tf

    model = build()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.train_on_batch(IDS, IDS)
    holder = tf.Module()
    holder.model, holder.run = model, function_of(model)
    expected = holder.run(tf.constant(IDS)).numpy()
    np.testing.assert_allclose(saved(model, tmp_path / "model"), expected, atol=1e-6)
    tf.saved_model.save(holder, str(tmp_path / "module"))
    loaded = tf.saved_model.load(str(tmp_path / "module"))
    np.testing.assert_allclose(loaded.run(tf.constant(IDS)).numpy(), expected, atol=1e-6)


def test_saved_model_of_a_function_traced_on_the_core_is_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    model = build()
    function = function_of(model)
    function(tf.constant(IDS))
    signature = function.get_concrete_function(spec())
    with pytest.raises(ValueError, match=r"new tf\.function.*cellerate\.restore\(model\)"):
        saved(model, tmp_path, signatures=signature)
    with pytest.raises(Exception, match=r"cellerate\.restore\(model\) first"):
        tf.lite.TFLiteConverter.from_concrete_functions([signature], model).convert()
    restore(model)
    signature = function_of(model).get_concrete_function(spec())
    np.testing.assert_allclose(saved(model, tmp_path, signatures=signature), stock(), atol=1e-6)


@pytest.mark.parametrize("way", ["from_keras_model", "from_saved_model", "from_concrete_functions"])
def test_conversion_of_an_accelerated_model_uses_the_layers_of_keras(
    way: str, tmp_path: Path, calls: list[Any]
) -> None:
    import tensorflow as tf

    model = build()
    if way == "from_saved_model":
        tf.saved_model.save(model, str(tmp_path))
    given: dict[str, Callable[[], Any]] = {
        "from_keras_model": lambda: [model],
        "from_saved_model": lambda: [str(tmp_path)],
        "from_concrete_functions": lambda: [[function_of(model).get_concrete_function(spec())], model],
    }
    converter = getattr(tf.lite.TFLiteConverter, way)(*given[way]())
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    converter._experimental_lower_tensor_list_ops = False
    assert b"PyFunc" not in converter.convert()
    assert calls == []


def test_function_compiled_by_xla_has_the_outputs_and_gradients_of_keras(calls: list[Any]) -> None:
    import tensorflow as tf

    def gradients(model: keras.Model) -> list[np.ndarray]:
        def compute(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(ids, training=True) ** 2)
            return [loss, *tape.gradient(loss, model.trainable_variables)]

        # The gradient of an Embedding comes as IndexedSlices.
        found = tf.function(compute, jit_compile=True)(tf.constant(IDS))
        return [np.asarray(tf.convert_to_tensor(one)) for one in found]

    model = build()
    np.testing.assert_allclose(function_of(model, jit_compile=True)(tf.constant(IDS)), stock(), atol=1e-6)
    found, expected = gradients(model), gradients(build("keras"))
    assert calls == []
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-5, atol=1e-9)
    # The same model on the core, in a function that XLA does not compile.
    function_of(model)(tf.constant(IDS))
    assert "lstm" in calls


def test_compiling_a_function_traced_on_the_core_with_xla_says_how_to_fix_it() -> None:
    import tensorflow as tf

    function = function_of(build())
    function(tf.constant(IDS))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"restore_the_model_or_make_a_new_tf\.function"):
        tf.function(lambda ids: function(ids), jit_compile=True)(tf.constant(IDS))


@pytest.mark.parametrize("way", ["XLA", "file"])
def test_named_implementation_is_refused_where_it_cannot_run(way: str) -> None:
    import tensorflow as tf

    model = build("cellerate-cpu")
    with pytest.raises(
        ModelError, match=r"cannot run on cellerate-cpu: (XLA compiles|.*traced for a SavedModel)"
    ):
        if way == "XLA":
            function_of(model, jit_compile=True, autograph=False)(tf.constant(IDS))
        else:
            function_of(model, autograph=False).get_concrete_function(spec())
    function_of(model)(tf.constant(IDS))


def test_explain_says_what_runs_in_xla_and_in_files() -> None:
    for implementation, said in (("auto", "Keras's own code"), ("cellerate-cpu", "refused")):
        for report in explain(build(implementation)).layers:
            assert report.wrapper or any(
                c.name == "XLA or a file" and c.holds is None and c.found.endswith(said)
                for c in report.conditions
            )
