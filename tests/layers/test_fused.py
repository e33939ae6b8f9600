"""An accelerated LSTM must compute what Keras's own code computes: outputs, states and every gradient.

Each test builds a model, measures it as Keras runs it, accelerates that very model and measures it again.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from cellerate.kernels.dense import DENSE
from cellerate.layers import cudnn_choice, fused
from cellerate.layers.accelerate import accelerate, implementation_of, is_accelerated
from support.activation_names import IN_FILES, in_keras

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

BACKEND = keras.backend.backend()
FEW_ACTIVATIONS = ("tanh", "relu", "gelu", "exponential", "hard_sigmoid")
# The kernels for GPUs run on an emulated one, for which each kind of layer is compiled anew. All tests on both would
# take minutes, so `make test` runs those on the GPU that are marked `quick_on_gpu`: at least one of each variant.
IMPLEMENTATIONS = ["cellerate-cpu"] if BACKEND == "tensorflow" else ["cellerate-cpu", "cellerate-cuda"]
B, T, F, D, H, V = 6, 7, 4, 5, 9, 11  # batch, steps, features, inputs, units, rows of an Embedding
# The floors of the design, as shares of the RMS: of outputs and states, and of gradients.
FLOORS = {"float32": (1e-6, 5e-6), "bfloat16": (5e-3, 2e-2), "float16": (1e-3, 5e-3)}
QUICK = pytest.mark.quick_on_gpu
Measured = dict[str, np.ndarray]
Build = Callable[[], keras.Model]
# A row for each way to pad; the last one counts whole.
MASK = np.array(
    [
        [1, 1, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 1, 1],
        [1, 1, 0, 0, 0, 1, 1],
        [0, 1, 0, 1, 1, 0, 1],
        [0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1],
    ],
    bool,
)
IDS = np.random.default_rng(3).integers(1, V, (B, T)).astype("int32") * MASK


@pytest.fixture(autouse=True)
def seeded() -> None:
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one that `accelerate` finds."""
    if request.param == "cellerate-cuda":
        request.getfixturevalue("gpu")
        # Beside an emulated GPU cuDNN would always win.
        monkeypatch.setattr(cudnn_choice, "cudnn_is_faster", lambda *_: False)
    return request.param


def data(mask: np.ndarray = MASK) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=(B, T, F)).astype("float32"), rng.normal(size=(B, 3)).astype("float32"), mask]


def model_of(plain: Any = None, masked: Any = None, *, states: int = 0, steps: int | None = T) -> keras.Model:
    """x → Dense → two layers, one without and one with a mask → their outputs.

    The initial states come from a Dense as well, so that whatever has a gradient is before a weight.
    """
    x, s = keras.Input((steps, F), name="x"), keras.Input((3,), name="s")
    mask = keras.Input((steps,), name="mask", dtype="bool")
    dense = layers.Dense(D)(x)
    outputs: list[Any] = []
    for layer, given in ((plain, {}), (masked, {"mask": mask})):
        if layer is not None:
            initial = [layers.Dense(H, activation="tanh")(s) for _ in range(states)]
            given = given | ({"initial_state": initial} if initial else {})
            outputs += keras.tree.flatten(layer(dense, **given))
    return keras.Model([x, s, mask], outputs)


def text_model(*recurrent: layers.Layer, rows: int = V, **embedding: Any) -> keras.Model:
    ids = keras.Input((T,), dtype="int32")
    x = layers.Embedding(rows, D, **embedding)(ids)
    for layer in recurrent:
        x = layer(x)
    return keras.Model(ids, x)


