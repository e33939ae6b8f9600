"""Starts the Keras backend of a command, quietly.

TensorFlow makes this hard: at start-up it prints a page of notes that no setting turns off, and Keras imports
it even for another backend, only to ask whether an object is one of TensorFlow's.
"""

import contextlib
import gc
import importlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from cellerate.files import cache_dir, check_model_file
from cellerate.machine.environment import select_backend

# What TensorFlow's C++ side prints before its logging can be configured.
_NOTES = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} .*(port\.cc|cudart_stub\.cc|cuda_platform\.cc|cpu_feature_guard\.cc|util\.cc)"
    r"|To enable the following instructions:"
    r"|INFO: Created TensorFlow Lite"
)
# Keras imports these where they are installed, for its wrappers, plots and frames, of which no verb uses any; and JAX
# under other backends, too.
_NOT_FOR_KERAS = frozenset({"IPython", "jax", "matplotlib", "pandas", "sklearn"})


def start_backend(name: str | None, join: Callable[[str], None] | None = None) -> str:
    """Selects the backend and imports Keras.

    Args:
        name: "tensorflow", "jax", "torch" or None; see `environment.select_backend`.
        join: Called with the backend's name before the backend looks for devices, to meet other processes.

    Returns:
        The backend's name.

    Raises:
        BackendError: The name is unknown, or that backend or Keras is not installed.
    """
    backend = select_backend(name)
    if backend != "tensorflow":
        _leave_out_tensorflow()
    with without_notes():
        with (
            _left_out(_NOT_FOR_KERAS - {backend, *sys.modules}),
            _one_thread_for_lapack(backend),
            _without_collecting(),
        ):
            importlib.import_module("keras")
        if join is not None:
            join(backend)
        # TensorFlow complains about a missing GPU when it looks for devices.
        importlib.import_module(f"cellerate.bridges.{backend}").gpu_available()
    logging.getLogger("tensorflow").addFilter(is_not_on_retracing)
    if join is None:
        _keep_programs(backend)
    return backend


def is_not_on_retracing(record: logging.LogRecord) -> bool:
    """Return False for TensorFlow's advice on functions that are compiled again.

    Commands that try several models must compile each one, and a user cannot change that.
    """
    return "triggered tf.function retracing" not in record.getMessage()


def start_backend_for(
    model: Path, name: str | None, data: Sequence[str | os.PathLike[str]] = (), *, packed: bool = True
) -> None:
    """Select the backend and import Keras, unless a model is packed, which needs neither.

    Args:
        model: The model's file.
        name: As for `start_backend`.
        data: The files and folders that are read with it.
        packed: Whether the command can use a packed model.

    Raises:
        CellerateError: The model or the data are not there, or see `start_backend`.
    """
    starts = not packed or model.suffix != ".cell"
    if starts:
        select_backend(name)
        check_model_file(model)
    if data:
        from cellerate.data.files import check_exist

        check_exist(data)
    if starts:
        start_backend(name)


def _keep_programs(backend: str) -> None:
    """Let a backend that compiles its programs cache them for the next command."""
    if backend == "jax":
        importlib.import_module("cellerate.bridges.jax_programs").keep_programs(cache_dir())


class _LeftOut(Loader):
    """Makes importing some packages fail, which saves seconds and memory.

    Args:
        names: The packages.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Take over imports of these packages; they still count as installed, which torch checks."""
        return ModuleSpec(name, self) if name in self._names else None

    def exec_module(self, module: ModuleType) -> None:
        """Raises the error that the importer sees."""
        raise ModuleNotFoundError(
            f"{module.__name__} is left out: this command does not need it", name=module.__name__
        )


def _leave_out_tensorflow() -> None:
    """Leave TensorFlow out for the rest of this process."""
    sys.meta_path.insert(0, _LeftOut(frozenset({"tensorflow"})))


@contextlib.contextmanager
def _left_out(names: frozenset[str]) -> Iterator[None]:
    """Leave packages out within a `with`; afterwards they can be imported as usual."""
    finder = _LeftOut(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def arrow_without_pandas() -> None:
    """Stop Arrow from importing pandas in this process, which it does when it first hands numbers to NumPy.

    Arrow looks for pandas once, only to recognise pandas' own values, which tables in files do not have.
    """
    with _left_out(frozenset({"pandas"}) - set(sys.modules)):
        arrow = importlib.import_module("pyarrow")
        arrow.array([0.0, None]).to_numpy(zero_copy_only=False)


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Stop garbage collection during imports, which make no garbage: it takes a tenth of importing Keras."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def _one_thread_for_lapack(backend: str) -> Iterator[None]:
    """Give JAX's LAPACK, which is SciPy's, one thread: on busy processors its threads mostly wait for each other.

    A QR decomposition for the first weights of 256 units then takes 10 ms instead of 60 to 1,000, with the same bits.
    NumPy's LAPACK is another copy, which is already loaded and keeps its threads.
    """
    name = "OPENBLAS_NUM_THREADS"
    if backend != "jax" or name in os.environ:
        yield
        return
    importlib.import_module("numpy")
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


@contextlib.contextmanager
def without_notes() -> Iterator[None]:
    """Keeps the notes of TensorFlow and LiteRT from stderr; passes on every other line, even if an import fails."""
    import tempfile

    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            caught.seek(0)
            lines = caught.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if not _NOTES.match(line)))
