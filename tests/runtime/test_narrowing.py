"""int4 in groups: nearest numbers, scales that can be read from the result, and bytes that count."""

import numpy as np
import pytest

from cellerate.runtime.cell_format import BFLOAT16, FLOAT32, INT4, INT8
from cellerate.runtime.narrowing import GROUP, kept_bytes_of, narrow, rounded, widen

FLOAT_MAX = np.finfo(np.float32).max
TINY = np.finfo(np.float32).tiny


def bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def numbers_of(pairs: np.ndarray, columns: int) -> np.ndarray:
    halves = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(len(pairs), -1)[:, :columns].astype(int)
    return np.where(halves > 7, halves - 16, halves)


def adversarial() -> np.ndarray:
    """A kernel of 2 groups and some rows: zeros, the smallest and largest numbers, ties, one large, random ones."""
    rng = np.random.default_rng(4)
    rows = 2 * GROUP + 5
    special = np.zeros((rows, 9))
    special[3, 1], special[40, 1] = TINY / 2**20, -TINY
    special[:, 2] = np.where(np.arange(rows) % 2, FLOAT_MAX, -FLOAT_MAX)
    special[:, 3] = np.where(np.arange(rows) % 2, 1.0, -1.0)
    special[:, 4] = np.arange(rows) % 17 - 8.5
    special[:, 5] = 1e-30
    special[7, 5] = 1e30
    special[:, 6] = -3
    special[-1, 7] = 2
    special[:, 8] = 8 * TINY
    spread = rng.normal(size=(rows, 2000)) * 2.0 ** rng.integers(-140, 120, 2000)
    mixed = rng.normal(size=(rows, 2000)) * 2.0 ** rng.integers(-40, 40, (rows, 2000))
    return np.concatenate([special, spread, mixed], axis=1).astype(np.float32)


def test_int4_of_a_group_is_the_nearest_multiple_of_its_largest_number_over_minus_8() -> None:
    kernel = np.zeros((34, 3), np.float32)
    kernel[:5, 0] = [-8, 7.4, 2.5, 3.5, 8]
    kernel[:3, 1] = [16, -3, 5]
    kernel[33, 1] = 0.5
    pairs, scale = narrow(kernel, INT4)
    assert scale is not None
    assert pairs.shape == (34, 2)
    assert bfloat16(scale).tolist() == [[1, -2, 1], [1, -0.0625, 1]]
    found = numbers_of(pairs, 3)
    assert found[:5, 0].tolist() == [-8, 7, 2, 4, 7]
    assert found[:3, 1].tolist() == [-8, 2, -2]
    assert found[33].tolist() == [0, -8, 0]
    assert not found[:, 2].any()


def test_int4_of_what_was_widened_gives_the_same_bytes() -> None:
    kernel = adversarial()
    pairs, scale = narrow(kernel, INT4)
    wide = widen(pairs, scale)
    assert np.isfinite(wide).all()
    again, scale_again = narrow(wide, INT4)
    np.testing.assert_array_equal(again, pairs)
    np.testing.assert_array_equal(scale_again, scale)
    np.testing.assert_array_equal(rounded(wide, INT4).view(np.uint32), wide.view(np.uint32))


def test_int4_errs_by_half_a_scale_but_where_7_is_the_end() -> None:
    kernel = adversarial()
    pairs, scale = narrow(kernel, INT4)
    assert scale is not None
    steps = np.repeat(bfloat16(scale).astype(np.float64), GROUP, axis=0)[: len(kernel)]
    found = numbers_of(pairs, kernel.shape[1])
    quotient = kernel / steps
    assert (found.min(), found.max()) == (-8, 7)
    # A scale is rounded by less than 2^-8 of the largest number.
    allowed = np.where(quotient > 7.5, 1 + 9 * 2**-8, 0.5 + 9 * 2**-8)
    assert (np.abs(found - quotient) <= allowed).all()


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (31, 2), (32, 3), (33, 4), (96, 7)])
def test_kept_bytes_are_those_of_the_arrays(rows: int, columns: int) -> None:
    array = np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32)
    for dtype in (FLOAT32, BFLOAT16, INT8, INT4):
        values, scale = narrow(array, dtype)
        assert kept_bytes_of(array, dtype) == values.nbytes + (0 if scale is None else scale.nbytes)
        assert rounded(array, dtype).shape == array.shape


def test_int4_of_normal_weights_errs_less_than_from_minus_7_to_7() -> None:
    kernel = np.random.default_rng(2).normal(size=(256, 64)).astype(np.float32)
    grouped = kernel.reshape(-1, GROUP, 64)
    scale = np.abs(grouped).max(axis=1, keepdims=True) / 7
    symmetric = np.square(np.rint(grouped / scale) * scale - grouped).mean()
    assert np.square(rounded(kernel, INT4) - kernel).mean() < 0.9 * symmetric


@pytest.mark.parametrize("groups", [0, 1, 3])
def test_int4_with_scales_of_fewer_or_more_groups_than_rows_is_refused(groups: int) -> None:
    pairs, scale = narrow(adversarial()[: GROUP + 1], INT4)
    assert scale is not None
    assert len(scale) == 2
    wrong = np.resize(scale, (groups, scale.shape[1]))
    with pytest.raises(ValueError, match="for each column of each 32 rows"):
        widen(pairs, wrong)


def test_int4_group_that_does_not_reach_its_end_is_refused_wherever_it_is() -> None:
    # The core would find another scale in the floats, and its results would differ from NumPy's.
    kernel = np.random.default_rng(5).normal(size=(GROUP + 3, 5)).astype(np.float32)
    pairs, scale = narrow(kernel, INT4)
    for row in range(len(pairs)):
        for half in (15, 240):
            changed = pairs.copy()
            changed[row] &= half
            whole = (numbers_of(changed, 5) == -8)[:GROUP].any(axis=0).all()
            whole &= (numbers_of(changed, 5) == -8)[GROUP:].any(axis=0).all()
            if whole:
                widen(changed, scale)
                continue
            with pytest.raises(ValueError, match="does not reach -8"):
                widen(changed, scale)


@pytest.mark.parametrize("dtype", [INT8, INT4], ids=["int8", "int4"])
def test_kernel_of_zeros_has_scales_of_1_alone(dtype: np.dtype) -> None:
    values, scale = narrow(np.zeros((GROUP + 1, 3), np.float32), dtype)
    assert scale is not None
    assert not widen(values, scale).any()
    other = (scale * 2).astype(scale.dtype) if dtype == INT8 else scale + np.uint16(128)
    with pytest.raises(ValueError, match="reach"):
        widen(values, other)