def measure(model: keras.Model, inputs: Any, *, training: bool = False) -> Measured:
    """What the model returns, and the gradient of each weight for one random cotangent of all outputs."""
    floatx = keras.config.floatx()
    inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
    variables, others = model.trainable_variables, model.non_trainable_variables
    # Random generators are among the others, and go on with each call.
    before = [(v, ops.convert_to_numpy(v.value)) for v in others]

    def loss_of(outputs: list[Any]) -> Any:
        rng = np.random.default_rng(2)
        weights = [ops.convert_to_tensor(rng.normal(size=tuple(y.shape)).astype(floatx)) for y in outputs]
        return sum(ops.sum(ops.cast(y, floatx) * w) for y, w in zip(outputs, weights, strict=True))

    if BACKEND == "jax":
        import jax

        @jax.jit
        def run(trained: Any, fixed: Any, inputs: Any) -> Any:
            def loss(trained: Any) -> tuple[Any, Any]:
                outputs, _ = model.stateless_call(trained, fixed, inputs, training=training)
                outputs = keras.tree.flatten(outputs)
                return loss_of(outputs), outputs

            return jax.grad(loss, has_aux=True)(trained)

        gradients, outputs = run([v.value for v in variables], [v.value for v in others], inputs)
    elif BACKEND == "torch":
        outputs = keras.tree.flatten(model(inputs, training=training))
        loss_of(outputs).backward()
        gradients = [v.value.grad for v in variables]
        for v in variables:
            v.value.grad = None
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(model(inputs, training=training))
            loss = loss_of(outputs)
        gradients = tape.gradient(loss, [v.value for v in variables])
    for variable, value in before:
        variable.assign(value)
    named = {f"output {n}": y for n, y in enumerate(outputs)}
    named |= {
        f"gradient {n} of {v.name}": g for n, (v, g) in enumerate(zip(variables, gradients, strict=True))
    }
    return {
        n: ops.convert_to_numpy(ops.cast(ops.convert_to_tensor(a), floatx))
        for n, a in named.items()
        if a is not None
    }


def rms(a: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.asarray(a, np.float64) ** 2)))


def assert_close(
    ours: Measured, stock: Measured, truth: Callable[[], Measured] | None = None, *, dtype: str = "float32"
) -> None:
    """Ours may err by twice what Keras errs and the floor. What is within the floor of Keras always does not."""
    assert ours.keys() == stock.keys()
    true = None
    for name, expected in stock.items():
        assert ours[name].shape == expected.shape, name
        floor = FLOORS[dtype]["gradient" in name]
        allowed, error = floor * rms(expected), rms(ours[name] - expected)
        if error > allowed and truth is not None:
            true = true or truth()
            allowed = 2 * rms(expected - true[name]) + floor * rms(true[name])
            error = rms(ours[name] - true[name])
        assert error <= allowed, f"{name}: an error of {error:.2e}, {allowed:.2e} allowed"


@contextlib.contextmanager
def policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy(), keras.config.floatx()
    keras.config.set_dtype_policy(name)
    if name == "float64":
        keras.config.set_floatx(name)
    try:
        with contextlib.ExitStack() as stack:
            if name == "float64" and BACKEND == "jax":
                import jax

                stack.enter_context(jax.enable_x64(True))
            yield
    finally:
        keras.config.set_dtype_policy(before[0])
        keras.config.set_floatx(before[1])


def quick(names: Iterable[Any], *chosen: Any) -> list[Any]:
    """The values of a parameter, of which the chosen ones are quick on the GPU."""
    names = list(names)
    assert set(chosen) <= set(names)
    return [pytest.param(name, marks=QUICK if name in chosen else []) for name in names]


def lstms(model: keras.Model) -> list[layers.LSTM]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, layers.LSTM)]


def assert_accelerated_equals(
    build: Build, inputs: Any, *, training: bool = False, dtype: str = "float32"
) -> keras.Model:
    """Returns the model, accelerated."""
    model = build()

    def truth() -> Measured:
        with policy("float64"):
            exact = build()
            exact.set_weights([np.asarray(w, "float64") for w in model.get_weights()])
            return measure(exact, inputs)

    stock = measure(model, inputs, training=training)
    accelerate(model)
    assert {implementation_of(layer) for layer in lstms(model)} == {fused.implementation_here()}
    ours = measure(model, inputs, training=training)
    # In float64 other dropout masks are drawn, so there Keras itself is all there is to compare with.
    assert_close(ours, stock, None if training else truth, dtype=dtype)
    return model


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, implementation: str) -> list[list[str]]:
    """The names of the arrays that each call of the kernels was given."""
    seen: list[list[str]] = []
    name = "cuda_lstm" if implementation == "cellerate-cuda" else "run"
    run = getattr(fused.bridge(), name)

    def spy(*given: Any, **named: Any) -> Any:
        if given[0] is not DENSE:
            seen.append(sorted(next(one for one in given if isinstance(one, dict))))
        return run(*given, **named)

    monkeypatch.setattr(fused.bridge(), name, spy)
    return seen


