"""Starts the Keras backend of a command, quietly.

TensorFlow makes this hard: at start-up it prints a page of notes that no setting turns off, and Keras imports
it even for another backend, only to ask whether an object is one of TensorFlow's.
"""

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

from cellerate.machine.environment import select_backend

# What TensorFlow's C++ side prints before its logging can be configured.
_NOTES = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} .*(port\.cc|cudart_stub\.cc|cuda_platform\.cc|cpu_feature_guard\.cc|util\.cc)"
    r"|To enable the following instructions:"
    r"|INFO: Created TensorFlow Lite"
)


def start_backend(name: str | None, join: Callable[[str], None] = lambda _: None) -> str:
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
        sys.meta_path.insert(0, _NoTensorFlow())
    with without_notes():
        importlib.import_module("keras")
        join(backend)
        # TensorFlow complains about a missing GPU when it looks for devices.
        importlib.import_module(f"cellerate.bridges.{backend}").gpu_available()
    return backend


class _NoTensorFlow(Loader):
    """Makes importing TensorFlow fail in this process, which saves seconds and memory if it is not the backend."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Takes over imports of TensorFlow; it still counts as installed, which torch asks."""
        return ModuleSpec(name, self) if name == "tensorflow" else None

    def exec_module(self, module: ModuleType) -> None:
        """Raises the error that the importer sees."""
        raise ModuleNotFoundError(
            "TensorFlow is left out: it is not the backend of this command", name=module.__name__
        )


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
