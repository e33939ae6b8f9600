"""Fixtures of the native core's tests."""

from collections.abc import Iterator

import pytest

from cellerate.kernels import cpu


@pytest.fixture
def native_settings() -> Iterator[None]:
    """Two threads whatever the machine has, and what a test sets is put back."""
    target, threads = cpu.target(), cpu.num_threads()
    cpu.set_num_threads(2)
    yield
    cpu.set_target(target)
    cpu.set_num_threads(threads)