@QUICK
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("states", [0, 2], ids=["zeros", "states"])
@pytest.mark.parametrize("sequences", [False, True], ids=["last", "sequences"])
def test_lstm_of_each_form_equals_keras(sequences: bool, states: int, backwards: bool) -> None:
    def lstm() -> layers.LSTM:
        return layers.LSTM(H, return_sequences=sequences, return_state=states > 0, go_backwards=backwards)

    assert_accelerated_equals(lambda: model_of(lstm(), lstm(), states=states), data())


VARIANTS: dict[str, dict[str, Any]] = {
    "no-bias": {"use_bias": False, "return_sequences": True},
    "zero-output": {"zero_output_for_mask": True, "return_sequences": True, "go_backwards": True},
    "zero-output-last": {"zero_output_for_mask": True, "return_state": True},
    "implementation-1": {"implementation": 1},
    "no-cudnn": {"use_cudnn": False},
    "regularized": {"kernel_regularizer": "l2", "activity_regularizer": "l2", "kernel_constraint": "non_neg"},
    "dropout": {"dropout": 0.4, "seed": 1, "return_sequences": True},
    "recurrent-dropout": {"recurrent_dropout": 0.4, "seed": 1, "return_sequences": True},
    "dropouts": {"dropout": 0.3, "recurrent_dropout": 0.4, "seed": 1, "go_backwards": True},
}


@pytest.mark.parametrize("name", quick(VARIANTS, "no-bias", "zero-output", "dropout", "dropouts"))
def test_lstm_of_each_variant_equals_keras(name: str) -> None:
    def build() -> keras.Model:
        return model_of(layers.LSTM(H, **VARIANTS[name]), layers.LSTM(H, **VARIANTS[name]), states=2)

    assert_accelerated_equals(build, data(), training="dropout" in name)


def test_lstm_with_dropout_draws_anew_in_training_and_not_at_all_in_inference() -> None:
    model = assert_accelerated_equals(
        lambda: model_of(layers.LSTM(H, dropout=0.3, recurrent_dropout=0.3), layers.LSTM(H, dropout=0.3)),
        data(),
    )
    inputs = [ops.convert_to_tensor(a) for a in data()]
    for training in (True, False):
        first, second = (ops.convert_to_numpy(model(inputs, training=training)[0]) for _ in range(2))
        assert np.array_equal(first, second) is not training


# torch, which compiles nothing, tries them all; elsewhere most are for `make test-slow`.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if BACKEND == "torch" or name in FEW_ACTIVATIONS else pytest.mark.slow)
        for name in IN_FILES
    ],
)
def test_lstm_of_each_activation_equals_keras(name: str) -> None:
    # Small weights, so that none runs away.
    random, grows = keras.initializers, name == "exponential"
    options = {
        "kernel_initializer": random.RandomNormal(stddev=0.05 if grows else 0.3, seed=1),
        "recurrent_initializer": random.RandomNormal(stddev=0.1, seed=2),
        "bias_initializer": random.RandomUniform(-1.5, -1.0 if grows else 1.5, seed=3),
        "unit_forget_bias": False,
    }

    def build() -> keras.Model:
        function = in_keras(name)
        gates = layers.LSTM(H, recurrent_activation=function, **options)
        return model_of(layers.LSTM(H, function, **options), gates)

    assert_accelerated_equals(build, data())


