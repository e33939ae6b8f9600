"""A stepper must give, token by token, what the model gives on the whole sequence."""

from collections.abc import Callable

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.keras_graph import keras_stepper as stepper_module
from cellerate.keras_graph.keras_stepper import KerasStepper
from support.rounding import allowed

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

V = 13
LENGTH = 11  # with blocks of 4: two blocks and three single steps


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 4 steps compile and run in a fraction of the time of blocks of 64."""
    assert stepper_module.BLOCK == 64
    monkeypatch.setattr(stepper_module, "BLOCK", 4)


def ids_input(length: int | None = None, batch: int | None = None) -> keras.KerasTensor:
    return keras.Input((length,), batch_size=batch, dtype="int32")


def stack(
    *middle: layers.Layer, length: int | None = None, batch: int | None = None, **embedding
) -> keras.Model:
    inputs = ids_input(length, batch)
    x = layers.Embedding(V, 8, **embedding)(inputs)
    for layer in middle:
        x = layer(x)
    return keras.Model(inputs, layers.Dense(V)(x))


def lstm(**options) -> layers.LSTM:
    return layers.LSTM(7, return_sequences=True, **options)


def three_layers() -> keras.Model:
    return stack(lstm(), layers.Dropout(0.5), lstm(dropout=0.3), lstm())


def residual() -> keras.Model:
    inputs = ids_input()
    x = layers.Embedding(V, 7)(inputs)
    first = lstm()(x)
    x = layers.Add()([x, first])
    second = lstm()(x)
    x = x + second
    x = layers.Concatenate()([x, first])
    return keras.Model(inputs, layers.Dense(V)(layers.LayerNormalization()(x)))


def tied() -> keras.Model:
    embedding = layers.ReversibleEmbedding(V, 7)
    inputs = ids_input()
    return keras.Model(inputs, embedding(lstm()(embedding(inputs)), reverse=True))


def nested() -> keras.Model:
    inner_inputs = keras.Input((None, 8))
    inner = keras.Model(inner_inputs, lstm()(lstm()(inner_inputs)), name="inner")
    tail = keras.Sequential([keras.Input((None, 7)), layers.GRU(7, return_sequences=True), layers.Dense(8)])
    inputs = ids_input()
    x = inner(layers.Embedding(V, 8)(inputs))
    return keras.Model(inputs, layers.Dense(V)(inner(tail(x))))


def one_hot() -> keras.Model:
    return keras.Sequential([keras.Input((None, V)), lstm(), layers.Dense(V, activation="softmax")])


def one_hot_of_ids() -> keras.Model:
    inputs = ids_input()
    return keras.Model(inputs, layers.Dense(V)(lstm()(keras.ops.one_hot(inputs, V))))


def stacked_cells() -> keras.Model:
    cells = [layers.LSTMCell(7), layers.GRUCell(7), layers.SimpleRNNCell(5)]
    return stack(layers.RNN(cells, return_sequences=True))


def sequential_floats() -> keras.Model:
    # What old tutorials write: no dtype for the ids, a per-step output layer, a softmax of its own.
    return keras.Sequential(
        [
            keras.Input((None,)),
            layers.Embedding(V, 8),
            layers.GRU(7, return_sequences=True, reset_after=False),
            layers.TimeDistributed(layers.Dense(V)),
            layers.Softmax(),
        ]
    )


class Doubled(layers.Layer):
    """A layer the stepper does not know, that treats each step alike."""

    def call(self, x):
        return x * 2


class Swirl(layers.Layer):
    """A layer the stepper does not know, that looks back."""

    def call(self, x):
        return x + keras.ops.roll(x, 1, axis=1)


class Decay(layers.Layer):
    """A cell of the user's own, whose output is not its state."""

    state_size = 8
    output_size = 8

    def call(self, x, states):
        state = 0.5 * states[0] + x
        return keras.ops.tanh(state), [state]


