"""Where a program is computed: on the native core, on one of its targets, or on NumPy alone."""

import pytest

from cellerate.kernels import native, operation
from cellerate.runtime.program import engine


@pytest.fixture(params=["core", "numpy"])
def where(request, monkeypatch):
    assert native.why_unavailable() is None
    if request.param == "numpy":
        monkeypatch.setattr(native, "why_unavailable", lambda: "the test wants none")
        monkeypatch.setattr(operation, "call", None)
    return request.param


@pytest.fixture(params=native.available_targets())
def target(request):
    before = native.target()
    native.set_target(request.param)
    yield
    native.set_target(before)


@pytest.fixture(params=("one call", "an operation at a time"))
def way(request, monkeypatch):
    """Run a test with whole programs in the core, and without."""
    if request.param != "one call":
        monkeypatch.setattr(engine, "takes", lambda nodes: False)
    return request.param