ACTIVATION_LAYERS: dict[str, Callable[[], Any]] = {
    "relu": lambda: layers.ReLU(negative_slope=0.05),
    "relu-of-all": lambda: layers.ReLU(max_value=1.5, negative_slope=0.1, threshold=0.25),
    "leaky": lambda: layers.LeakyReLU(),
    "elu": lambda: layers.ELU(alpha=0.5),
    "activation": lambda: layers.Activation("softsign"),
    "partial": lambda: functools.partial(keras.activations.relu, negative_slope=0.1),
    "lambda": lambda: lambda x: ops.gelu(x),  # by default the approximate one
}


@pytest.mark.parametrize("name", quick(ACTIVATION_LAYERS, "relu"))
def test_lstm_whose_activation_is_a_layer_or_a_function_equals_keras(
    name: str, calls: list[list[str]]
) -> None:
    def build() -> keras.Model:
        activation = ACTIVATION_LAYERS[name]()
        first = layers.LSTM(H, activation, return_sequences=True)
        # It makes the second direction from the configuration of the first, which functions do not have.
        copied = isinstance(activation, keras.Layer)
        model = model_of(layers.Bidirectional(first) if copied else first, layers.LSTM(H, activation))
        # With these weights nothing comes within 2e-4 of a kink, where rounding alone would choose the slope.
        rng = np.random.default_rng(84)
        model.set_weights([rng.normal(scale=0.4, size=weight.shape) for weight in model.get_weights()])
        return model

    assert_accelerated_equals(build, data())
    assert calls


AT_KINKS = ["selu", "leaky_relu", "celu", "elu", "relu6", "hard_tanh", "sparse_sigmoid", "hard_shrink"]
AT_KINKS += ["leaky_relu(negative_slope=0.05)", "relu(negative_slope=0.1, max_value=2.0)", "celu(alpha=0.4)"]


@pytest.mark.parametrize("name", quick(AT_KINKS, "leaky_relu"))
def test_lstm_of_rows_of_zeros_has_the_gradients_of_the_backend_at_a_kink(name: str) -> None:
    """Padding of zeros and biases of 0: what the activation gets is exactly 0, and the bias is trained all the same."""
    options = {"unit_forget_bias": False, "return_state": True}

    def build() -> keras.Model:
        x, s = keras.Input((T, F), name="x"), keras.Input((H,), name="s")
        # A gate of 0 lets only the gradient of the last c through, and that of the forget gate takes a c before.
        function = in_keras(name)
        gates = layers.LSTM(H, recurrent_activation=function, **options)(x, initial_state=[s, s])
        return keras.Model([x, s], [layers.LSTM(H, function, **options)(x), gates])

    assert_accelerated_equals(build, [data()[0] * MASK[..., None], np.ones((B, H), "float32")])


@pytest.mark.parametrize("name", ["hard_tanh", "sparse_sigmoid"])
def test_lstm_at_the_ends_of_an_activation_has_the_gradients_of_the_backend(name: str) -> None:
    def build() -> keras.Model:
        x = keras.Input((T, F), name="x")
        options = {"kernel_initializer": "zeros", "recurrent_initializer": "zeros", "unit_forget_bias": False}
        outputs = [
            layers.LSTM(H, name, bias_initializer=keras.initializers.Constant(end), **options)(x)
            for end in (-1, 1)
        ]
        return keras.Model(x, outputs)

    assert_accelerated_equals(build, data()[0])


@pytest.mark.parametrize("name", ["hard_shrink", "soft_shrink"])
def test_lstm_of_shrinks_keeps_nan_and_infinity_where_keras_does(name: str) -> None:
    layer = layers.LSTM(H, name, return_sequences=True)
    layer.build((B, T, F))
    # Only the candidate is no number: a gate that is none would hide what the activation makes of it.
    bias = np.zeros((4, H), "float32")
    bias[2, :3] = np.nan, np.inf, -np.inf
    layer.cell.bias.assign(bias.ravel())
    layer.cell.recurrent_kernel.assign(np.zeros((H, 4 * H)))
    before = ops.convert_to_numpy(layer(data()[0]))
    after = ops.convert_to_numpy(accelerate(layer)(data()[0]))
    np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("options", [{}, {"use_cudnn": False}, {"recurrent_dropout": 1.0}], ids=str)