MODELS: dict[str, Callable[[], keras.Model]] = {
    "lstm": lambda: stack(lstm()),
    "three-layers": three_layers,
    "gru": lambda: stack(layers.GRU(7, return_sequences=True)),
    "simple-rnn": lambda: stack(layers.SimpleRNN(7, return_sequences=True)),
    "stacked-cells": stacked_cells,
    "own-cell": lambda: stack(layers.RNN(Decay(), return_sequences=True)),
    "residual": residual,
    "tied": tied,
    "layer-norm": lambda: stack(lstm(), layers.LayerNormalization(), layers.BatchNormalization()),
    "recurrent-dropout": lambda: stack(lstm(recurrent_dropout=0.4, dropout=0.2)),
    "relu-no-bias": lambda: stack(lstm(activation="relu", use_bias=False)),
    "stateful": lambda: stack(lstm(stateful=True), batch=2),
    "unrolled-fixed-length": lambda: stack(lstm(unroll=True), length=LENGTH),
    "nested-and-shared": nested,
    "one-hot": one_hot,
    "softmax-floats": sequential_floats,
    "one-hot-of-ids": one_hot_of_ids,
    "unknown-layer": lambda: stack(lstm(), Doubled()),
    "mask-zero": lambda: stack(lstm(), lstm(), mask_zero=True),
    "mask-zero-stacked-cells": lambda: stack(
        layers.RNN([layers.LSTMCell(7), layers.GRUCell(7)], return_sequences=True), mask_zero=True
    ),
    "no-recurrence": lambda: stack(),
}
LAST_STEP: dict[str, Callable[[], keras.Model]] = {
    "last-step": lambda: stack(lstm(), layers.LSTM(7)),
    "last-step-gru-softmax": lambda: stack(layers.GRU(7), layers.Dense(V), layers.Softmax()),
    "last-step-mask-zero": lambda: stack(lstm(), layers.GRU(7), mask_zero=True),
    "last-step-sliced": lambda: stack(lstm(), layers.Lambda(lambda x: x[:, -1])),
}


def randomised(model: keras.Model) -> keras.Model:
    """Larger weights than Keras's, so that a wrong state is a wrong result."""
    rng = np.random.default_rng(5)
    for weight in model.weights:
        weight.assign(rng.normal(0, 0.5, weight.shape) + (weight.path.endswith("gamma") * 1.0))
        if "variance" in weight.path:
            weight.assign(np.abs(keras.ops.convert_to_numpy(weight.value)) + 0.5)
    return model


def some_ids(batch: int, length: int, zeros: bool = True) -> np.ndarray:
    ids = np.random.default_rng(1).integers(0 if zeros else 1, V, (batch, length))
    if zeros and length > 3:
        ids[0, :2] = 0  # a masked start, where the model masks
        ids[1, 2:4] = 0
    return ids


def whole(model: keras.Model, ids: np.ndarray) -> np.ndarray:
    """The model's own logits on whole sequences."""
    given = np.eye(V, dtype="float32")[ids] if len(model.inputs[0].shape) == 3 else ids
    if keras.backend.backend() == "jax":
        output = np.asarray(model.predict_on_batch(given), "float32")  # compiles once, not once an operation
    else:
        output = keras.ops.convert_to_numpy(keras.ops.cast(model(given, training=False), "float32"))
    return np.log(output) if KerasStepper(model).probabilities else output


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """The root mean square of the difference, as a share of that of what is expected."""
    return float(np.sqrt(((found - expected) ** 2).mean() / (expected**2).mean()))


def steps(stepper: KerasStepper, ids: np.ndarray) -> np.ndarray:
    state, collected = stepper.initial_state(len(ids)), []
    for column in ids.T:
        state, logits = stepper.step(state, column)
        collected.append(logits)
    return np.stack(collected, axis=1)


