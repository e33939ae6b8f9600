"""Tests of whole steps, in which no batch may go Keras's own way unseen."""

import pytest

from cellerate.layers.engine.seam import _Stepper


@pytest.fixture
def misfits() -> None:
    """For a test whose batches go Keras's own way on purpose."""


@pytest.fixture(autouse=True)
def every_batch_fits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails at a batch that the engine leaves to Keras, because a test would then compare Keras with itself."""
    if "misfits" in request.fixturenames:
        return
    monkeypatch.setattr(
        _Stepper, "_misfit", lambda self, reason: pytest.fail(f"a batch went Keras's way: {reason}")
    )
