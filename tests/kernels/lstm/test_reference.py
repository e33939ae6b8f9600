"""The oracle is held against Keras, on each backend, and against finite differences."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest

from cellerate import activations
from cellerate.activations import on_backend
from cellerate.errors import ConfigError
from cellerate.kernels.lstm.reference import Forward, backward, forward
from cellerate.kernels.lstm.reference_activations import activation_of
from cellerate.kernels.lstm.spec import ACTIVATIONS as NAMES, MASKED_OUTPUTS, Arguments, LstmOptions
from support.activation_names import IN_FILES, IN_KERNELS, in_keras
from support.kernels.pairwise import marked

BACKEND = keras.backend.backend()
B, T, D, H = 5, 4, 2, 3
# Leading and scattered, middle, right-padded, nothing, everything.
MASK = np.array([[0, 1, 0, 1], [1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
KINKS = {
    "relu": {0: 0},
    "hard_sigmoid": {-3: 0, 3: 0},
    "elu": {0: 1},
    "selu": {0: 1.7580993408473766},
    "relu6": {0: 0, 6: 0},
    "leaky_relu": {0: 0.2},
    "hard_silu": {-3: 0, 3: 1},
    "hard_tanh": {-1: 1, 1: 1},
    "celu": {0: 1},
    "hard_shrink": {-0.5: 0, 0.5: 0},
    "soft_shrink": {-0.5: 0, 0.5: 0},
    "sparse_plus": {-1: 0, 1: 1},
    "sparse_sigmoid": {-1: 0, 1: 0},
    "selu_from_above": {0: 1.0507009873554805},
    "leaky_relu_from_above": {0: 1},
    "celu_of_both_sides": {0: 2},
    "hard_tanh_open": {-1: 0, 1: 0},
    "sparse_sigmoid_between": {-1: 0.25, 1: 0.25},
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to call a layer; `masked_output` is None where there is no mask."""

    masked_output: str | None = None
    go_backwards: bool = False
    bias: bool = True
    states: bool = False
    dropout: bool = False
    activation: str = "tanh"
    recurrent_activation: str = "sigmoid"

    def __str__(self) -> str:
        said = [self.masked_output or "no_mask", self.activation, self.recurrent_activation]
        said += ["backwards"] * self.go_backwards + ["no_bias"] * (not self.bias)
        return "-".join(said + ["states"] * self.states + ["dropout"] * self.dropout)

    @property
    def options(self) -> LstmOptions:
        masked_output = self.masked_output or "previous_output"
        return LstmOptions(self.activation, self.recurrent_activation, self.go_backwards, masked_output)

    @property
    def weights(self) -> list[np.ndarray]:
        rng = np.random.default_rng(1)
        # Of this scale some gates are past their kinks, and no unbounded gate grows from step to step.
        weights = [rng.normal(0, 0.7, shape) for shape in ((D, 4 * H), (H, 4 * H), (4 * H,))]
        return [weight.astype(np.float32) for weight in weights[: 3 if self.bias else 2]]

    @property
    def differentiable(self) -> dict[str, np.ndarray]:
        """The arguments that have a gradient."""
        rng = np.random.default_rng(2)
        x, h0, c0 = (rng.normal(size=shape).astype(np.float32) for shape in ((B, T, D), (B, H), (B, H)))
        found = {"x": x} | dict(zip(("kernel", "recurrent_kernel", "bias"), self.weights, strict=False))
        return found | ({"h0": h0, "c0": c0} if self.states else {})

    @property
    def others(self) -> dict[str, np.ndarray | None]:
        rng = np.random.default_rng(3)
        dropout, recurrent_dropout = (
            rng.choice([0, 1.25, 2], (4, B, n)).astype(np.float32) if self.dropout else None for n in (D, H)
        )
        mask = None if self.masked_output is None else MASK
        return {"mask": mask, "dropout": dropout, "recurrent_dropout": recurrent_dropout}

    def forward(self, **changes) -> Forward:
        return forward(Arguments(**self.differentiable | changes, **self.others), self.options)


def variants(masked_outputs) -> list[Variant]:
    flags = itertools.product(masked_outputs, *[(False, True)] * 4)
    others = [Variant(m, activation="softsign", recurrent_activation="hard_sigmoid") for m in masked_outputs]
    return [Variant(*flag) for flag in flags] + others


def cotangents() -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.normal(size=shape) for shape in ((B, T, H), (B, H), (B, H))]