@pytest.mark.parametrize("name", MODELS)
def test_step_and_prefill_equal_the_whole_sequence(name: str) -> None:
    model = randomised(MODELS[name]())
    ids = some_ids(2, LENGTH)
    expected = whole(model, ids)
    stepper = KerasStepper(model)
    assert stepper.vocabulary_size == V

    stepped = steps(stepper, ids)
    assert stepped.dtype == np.float32
    np.testing.assert_allclose(stepped, expected, rtol=2e-5, atol=2e-5)

    # A prompt in two parts must give what it gives in one.
    state, logits = stepper.prefill(stepper.initial_state(2), ids)
    assert logits.shape == (2, V) and logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected[:, -1], rtol=2e-5, atol=2e-5)
    part, first = stepper.prefill(stepper.initial_state(2), ids[:, :3])
    np.testing.assert_allclose(first, expected[:, 2], rtol=2e-5, atol=2e-5)
    again, second = stepper.prefill(part, ids[:, 3:])
    np.testing.assert_allclose(second, logits, rtol=2e-5, atol=2e-5)
    for a, b in zip(state, again, strict=True):
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b), rtol=2e-5, atol=2e-5
        )


@pytest.mark.parametrize("name", LAST_STEP)
def test_step_of_a_last_step_model_equals_every_prefix(name: str) -> None:
    model = randomised(LAST_STEP[name]())
    ids = some_ids(2, 6)
    stepper = KerasStepper(model)
    stepped = steps(stepper, ids)
    for length in (2, 6):
        expected = whole(model, ids[:, :length])
        np.testing.assert_allclose(stepped[:, length - 1], expected, rtol=2e-5, atol=2e-5)
    _, logits = stepper.prefill(stepper.initial_state(2), ids)
    np.testing.assert_allclose(logits, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kept", [True, False], ids=["mask-kept", "mask-lost"])
def test_prefill_of_a_masked_block_start_equals_the_whole_sequence(kept: bool) -> None:
    inputs = ids_input()
    x = lstm()(layers.Embedding(V, 8, mask_zero=True)(inputs))
    # An operation drops the mask, so that the next layer reads what the first gives at masked steps.
    x = layers.LSTM(7)(x if kept else x * 2.0)
    model = randomised(keras.Model(inputs, layers.Dense(V)(x)))
    stepper = KerasStepper(model)
    begun, _ = stepper.prefill(stepper.initial_state(2), np.array([[3, 4], [5, 6]]))
    tail = np.zeros((2, 9), int)
    tail[1, 5:] = 7  # row 0 is masked to its end, row 1 through its first block
    _, logits = stepper.prefill(begun, tail)
    prefix = np.concatenate([np.array([[3, 4], [5, 6]]), tail], axis=1)
    np.testing.assert_allclose(logits, whole(model, prefix), rtol=2e-5, atol=2e-5)


def products_are_cut_off() -> bool:
    """True if this backend brings sums of products to bfloat16 toward zero: TensorFlow does so without oneDNN's
    products in bfloat16, which need AVX-512."""
    row = keras.ops.cast([[1, 2**-8, 2**-9]], "bfloat16")
    product = keras.ops.matmul(row, keras.ops.ones((3, 1), "bfloat16"))
    return float(keras.ops.convert_to_numpy(keras.ops.cast(product, "float32"))[0, 0]) == 1.0


def test_step_in_mixed_bfloat16_follows_the_model() -> None:
    inputs = ids_input()
    x = layers.Embedding(V, 8, dtype="mixed_bfloat16")(inputs)
    x = lstm(dtype="mixed_bfloat16")(x)
    x = layers.GRU(7, return_sequences=True, dtype="mixed_bfloat16")(x)
    model = keras.Model(inputs, layers.Dense(V, dtype="float32")(x))
    ids = some_ids(2, LENGTH)
    expected = whole(model, ids)
    stepper = KerasStepper(model)
    state = stepper.initial_state(2)
    assert {keras.backend.standardize_dtype(array.dtype) for array in state} == {"bfloat16"}
    # A step of each of two layers rounds the factors of two products, these, their sum, the gates and the states.
    limit = allowed("bfloat16", roundings=2 * 15, terms=8, cuts=2 * products_are_cut_off())
    assert error(steps(stepper, ids), expected) <= limit
    state, logits = stepper.prefill(state, ids)
    assert {keras.backend.standardize_dtype(array.dtype) for array in state} == {"bfloat16"}
    assert error(logits, expected[:, -1]) <= limit


def test_step_never_changes_the_state_it_is_given() -> None:
    stepper = KerasStepper(randomised(stack(lstm())))
    start, _ = stepper.prefill(stepper.initial_state(1), np.array([[1, 2]]))
    _, once = stepper.step(start, np.array([3]))
    once = once.copy()
    stepper.step(start, np.array([4]))
    _, again = stepper.step(start, np.array([3]))
    np.testing.assert_array_equal(once, again)


def test_step_after_further_training_uses_the_new_weights() -> None:
    model = randomised(stack(lstm()))
    stepper = KerasStepper(model)
    ids = some_ids(2, 4)
    before = steps(stepper, ids)
    for weight in model.weights:
        weight.assign(weight.value * 0.5)
    after = steps(stepper, ids)
    assert np.abs(before - after).max() > 0.1
    np.testing.assert_allclose(after, whole(model, ids), rtol=2e-5, atol=2e-5)


def test_step_of_a_stateful_model_leaves_its_own_state_alone() -> None:
    model = randomised(stack(lstm(stateful=True), Doubled(), batch=1))
    model(np.array([[1, 2, 3]]))
    layer = model.layers[2]
    before = [keras.ops.convert_to_numpy(v.value).copy() for v in layer.states]
    assert np.abs(before[0]).max() > 0
    stepper = KerasStepper(model)
    stepper.prefill(stepper.initial_state(3), np.array([[1], [2], [3]]))
    for kept, variable in zip(before, layer.states, strict=True):
        np.testing.assert_array_equal(kept, keras.ops.convert_to_numpy(variable.value))


def test_initial_state_without_a_size_is_for_the_steppers_batch() -> None:
    stepper = KerasStepper(stack(lstm(), layers.GRU(5, return_sequences=True)), batch_size=3)
    shapes = [tuple(array.shape) for array in stepper.initial_state()]
    assert shapes == [(3, 7), (3, 7), (3, 5)]
    assert tuple(stepper.initial_state(2)[0].shape) == (2, 7)


def test_probabilities_of_zero_become_finite_logits() -> None:
    model = stack(lstm(), layers.Dense(V, activation="linear"))
    inputs = ids_input()
    model = keras.Model(inputs, layers.Activation("softmax")(model(inputs) * 1e6))
    stepper = KerasStepper(randomised(model))
    assert stepper.probabilities
    _, logits = stepper.step(stepper.initial_state(1), np.array([1]))
    assert np.isfinite(logits).all() and logits.min() < -80


def refused(build: Callable[[], object], *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        KerasStepper(build())
    for word in words:
        assert word in str(caught.value)


def autoencoder() -> keras.Model:
    return stack(layers.LSTM(7), layers.RepeatVector(6, name="again"), lstm(), length=6)


def encoder_decoder() -> keras.Model:
    source, target = ids_input(), ids_input()
    _, h, c = layers.LSTM(7, return_state=True)(layers.Embedding(V, 8)(source))
    x = layers.LSTM(7, return_sequences=True)(layers.Embedding(V, 8)(target), initial_state=[h, c])
    return keras.Model([source, target], layers.Dense(V)(x))


def own_initial_state() -> keras.Model:
    inputs = ids_input()
    x = layers.Embedding(V, 8)(inputs)
    state = layers.GRU(7)(x)
    return keras.Model(inputs, layers.Dense(V)(layers.GRU(7, return_sequences=True)(x, initial_state=state)))


def spread_last_step() -> keras.Model:
    inputs = ids_input()
    x = lstm()(layers.Embedding(V, 8)(inputs))
    last = layers.Lambda(lambda y: y[:, -1:], name="last")(x)
    return keras.Model(inputs, layers.Dense(V)(layers.Add()([x, last])))


class Subclassed(keras.Model):
    def call(self, x):
        return x


class HiddenLSTM(layers.Layer):
    def __init__(self):
        super().__init__()
        self.inside = lstm()

    def call(self, x):
        return self.inside(x)


REFUSED: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "no-model": (lambda: "model.keras", ("keras.Model", "str")),
    "bidirectional": (
        lambda: stack(layers.Bidirectional(lstm(), name="both")),
        ("'both'", "Bidirectional", "future"),
    ),
    "backwards": (lambda: stack(lstm(go_backwards=True)), ("go_backwards",)),
    "conv": (lambda: stack(layers.Conv1D(8, 3, padding="causal", name="conv")), ("'conv'", "mixes time")),
    "attention": (
        lambda: keras.Model(
            i := ids_input(), layers.Attention(name="look")([e := layers.Embedding(V, V)(i), e])
        ),
        ("'look'", "mixes time"),
    ),
    "pooling": (lambda: stack(lstm(), layers.GlobalAveragePooling1D(name="pool")), ("'pool'",)),
    "flatten": (lambda: stack(lstm(), layers.Flatten(name="flat"), length=4), ("'flat'",)),
    "autoencoder": (autoencoder, ("'again'", "RepeatVector")),
    "two-inputs": (encoder_decoder, ("one input", "2 and 1")),
    "own-initial-state": (own_initial_state, ("initial_state",)),
    "spread": (spread_last_step, ("'last'",)),
    "unknown-mixing-layer": (lambda: stack(lstm(), Swirl(name="swirl")), ("'swirl'",)),
    "hidden-recurrence": (lambda: stack(HiddenLSTM()), ("recurrent layer inside",)),
    "subclassed": (lambda: Subclassed(), ("subclassed", "Sequential")),
    "unbuilt": (lambda: keras.Sequential([layers.Embedding(V, 8), lstm()]), ("not built",)),
    "ids-as-features": (
        lambda: keras.Sequential([keras.Input((V,)), layers.Dense(V, name="wide")]),
        ("'wide'", "Embedding"),
    ),
    "series": (
        lambda: keras.Sequential([keras.Input((None, 3)), lstm(), layers.Dense(V)]),
        ("one-hot",),
    ),
    "classifier": (
        lambda: keras.Sequential(
            [keras.Input((None,)), layers.Embedding(V, 8), layers.LSTM(7), layers.Dense(2)]
        ),
        (f"{V} ids", "2 values"),
    ),
    "regression": (
        lambda: keras.Sequential(
            [keras.Input((None,)), layers.Embedding(V, 8), layers.LSTM(7), layers.Dense(1)]
        ),
        ("one number",),
    ),
    "masked-own-cell": (
        lambda: stack(layers.RNN(Decay(), return_sequences=True), mask_zero=True),
        ("mask_zero=False",),
    ),
    "layer-norm-over-time": (
        lambda: stack(lstm(), layers.LayerNormalization(axis=[1, 2], name="norm"), length=5),
        ("'norm'",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_stepper_of_a_model_that_cannot_step_raises_saying_why(name: str) -> None:
    build, words = REFUSED[name]
    refused(build, *words)


def test_step_with_wrong_ids_raises() -> None:
    stepper = KerasStepper(stack(lstm()))
    state = stepper.initial_state(2)
    with pytest.raises(DataError, match=f"0 to {V - 1}"):
        stepper.step(state, np.array([0, V]))
    with pytest.raises(DataError, match="integers"):
        stepper.step(state, np.array([0.0, 1.0]))
    with pytest.raises(ConfigError, match=r"initial_state\(3\)"):
        stepper.step(state, np.array([0, 1, 2]))
    with pytest.raises(ConfigError, match=r"\(batch,\)"):
        stepper.step(state, np.array([[0], [1]]))
    with pytest.raises(ConfigError, match="at least one id"):
        stepper.prefill(state, np.zeros((2, 0), int))
    with pytest.raises(ConfigError, match="batch_size"):
        KerasStepper(stack(lstm()), batch_size=0)
