"""Shared fixtures. Tests marked `keras` run once on each backend, each backend in its own process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

_SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    """The folder with the real inputs; a machine without it skips, CI never does."""
    if not _SHARED_DATA.is_dir():
        if os.environ.get("CI"):
            pytest.fail(f"the real inputs are missing: {_SHARED_DATA}")
        pytest.skip(f"needs the real inputs in {_SHARED_DATA}")
    return _SHARED_DATA


@pytest.fixture(autouse=True)
def _private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the user's cache."""
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def compiled_quickly() -> Iterator[None]:
    """For modules in which nearly all the time goes, on JAX, into compiling what is not ours."""
    import keras

    if keras.config.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
