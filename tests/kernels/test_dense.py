"""The native core's dense layer against float64."""

import ml_dtypes
import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.kernels import dense, native

# Rows beyond one chunk, odd sizes, and each tile of rows that is left over.
SHAPES = [(1, 1, 1), (5, 7, 3), (13, 65, 33), (101, 40, 96), (771, 64, 17), (2000, 33, 129)]
# Root mean squares relative to those of the expected values; bfloat16 rounds each result to 8 bits.
LIMITS = {"float32": 1e-6, "bfloat16": 3e-3}


@pytest.fixture(
    params=native.available_targets() if native.why_unavailable() is None else ["none"], autouse=True
)
def target(request):
    before = native.target()
    native.set_target(request.param)
    assert native.target() == request.param
    yield request.param
    native.set_target(before)


def case(shape, dtype, bias=True):
    """x, kernel, bias and a cotangent, of numbers that bfloat16 holds exactly."""
    rows, inputs, outputs = shape
    random = np.random.default_rng(rows)

    def draw(*size):
        return random.standard_normal(size).astype(ml_dtypes.bfloat16).astype(np.float32)

    x, kernel, d_y = draw(rows, inputs), draw(inputs, outputs), draw(rows, outputs)
    return x.astype(dtype), kernel, draw(outputs) if bias else None, d_y.astype(dtype)


def error(got, expected):
    return np.sqrt(np.mean((got.astype(np.float64) - expected) ** 2) / np.mean(expected**2))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "M{}-K{}-N{}".format(*s))
def test_value_and_gradients_equal_float64(shape, dtype, bias):
    x, kernel, b, d_y = case(shape, dtype, bias)
    wide = [None if a is None else a.astype(np.float64) for a in (x, kernel, b, d_y)]
    limit = LIMITS[np.dtype(dtype).name]
    assert error(dense.dense(x, kernel, b), wide[0] @ wide[1] + (0 if b is None else wide[2])) < limit
    d_x, d_kernel, d_bias = dense.dense_backward(x, kernel, b, d_y)
    assert error(d_x, wide[3] @ wide[1].T) < limit
    assert error(d_kernel, wide[0].T @ wide[3]) < 1e-6
    if b is None:
        assert d_bias is None
    else:
        assert error(d_bias, wide[3].sum(0)) < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_bits_do_not_depend_on_the_number_of_threads(dtype):
    arguments = case((1999, 65, 97), dtype)
    before, found = native.num_threads(), []
    try:
        for threads in (1, 2, 3):
            native.set_num_threads(threads)
            results = (dense.dense(*arguments[:3]), *dense.dense_backward(*arguments))
            found.append([array.tobytes() for array in results])
    finally:
        native.set_num_threads(before)
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kernel": np.zeros((4, 3), np.float32)}, "kernel: expected shape (K, N) = (7, N), got (4, 3)"),
        ({"bias": np.zeros(5, np.float32)}, "bias: expected shape (N,) = (3,), got (5,)"),
        ({"kernel": np.zeros((7, 3))}, "kernel: expected dtype float32"),
        ({"x": np.zeros((5, 7), np.int32)}, "x: expected dtype float32 or bfloat16, got int32"),
    ],
)
def test_wrong_argument_is_named_with_both_shapes(change, words):
    x, kernel, bias, _ = case((5, 7, 3), np.float32)
    with pytest.raises(ConfigError) as raised:
        dense.dense(**({"x": x, "kernel": kernel, "bias": bias} | change))
    assert words in str(raised.value)