def assert_close(found, expected, tolerance):
    """The root mean square of the difference, as a share of that of what was expected."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    error = np.sqrt(np.mean((found - expected) ** 2))
    assert error <= tolerance * np.sqrt(np.mean(expected**2)), error


def keras_layer(variant: Variant, **settings) -> keras.layers.LSTM:
    layer = keras.layers.LSTM(
        H,
        activation=variant.activation,
        recurrent_activation=variant.recurrent_activation,
        use_bias=variant.bias,
        dropout=0.5 if variant.dropout else 0.0,
        recurrent_dropout=0.5 if variant.dropout else 0.0,
        go_backwards=variant.go_backwards,
        zero_output_for_mask=variant.masked_output == "zero",
        **settings,
    )
    layer.build((B, T, D))
    layer.set_weights(variant.weights)
    return layer


def call(layer: keras.layers.LSTM, variant: Variant, monkeypatch) -> list[np.ndarray]:
    mask = variant.others["mask"]
    for name in ("dropout", "recurrent_dropout"):
        if variant.others[name] is not None:
            drawn = [keras.ops.convert_to_tensor(gate) for gate in variant.others[name]]
            monkeypatch.setattr(layer.cell, f"get_{name}_mask", lambda _, drawn=drawn: drawn)
    arguments = {name: keras.ops.convert_to_tensor(a) for name, a in variant.differentiable.items()}
    results = layer(
        arguments["x"],
        initial_state=[arguments["h0"], arguments["c0"]] if variant.states else None,
        mask=None if mask is None else keras.ops.convert_to_tensor(mask),
        training=True,
    )
    return [keras.ops.convert_to_numpy(result) for result in keras.tree.flatten(results)]


# Keras 3.15: what stands in a masked step of a layer that is not unrolled.
MASKED_BY_KERAS = "previous_state" if BACKEND == "jax" else "previous_output"


@pytest.mark.keras
@pytest.mark.backends
@pytest.mark.parametrize("variant", variants([None, MASKED_BY_KERAS, "zero"]), ids=str)
def test_forward_equals_the_layer_of_keras(variant, monkeypatch):
    expected = call(keras_layer(variant, return_sequences=True, return_state=True), variant, monkeypatch)
    found = variant.forward()
    for result, of_keras in zip((found.outputs, found.h_T, found.c_T), expected, strict=True):
        assert_close(of_keras, result, 1e-6)


@pytest.mark.keras
@pytest.mark.backends
@pytest.mark.parametrize("masked_output", [None, MASKED_BY_KERAS, "zero"])
def test_last_output_equals_the_layer_of_keras_that_returns_no_sequences(masked_output, monkeypatch):
    variant = Variant(masked_output, states=True)
    (last,) = call(keras_layer(variant), variant, monkeypatch)
    assert_close(last, variant.forward().outputs[:, -1], 1e-6)


@pytest.mark.keras
@pytest.mark.backends
@pytest.mark.parametrize("masked_output", [None, "previous_output"])
def test_forward_equals_an_unrolled_layer_of_keras_with_the_previous_output(masked_output, monkeypatch):
    variant = Variant(masked_output, states=True)
    layer = keras_layer(variant, return_sequences=True, return_state=True, unroll=True)
    found = variant.forward()
    for of_keras, result in zip(
        call(layer, variant, monkeypatch), (found.outputs, found.h_T, found.c_T), strict=True
    ):
        assert_close(of_keras, result, 1e-6)


@pytest.mark.keras
@pytest.mark.backends
@pytest.mark.parametrize(("name", "width"), [("dropout", D), ("recurrent_dropout", H)])
def test_dropout_of_keras_is_four_masks_of_one_value_a_feature_or_unit(name, width):
    layer = keras_layer(Variant(dropout=True))
    drawn = getattr(layer.cell, f"get_{name}_mask")(keras.ops.zeros((50, width)))
    masks = np.stack([keras.ops.convert_to_numpy(mask) for mask in drawn])
    assert masks.shape == (4, 50, width)
    assert len(np.unique(masks, axis=0)) == 4
    assert set(np.unique(masks)) == {0, 2}


@pytest.mark.keras
@pytest.mark.backends
@pytest.mark.parametrize("name", IN_KERNELS)
def test_value_of_an_activation_equals_that_of_keras(name):
    x = np.concatenate([np.linspace(-9, 9, 300), [-6, -3, -1, -0.5, 0, 0.5, 1, 3, 6]]).astype(np.float32)
    of_keras = in_keras(name)(keras.ops.convert_to_tensor(x))
    found = activation_of(name).value(x.astype(np.float64))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(of_keras), found, rtol=2e-6, atol=1e-6)


@pytest.mark.keras
@pytest.mark.backends
def test_threshold_by_its_name_alone_cannot_be_called_in_keras():
    with pytest.raises(TypeError, match="default_value"):
        keras.activations.get("threshold")(keras.ops.zeros(2))


@pytest.mark.parametrize("name", IN_KERNELS)
def test_derivative_of_an_activation_equals_finite_differences_away_from_kinks(name):
    x = np.linspace(-7, 7, 57) + 0.0137
    activation, step = activation_of(name), 1e-5
    numeric = (activation.value(x + step) - activation.value(x - step)) / (2 * step)
    np.testing.assert_allclose(activation.derivative(x), numeric, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", KINKS)
def test_derivative_of_an_activation_at_a_kink_is_that_of_most_backends(name):
    at = np.array(list(KINKS[name]), np.float64)
    np.testing.assert_allclose(activation_of(name).derivative(at), list(KINKS[name].values()), rtol=1e-12)


def slopes_in_keras(name: str, x: np.ndarray) -> np.ndarray:
    """The derivatives of Keras's activation that the backend's own differentiation gives."""
    function = in_keras(name)
    if BACKEND == "jax":
        import jax

        return np.asarray(jax.vmap(jax.grad(function))(x))
    if BACKEND == "torch":
        import torch

        at = torch.tensor(x, requires_grad=True)
        function(at).sum().backward()
        return at.grad.numpy()
    import tensorflow as tf

    at = tf.Variable(x)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(function(at))
    return tape.gradient(total, at).numpy()


@pytest.mark.keras
@pytest.mark.backends
# The approximate GELU has no kink, and Keras's own loses digits far below 0.
@pytest.mark.parametrize("name", [name for name in IN_FILES if not name.startswith("gelu(")])
def test_derivative_at_every_kink_is_that_of_the_backend(name):
    x = np.array([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, -6.0], np.float32)
    found = activation_of(on_backend(name, BACKEND)).derivative(x.astype(np.float64))
    np.testing.assert_allclose(found, slopes_in_keras(name, x), rtol=2e-6, atol=1e-6)


@pytest.mark.keras
@pytest.mark.backends
@pytest.mark.parametrize("name", ["hard_shrink", "soft_shrink"])
def test_shrink_of_no_number_is_that_of_the_backend(name):
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    of_keras = keras.activations.get(name)(keras.ops.convert_to_tensor(x))
    found = activation_of(on_backend(name, BACKEND)).value(x.astype(np.float64))
    np.testing.assert_array_equal(found, keras.ops.convert_to_numpy(of_keras))


@pytest.mark.parametrize("name", [name for name in IN_KERNELS if name != "exponential"])
def test_activation_far_out_is_a_number(name):
    far = np.array([-1e4, -800.0, 800.0, 1e4])
    assert np.isfinite(activation_of(name).value(far)).all()
    assert np.isfinite(activation_of(name).derivative(far)).all()


def test_every_activation_has_a_meaning():
    assert {activations.read(name)[0] for name in IN_KERNELS} == set(NAMES)


def numeric_gradient(variant: Variant, name: str, weights: list[np.ndarray]) -> np.ndarray:
    """Central differences of the results weighted by `weights`, one number of an argument at a time."""
    # Where the errors of truncation and of rounding meet, both at about 4e-11 of the values.
    step = np.finfo(np.float64).eps ** (1 / 3)
    # Left-out states are zeros, and have gradients all the same.
    value = np.array(variant.differentiable.get(name, np.zeros((B, H))), np.float64)
    gradient = np.zeros_like(value)
    for index in np.ndindex(value.shape):
        losses = []
        for sign in (1, -1):
            moved = value.copy()
            moved[index] += sign * step
            found = variant.forward(**{name: moved})
            results = (found.outputs, found.h_T, found.c_T)
            losses.append(sum(np.sum(w * r) for w, r in zip(weights, results, strict=True)))
        gradient[index] = (losses[0] - losses[1]) / (2 * step)
    return gradient


def assert_gradients_equal_finite_differences(variant: Variant):
    weights = cotangents()
    found = backward(variant.forward(), *weights)
    assert set(found) == {"x", "kernel", "recurrent_kernel", "h0", "c0"} | (
        {"bias"} if variant.bias else set()
    )
    for name, gradient in found.items():
        numeric = numeric_gradient(variant, name, weights)
        assert np.abs(numeric).max() > 0.01, f"{name} is not tried"
        # Hundreds of times that error: a loss and its third derivative are larger than a gradient.
        assert_close(gradient, numeric, 1e-8)


DIFFERENTIATED = [
    pytest.param(Variant(*case), marks=marks, id=str(Variant(*case)))
    for case, marks in marked((None, *MASKED_OUTPUTS), *[(False, True)] * 4)
]


@pytest.mark.parametrize("variant", DIFFERENTIATED)
def test_gradients_of_all_results_equal_finite_differences(variant):
    assert_gradients_equal_finite_differences(variant)


@pytest.mark.parametrize("name", IN_KERNELS)
@pytest.mark.parametrize("place", ["activation", "recurrent_activation"])
def test_gradients_through_an_activation_equal_finite_differences(name, place):
    assert_gradients_equal_finite_differences(Variant("previous_state", states=True, **{place: name}))


@pytest.mark.parametrize("masked_output", MASKED_OUTPUTS)
def test_gradients_of_one_result_alone_add_up_to_those_of_all(masked_output):
    found = Variant(masked_output, states=True).forward()
    d_outputs, d_h_T, d_c_T = cotangents()
    parts = [backward(found, d_outputs), backward(found, d_h_T=d_h_T), backward(found, d_c_T=d_c_T)]
    for name, gradient in backward(found, d_outputs, d_h_T, d_c_T).items():
        assert_close(sum(part[name] for part in parts), gradient, 1e-14)


def test_gradients_of_nothing_are_zeros_of_the_shapes_of_the_arguments():
    variant = Variant(states=True)
    for name, gradient in backward(variant.forward()).items():
        np.testing.assert_array_equal(gradient, np.zeros(variant.differentiable[name].shape))


def test_backward_twice_over_changed_arguments_gives_the_same():
    variant = Variant("previous_output", states=True, dropout=True)
    given = {name: np.array(a, np.float64) for name, a in variant.differentiable.items()}
    others = {name: np.array(a) for name, a in variant.others.items()}
    found = forward(Arguments(**given, **others), variant.options)
    first = backward(found, *cotangents())
    for array in (*given.values(), *others.values()):
        array[:] = 0
    second = backward(found, *cotangents())
    for name, gradient in first.items():
        np.testing.assert_array_equal(gradient, second[name])


@pytest.mark.parametrize(
    ("masked_output", "before", "after"),
    [("previous_output", 0, 1), ("previous_state", 1, 1), ("zero", 0, 0)],
)
def test_masked_step_keeps_the_states_and_puts_out_what_was_asked(masked_output, before, after):
    variant = Variant(masked_output, states=True)
    h0, c0 = variant.differentiable["h0"], variant.differentiable["c0"]
    found = variant.forward()
    # Row 0 counts steps 1 and 3, row 3 none.
    np.testing.assert_array_equal(found.outputs[0, 0], h0[0] * before)
    np.testing.assert_array_equal(found.outputs[0, 2], found.outputs[0, 1] * after)
    np.testing.assert_array_equal(found.outputs[3], [h0[3] * before] * T)
    np.testing.assert_array_equal([found.h_T[3], found.c_T[3]], [h0[3], c0[3]])
    np.testing.assert_array_equal(found.h_T[0], found.outputs[0, 3])
    np.testing.assert_array_equal(found.h_T[2], found.outputs[2, 1])


@pytest.mark.parametrize("masked_output", MASKED_OUTPUTS)
def test_going_backwards_equals_going_forwards_over_the_reversed_sequence(masked_output):
    variant = Variant(masked_output, go_backwards=True, states=True, dropout=True)
    found = variant.forward()
    given, others = variant.differentiable, variant.others
    reversed_ = {"x": given["x"][:, ::-1], "mask": MASK[:, ::-1]}
    forwards = dataclasses.replace(variant.options, go_backwards=False)
    expected = forward(Arguments(**given | others | reversed_), forwards)
    np.testing.assert_array_equal(found.outputs, expected.outputs)
    np.testing.assert_array_equal(found.c_T, expected.c_T)
    d_x, d_reversed = (backward(f, *cotangents())["x"] for f in (found, expected))
    np.testing.assert_array_equal(d_x, d_reversed[:, ::-1])


def test_forward_of_float32_is_computed_in_float64():
    variant = Variant(states=True)
    wide = {name: array.astype(np.float64) for name, array in variant.differentiable.items()}
    found, expected = variant.forward(), variant.forward(**wide)
    assert found.outputs.dtype == found.h_T.dtype == found.c_T.dtype == np.float64
    np.testing.assert_array_equal(found.outputs, expected.outputs)


@pytest.mark.parametrize(
    ("name", "shape"), [("mask", (B, 1)), ("h0", (1, H)), ("dropout", (4, 1, D)), ("bias", (1,))]
)
def test_forward_of_a_shape_that_would_broadcast_is_refused(name, shape):
    with pytest.raises(ConfigError, match=f"{name} has shape"):
        forward(Arguments(**Variant().differentiable | {name: np.ones(shape)}))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("d_outputs", (T, B, H), "(B, T, H) = (5, 4, 3)"),
        ("d_h_T", (1, H), "(B, H) = (5, 3)"),
        ("d_c_T", (H,), "(B, H) = (5, 3)"),
    ],
)
def test_backward_of_a_gradient_of_another_shape_is_refused(name, shape, expected):
    with pytest.raises(ConfigError) as caught:
        backward(Variant().forward(), **{name: np.ones(shape)})
    assert str(caught.value).startswith(
        f"{name} has shape {shape}; expected {expected}, the shape of the result."
    )
