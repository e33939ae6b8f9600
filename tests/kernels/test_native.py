"""What the native core measures of the machine."""

from cellerate.kernels import native


def test_measure_read_of_a_first_level_cache_is_faster_than_of_main_memory():
    assert native.measure_read(16 << 10) > native.measure_read(64 << 20) > 1e8
