"""Fixtures of the native core's tests."""

from collections.abc import Iterator

import pytest

from cellerate.kernels import native


@pytest.fixture
def native_settings() -> Iterator[None]:
    """Two threads whatever the machine has, and what a test sets is put back."""
    target, threads = native.target(), native.num_threads()
    native.set_num_threads(2)
    yield
    native.set_target(target)
    native.set_num_threads(threads)
