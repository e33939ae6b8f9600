import numpy as np

from cellerate.data.arrays import unmasked
from cellerate.data.loaders.loader import numbers_of


def test_masked_numbers_become_nan_and_others_stay_as_they_are():
    masked = np.ma.masked_greater(np.arange(4, dtype=np.float32), 2)
    assert unmasked(masked).dtype == np.float32
    np.testing.assert_array_equal(unmasked(masked), np.array([0, 1, 2, np.nan], np.float32))
    np.testing.assert_array_equal(numbers_of("data", masked.astype(int)), [0, 1, 2, np.nan])
    nothing_masked, texts = np.ma.array([1, 2]), ["a"]
    assert unmasked(nothing_masked) is nothing_masked
    assert unmasked(texts) is texts
