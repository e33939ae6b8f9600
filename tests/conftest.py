"""Shared fixtures. Tests marked `backends` run once on each backend, each backend in its own process."""

import gc
import os
import re
from importlib import metadata
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Of this process, not of one that a test starts.
_FAILED_TESTS = os.environ.pop("FAILED_TESTS", "")


def _quick_xla() -> str:
    """What makes XLA compile two to three times as fast, programs that then run a little slower.

    Most of the suite's time on JAX would go into optimizing small programs that run once, and none of them is ours:
    the native core comes compiled. `make test-slow` tests the layers as users run them, with XLA_FLAGS empty.
    """
    flags = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
    if os.environ.get("KERAS_BACKEND") == "jax" and _has_older_emitters():
        flags.append("--xla_cpu_use_fusion_emitters=false")
    return " ".join(flags)


def _has_older_emitters() -> bool:
    """True if JAX's XLA can do without fusion emitters: it ends the process on a flag that it does not know."""
    try:
        version = metadata.version("jaxlib")
    except metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in version.split(".")[:2]) < (0, 12)


# Other flags, such as those of `make test-lesser`, join these; empty ones leave these out.
if os.environ.get("XLA_FLAGS") != "":
    os.environ["XLA_FLAGS"] = " ".join([_quick_xla(), *os.environ.get("XLA_FLAGS", "").split()])


_OF_ALL = re.compile(r"^pytestmark = .*?(?=^\S|\Z)", re.DOTALL | re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out a file without a test that `-m` asks for: its imports would take longer than to read it does."""
    asked = str(config.option.markexpr)
    if collection_path.suffix != ".py" or re.search(r"\bor\b|[()]", asked):
        return None
    words, text = asked.split(" and "), collection_path.read_text(encoding="utf-8")
    of_all = _OF_ALL.search(text)
    lacks = any(mark in words and f"mark.{mark}" not in text for mark in ("keras", "backends"))
    all_have = "not keras" in words and of_all is not None and "mark.keras" in of_all[0]
    return True if lacks or all_have else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test of every backend must need Keras, or the part of the suite without Keras would run it as well."""
    for item in items:
        if item.get_closest_marker("backends") and not item.get_closest_marker("keras"):
            raise pytest.UsageError(f"{item.nodeid} is marked `backends` and not `keras`: give it both.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Leaves the names of the tests that failed where the Makefile lists those of all its parts in the end."""
    if _FAILED_TESTS:
        reports = [each for kind in ("failed", "error") for each in terminalreporter.getreports(kind)]
        Path(_FAILED_TESTS).write_text("".join(f"{report.nodeid}\n" for report in reports))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What a framework made at its import stays to the end: Python need not look for garbage there again and again.

    Nor as often as it does by itself, after every 700 new objects: building and compiling models makes so many that a
    tenth of the suite's time went into it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Layers that a test gives no seed begin with the same weights in every run, whatever ran before."""
    if item.get_closest_marker("keras"):
        import keras

        keras.utils.set_random_seed(0)


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


@pytest.fixture(autouse=True)
def _kernels_for_few_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has accelerated layers run the kernels for few time steps, too, which most tests have, on any backend."""
    if request.node.get_closest_marker("keras") and not request.node.get_closest_marker("few_steps"):
        from cellerate.layers import fused

        monkeypatch.setattr(fused, "FEWEST_STEPS", {})