def test_lstm_with_a_dropout_of_one_drops_what_keras_drops(
    options: dict[str, Any], masked: bool, implementation: str
) -> None:
    layer = layers.LSTM(H, dropout=1.0, return_sequences=True, **options)
    mask = MASK if masked else None
    x = data()[0]
    if (BACKEND, implementation, options, masked) == ("jax", "cellerate-cuda", {}, False):
        # On a GPU Keras drops all inputs and takes cuDNN. Beside the emulated one it stays on the CPU.
        x = np.zeros_like(x)
    before = ops.convert_to_numpy(layer(x, mask=mask, training=True))
    after = ops.convert_to_numpy(accelerate(layer)(data()[0], mask=mask, training=True))
    assert is_accelerated(layer)
    np.testing.assert_allclose(after, before, atol=1e-6)


@pytest.mark.parametrize("kept", [0, 1], ids=["nothing-left", "everything-left"])
def test_lstm_with_one_mask_for_all_equals_keras(kept: int) -> None:
    def build() -> keras.Model:
        return model_of(masked=layers.LSTM(H, return_sequences=True, return_state=True), states=2)

    assert_accelerated_equals(build, data(np.full((B, T), bool(kept))))


@pytest.mark.parametrize("unrolled", ["plain", "masked"])
def test_lstm_unrolled_equals_keras_and_with_a_mask_is_left_to_it(unrolled: str, calls: list[Any]) -> None:
    def build() -> keras.Model:
        return model_of(**{unrolled: layers.LSTM(H, unroll=True, return_sequences=True)}, states=2)

    assert_accelerated_equals(build, data())
    assert bool(calls) is (unrolled == "plain")


@pytest.mark.parametrize("mode", quick(["concat", "sum", "ave", "mul", None], "concat"))
def test_bidirectional_in_each_merge_mode_equals_keras(mode: str | None) -> None:
    def both(**options: Any) -> layers.Bidirectional:
        return layers.Bidirectional(layers.LSTM(H, **options), merge_mode=mode)

    def build() -> keras.Model:
        return model_of(both(), both(return_sequences=True, return_state=True), states=4)

    assert_accelerated_equals(build, data())


def test_other_recurrent_layers_are_left_alone() -> None:
    class Mine(layers.LSTM):
        def call(self, *args: Any, **keywords: Any) -> Any:
            return super().call(*args, **keywords)

    for layer in (layers.RNN(layers.LSTMCell(H)), layers.GRU(H), Mine(H), layers.ConvLSTM1D(2, 2)):
        before = dict(vars(layer))
        accelerate(layer)
        assert vars(layer) == before


@pytest.mark.parametrize("steps", [3, None], ids=["known", "any"])
def test_time_distributed_lstm_equals_keras(steps: int | None) -> None:
    model = keras.Sequential([keras.Input((steps, T, F)), layers.TimeDistributed(layers.LSTM(H))])
    x = np.random.default_rng(0).normal(size=(2, 3, T, F)).astype("float32")
    stock = {"output": model.predict(x, verbose=0)}
    assert_close({"output": accelerate(model).predict(x, verbose=0)}, stock)


@pytest.mark.parametrize(
    "name", quick(["bfloat16", "mixed_bfloat16", "mixed_float16", "one-layer"], "mixed_bfloat16")
)
def test_narrow_types_err_no_more_than_twice_what_keras_errs(name: str) -> None:
    def build() -> keras.Model:
        half = "mixed_bfloat16" if name == "one-layer" and keras.config.floatx() == "float32" else None
        options = {"recurrent_initializer": "glorot_uniform", "dtype": half}  # orthogonal: never in bfloat16
        return model_of(
            layers.LSTM(H, return_sequences=True, return_state=True, **options),
            layers.LSTM(H, recurrent_activation="hard_sigmoid", **options),
            states=2,
        )

    dtype = "float16" if name == "mixed_float16" else "bfloat16"
    with policy("float32" if name == "one-layer" else name):
        model = assert_accelerated_equals(build, data(), dtype=dtype)
    outputs = model([ops.convert_to_tensor(a) for a in data()])
    assert {keras.backend.standardize_dtype(y.dtype) for y in outputs} == {dtype}


