"""The activations of every target, value by value: what csrc/cells/activations.h says of its errors.

A layer of one step gives an activation's value as c_T and its derivative as the gradient of x: the input gate is
held at 1, the kernel of the candidate is 1, and everything else 0.
"""

import numpy as np
import pytest

from cellerate.activations import VARIANTS
from cellerate.kernels import native
from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.reference_activations import activation_of
from cellerate.kernels.lstm.spec import LstmOptions
from support.activation_names import IN_KERNELS, VARIANTS_WITH_PARAMETERS, WITH_PARAMETERS

# Between -30 and 30, and close to 0 where relative errors show; none is a kink, where derivatives are a convention.
POINTS = np.concatenate(
    [np.linspace(-30.0003, 29.9998, 60_001), np.geomspace(1e-8, 0.9, 2_000), -np.geomspace(1e-8, 0.9, 2_000)]
).astype(np.float32)
# Units in the last place of float32.
ULPS = {"tanh": 4, "sigmoid": 4, "exponential": 2}
TANH_ULPS_WITHOUT_FMA = 6


@pytest.fixture(
    params=native.available_targets() if native.why_unavailable() is None else ["none"], autouse=True
)
def target(request):
    before = native.target()
    native.set_target(request.param)
    assert native.target() == request.param
    yield request.param
    native.set_target(before)


def value_and_derivative(name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    arguments = cpu.Arguments(
        x=points.reshape(-1, 1, 1),
        kernel=np.array([[0, 0, 1, 0]], np.float32),
        recurrent_kernel=np.zeros((1, 4), np.float32),
        bias=np.array([1, 0, 0, 0], np.float32),
    )
    options = LstmOptions(activation=name, recurrent_activation="linear")
    done = cpu.forward(arguments, options)
    ones = np.ones_like(done.c_T)
    return done.c_T[:, 0], cpu.backward(arguments, done, options, d_c_T=ones)["x"][:, 0, 0]


@pytest.mark.parametrize("name", ULPS)
def test_value_stays_within_the_stated_ulps(name, target):
    limit = TANH_ULPS_WITHOUT_FMA if (name, target) == ("tanh", "scalar") else ULPS[name]
    got, _ = value_and_derivative(name, POINTS)
    expected = activation_of(name).value(POINTS.astype(np.float64))
    ulps = np.abs(got - expected) / np.spacing(np.abs(expected).astype(np.float32))
    assert ulps.max() <= limit, POINTS[ulps.argmax()]


@pytest.mark.parametrize("name", IN_KERNELS)
def test_value_and_derivative_are_near_the_reference(name):
    # The layer takes the activation of c_T as well, and e^e^x leaves float32 early.
    points = POINTS[np.abs(POINTS) < (4 if name == "exponential" else 20)]
    exact = activation_of(name)
    for got, function in zip(
        value_and_derivative(name, points), (exact.value, exact.derivative), strict=True
    ):
        expected = function(points.astype(np.float64))
        # Differences of nearly equal numbers, as in x - tanh(x), keep only the absolute error of their terms.
        scale = np.maximum(np.abs(expected), np.minimum(np.abs(points), 1))
        assert np.max(np.abs(got - expected) / np.maximum(scale, 1e-6)) < 2e-6


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "relu", "softplus", "elu", "hard_sigmoid"])
def test_value_far_out_is_the_limit_and_a_nan_stays(name):
    points = np.array([-1e38, -1000, 1000, 1e38, np.nan], np.float32)
    got, _ = value_and_derivative(name, points)
    with np.errstate(all="ignore"):
        expected = activation_of(name).value(points.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-37)


# What `bias` puts exactly at a kink: the value at each point, and the slope.
AT_KINKS = (
    *("selu", "leaky_relu", "celu", "hard_tanh", "sparse_sigmoid", "hard_shrink", "soft_shrink"),
    *[name for name in (*WITH_PARAMETERS, *VARIANTS_WITH_PARAMETERS) if "elu(approximate" not in name],
)


def at_points(name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `value_and_derivative`, but exact for a NaN: each point is the bias of a unit."""
    units = len(points)
    bias = np.zeros((4, units), np.float32)
    bias[0], bias[2] = 1, points
    arguments = cpu.Arguments(
        x=np.zeros((1, 1, 1), np.float32),
        kernel=np.zeros((1, 4 * units), np.float32),
        recurrent_kernel=np.zeros((units, 4 * units), np.float32),
        bias=bias.ravel(),
    )
    options = LstmOptions(activation=name, recurrent_activation="linear")
    done = cpu.forward(arguments, options)
    gradients = cpu.backward(arguments, done, options, d_c_T=np.ones_like(done.c_T))
    return done.c_T[0], gradients["bias"].reshape(4, units)[2]


@pytest.mark.parametrize("name", [*AT_KINKS, *VARIANTS])
def test_value_and_derivative_at_a_kink_are_exactly_the_reference(name):
    points = np.array([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, 3.0, 0.25, 0.75, 1.25], np.float32)
    exact = activation_of(name)
    for got, function in zip(at_points(name, points), (exact.value, exact.derivative), strict=True):
        np.testing.assert_allclose(got, function(points.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize(
    "name", ["hard_shrink", "soft_shrink", "hard_shrink_of_numbers", "soft_shrink_of_numbers"]
)
def test_shrink_of_no_number_is_the_reference(name):
    points = np.array([np.nan, np.inf, -np.inf], np.float32)
    with np.errstate(all="ignore"):
        expected = activation_of(name).value(points.astype(np.float64))
    np.testing.assert_array_equal(at_points(name, points)[0], expected)