def test_embedding_in_a_narrow_type_errs_no_more_than_twice_what_keras_errs(calls: list[list[str]]) -> None:
    with policy("mixed_bfloat16"):
        assert_accelerated_equals(lambda: text_model(layers.LSTM(H), mask_zero=True), IDS, dtype="bfloat16")
    assert all("ids" in given for given in calls)


def test_float64_is_left_alone() -> None:
    layer = layers.LSTM(H, dtype="float64")
    assert not is_accelerated(accelerate(layer))


def test_one_model_with_many_shapes_equals_keras() -> None:
    model = model_of(layers.LSTM(H), layers.LSTM(17, return_sequences=True), steps=None)
    rng = np.random.default_rng(0)
    for b, t in ((1, 1), (1, 5), (13, 1), (3, 8)):
        inputs = [rng.normal(size=(b, t, F)), rng.normal(size=(b, 3)), rng.integers(0, 2, (b, t)) > 0]
        inputs = [a.astype("float32") if a.dtype == float else a for a in inputs]
        stock = dict(enumerate(model.predict_on_batch(inputs)))
        accelerate(model)
        ours = dict(enumerate(model.predict_on_batch(inputs)))
        for n, expected in stock.items():
            assert rms(ours[n] - expected) <= 1e-6 * rms(expected) + 1e-9
        accelerate(model, "keras")


def two_lstms_on_one_table() -> keras.Model:
    ids = keras.Input((T,), dtype="int32")
    x = layers.Embedding(V, D)(ids)
    return keras.Model(ids, [layers.LSTM(H)(x), layers.LSTM(3)(x), layers.Dense(2)(x)])


LOOKUPS: dict[str, tuple[bool, Build]] = {
    "plain": (True, lambda: text_model(layers.LSTM(H, return_sequences=True))),
    "mask-zero": (True, lambda: text_model(layers.LSTM(H, return_sequences=True), mask_zero=True)),
    "bidirectional": (True, lambda: text_model(layers.Bidirectional(layers.LSTM(H)), mask_zero=True)),
    "two-lstms": (True, two_lstms_on_one_table),
    "recurrent-dropout": (True, lambda: text_model(layers.LSTM(H, recurrent_dropout=0.3, seed=1))),
    "dropout-between": (False, lambda: text_model(layers.Dropout(0.3, seed=1), layers.LSTM(H))),
    "dropout": (False, lambda: text_model(layers.LSTM(H, dropout=0.3, seed=1))),
    "normalized": (False, lambda: text_model(layers.LayerNormalization(), layers.LSTM(H))),
    "more-rows-than-half-the-steps": (False, lambda: text_model(layers.LSTM(H), rows=B * T // 2 + 1)),
    "ids-from-the-end": (True, lambda: text_model(layers.LSTM(H))),
}


@pytest.mark.parametrize("name", quick(LOOKUPS, "mask-zero"))
def test_embedding_before_lstm_is_looked_up_where_that_pays(name: str, calls: list[list[str]]) -> None:
    expected, build = LOOKUPS[name]
    assert_accelerated_equals(build, IDS - 3 if name == "ids-from-the-end" else IDS, training=True)
    assert calls and all(("ids" in given) is expected for given in calls)


@pytest.mark.parametrize("change", ["frozen", "lora", "bfloat16"])
def test_embedding_that_is_no_plain_float32_variable_equals_keras(change: str) -> None:
    def build() -> keras.Model:
        # With bfloat16 the table, which Keras rounds and the lookup does not, holds what bfloat16 can hold.
        start = keras.initializers.Constant(np.random.default_rng(0).integers(-9, 9, (V, D)) / 8)
        model = text_model(
            layers.LSTM(H, dtype="float32"),
            embeddings_initializer=start,
            dtype="bfloat16" if change == "bfloat16" else None,
        )
        table = model.layers[1]
        if change == "frozen":
            table.trainable = False
        elif change == "lora":
            table.enable_lora(2, b_initializer=keras.initializers.RandomNormal(seed=1))
        return model

    model = build()
    stock = measure(model, IDS)
    assert_close(
        measure(accelerate(model), IDS), stock, dtype="bfloat16" if change == "bfloat16" else "float32"
    )


@pytest.mark.parametrize("when", ["added-in-place", "detached", "assigned-between", "ids-changed"])
def test_lstm_after_an_embedding_that_was_changed_since_equals_keras(when: str) -> None:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.lstm = layers.Embedding(V, D), layers.LSTM(H)

        def call(self, ids: Any, training: bool | None = None) -> Any:
            x = self.table(ids)
            if when == "added-in-place":
                x += 1.0  # in place on torch, where the tensor stays the same object
            elif when == "detached":
                x = ops.stop_gradient(x)
            elif when == "assigned-between":
                self.table.embeddings.assign(self.table.embeddings + 1.0)
            elif BACKEND == "torch":
                ids -= 1
            return self.lstm(x)

    model = Model()
    model(ops.convert_to_tensor(IDS))
    weights = model.get_weights()

    def outputs() -> Measured:
        model.set_weights(weights)
        if when == "assigned-between":
            return {"output": ops.convert_to_numpy(model(ops.convert_to_tensor(IDS)))}
        found = measure(model, IDS.copy())
        return {name: a for name, a in found.items() if "embeddings" not in name or when != "detached"}

    stock = outputs()
    accelerate(model)
    assert_close(outputs(), stock)


@pytest.mark.parametrize("readers", [1, 2])
def test_model_with_an_embedding_takes_the_steps_of_stock_keras(readers: int) -> None:
    """TensorFlow gives an optimizer the rows of a batch unsummed, and Adam and clipnorm treat them apart."""

    def trained(change: Callable[[keras.Model], Any]) -> list[np.ndarray]:
        keras.utils.set_random_seed(5)
        lstm = layers.LSTM(H, return_sequences=True)
        reader = lstm if readers == 1 else layers.Bidirectional(lstm)
        ids = keras.Input((T,), dtype="int32", batch_size=B)
        model = keras.Model(ids, layers.Dense(V)(reader(layers.Embedding(V, D)(ids))))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), loss)
        change(model)
        model.fit(np.tile(IDS, (20, 1)), np.tile(IDS, (20, 1)), batch_size=B, shuffle=False, verbose=0)
        return [ops.convert_to_numpy(weight) for weight in model.weights]

    stock = trained(lambda model: None)
    for found, wanted in zip(trained(accelerate), stock, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    summed = trained(lambda model: accelerate(model, sum_embedding_gradients=True))
    equal = np.allclose(summed[0], stock[0], rtol=1e-3, atol=1e-5)
    assert equal is (BACKEND != "tensorflow")


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has no gradient of a tensor within a function")
@pytest.mark.parametrize("way", ["kept", "hook", "sought", "with-the-table"])
def test_output_of_an_embedding_has_its_gradient_when_asked(way: str) -> None:
    """Saliency maps and adversarial training ask for it."""
    model = text_model(layers.LSTM(H))
    table, lstm = model.layers[1], model.layers[2]
    ids = ops.convert_to_tensor(IDS)

    def gradients() -> list[np.ndarray]:
        if BACKEND == "tensorflow":
            import tensorflow as tf

            with tf.GradientTape() as tape:
                x = table(ids)
                loss = ops.sum(lstm(x) ** 2)
            found = tape.gradient(loss, [x, table.embeddings.value] if way == "with-the-table" else [x])
        else:
            import torch

            x, found = table(ids), []
            if way == "kept":
                x.retain_grad()
            elif way == "hook":
                x.register_hook(found.append)
            loss = ops.sum(lstm(x) ** 2)
            sought = [x, table.embeddings.value] if way == "with-the-table" else [x]
            if way in ("kept", "hook"):
                loss.backward()
                found = found or [x.grad]
            else:
                found = list(torch.autograd.grad(loss, sought))
        return [ops.convert_to_numpy(ops.convert_to_tensor(gradient)) for gradient in found]

    stock = gradients()
    accelerate(model)
    for found, wanted in zip(gradients(), stock, strict=True):
        assert found.any()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


class Block(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True
        self.inside = layers.LSTM(D, return_sequences=True)

    def call(self, x: Any, mask: Any = None) -> Any:
        return x + self.inside(x, mask=mask)


def stacked() -> keras.Model:
    x = keras.Input((T, F))
    y = layers.LSTM(H, return_sequences=True)(layers.Masking()(x))
    y = layers.LSTM(3, return_sequences=True, zero_output_for_mask=True)(layers.Dropout(0.1)(y))
    return keras.Model(x, layers.LSTM(H, go_backwards=True)(y))


def shared_and_nested() -> keras.Model:
    x = keras.Input((T, F))
    shared = layers.LSTM(D, return_sequences=True)
    inner = keras.Sequential([keras.Input((T, D)), shared, layers.LSTM(H)])
    y = shared(layers.Dense(D)(x))
    return keras.Model(x, [inner(y), Block()(shared(y), mask=ops.any(x > 0.5, axis=-1))])


def frozen() -> keras.Model:
    inputs = keras.Input((T, F))
    return keras.Model(inputs, layers.LSTM(H, trainable=False)(layers.Dense(D)(inputs)))


def two_different_directions() -> keras.Model:
    back = layers.LSTM(3, activation="relu", go_backwards=True, return_sequences=True)
    both = layers.Bidirectional(layers.LSTM(H, return_sequences=True), backward_layer=back)
    return keras.Sequential([keras.Input((T, F)), layers.Masking(), both])


@pytest.mark.parametrize(
    "build", quick([stacked, shared_and_nested, frozen, two_different_directions], stacked)
)
def test_model_with_lstms_equals_keras(build: Build) -> None:
    assert_accelerated_equals(build, data()[0] * MASK[:, :, None])


@QUICK
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_stateful_lstm_goes_on_where_it_ended(masked: bool) -> None:
    x = keras.Input(batch_shape=(B, T, F))
    lstm = layers.LSTM(H, stateful=True, return_sequences=True)
    model = keras.Model(x, lstm(layers.Masking()(x) if masked else x))
    x = ops.convert_to_tensor(data()[0] * MASK[:, :, None])

    def outputs() -> Measured:
        lstm.reset_state()
        found = {f"output {n}": ops.convert_to_numpy(model(x)) for n in range(2)}
        lstm.reset_state()
        # Keras on torch cannot train one without a mask; the kernels can.
        trains = is_accelerated(lstm) or masked or BACKEND != "torch"
        return found | (measure(model, x) if trains else {})

    stock = outputs()
    accelerate(model)
    ours = outputs()
    assert_close({name: ours[name] for name in stock}, stock)
    assert rms(ours["output 1"] - ours["output 0"]) > 1e-3


def test_nan_in_a_row_gives_nan_there_and_nowhere_else() -> None:
    model = accelerate(model_of(layers.LSTM(H), layers.LSTM(H)))
    x, s, mask = data()
    clean = [ops.convert_to_numpy(y) for y in model([ops.convert_to_tensor(a) for a in (x, s, mask)])]
    x[1, 3] = np.nan
    for good, y in zip(clean, model([ops.convert_to_tensor(a) for a in (x, s, mask)]), strict=True):
        y = ops.convert_to_numpy(y)
        assert np.isnan(y[1]).all()
        np.testing.assert_array_equal(np.delete(y, 1, 0), np.delete(good, 1, 0))


@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow's own loop refuses it")
def test_batch_without_rows_gives_no_rows() -> None:
    model = accelerate(model_of(layers.LSTM(H), layers.LSTM(H, return_sequences=True)))
    outputs = model([ops.convert_to_tensor(a[:0]) for a in data()])
    assert [tuple(y.shape) for y in outputs] == [(0, H), (0, T, H)]
