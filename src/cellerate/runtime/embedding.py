"""Lines to vectors with a packed model, and vectors to a file: neither Keras nor a framework is needed.

A line model's task record says what its ids mean and where its lines are padded. This module reads that record
without trusting it, for Keras models with such a record too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from cellerate.data.files import Errors
from cellerate.data.settings import Padding
from cellerate.data.text import LineVocabulary, encode_batches, given_lines
from cellerate.errors import ConfigError, ModelError
from cellerate.files import atomic_write, write_parquet
from cellerate.machine.environment import require
from cellerate.runtime.cell import Cell
from cellerate.runtime.program import Engine

# No line is longer, and NumPy's integers have a limit.
_LONGEST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class LineSettings:
    """The way a line model was trained to read lines.

    Attributes:
        vocabulary: Its characters.
        max_length: How many characters of a line are read.
        padding: Where short lines are padded.
    """

    vocabulary: LineVocabulary
    max_length: int
    padding: Padding


def line_settings(payload: Any, model: str) -> LineSettings:
    """The settings in the task record of a line model.

    Args:
        payload: The record; any JSON.
        model: What messages call the model.

    Raises:
        ModelError: The record is damaged.
    """
    try:
        if not isinstance(payload, dict):
            raise ValueError("it is not a dictionary")
        vocabulary = LineVocabulary.from_config(payload.get("vocabulary"))  # type: ignore[arg-type]
        length: Any = payload.get("max_length")
        padding: Any = payload.get("padding")
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= _LONGEST:
            raise ValueError(f"max_length must be an integer from 1 to {_LONGEST}, not {length!r:.40}")
        if padding not in get_args(Padding):
            raise ValueError(f"padding must be one of {', '.join(get_args(Padding))}, not {padding!r:.40}")
    except ValueError as error:
        reason = str(error).rstrip(".")
        raise ModelError(
            f"the task record of {model} is damaged: {reason}. Train the model again."
        ) from error
    return LineSettings(vocabulary, length, padding)


class Embedder:
    """The encoder of a packed line model.

    Args:
        cell: What its file holds.
        engine: Runs the part of its program that the vectors need.

    Raises:
        ModelError: The record is damaged, or the program is not an encoder of the record's characters.
    """

    def __init__(self, cell: Cell, engine: Engine) -> None:
        self._settings = line_settings(cell.header.get("payload"), "this packed model")
        self._engine = engine
        program = engine.program
        if "source" not in program.inputs or "vector" not in program.outputs:
            raise ModelError(
                "this packed model does not make vectors: expected an input 'source' and an output 'vector', found "
                f"{_listed(program.inputs)} and {_listed(program.outputs)}. Pack the trained autoencoder again."
            )
        source, size = program.inputs["source"], self._settings.vocabulary.size
        tables = [
            node.arrays["embeddings"]
            for node in program.nodes
            if node.inputs.get("ids") == source and node.arrays
        ]
        if any(len(table) != size for table in tables):
            raise ModelError(
                f"this packed model reads {len(tables[0])} different ids, its vocabulary has {size}: pack it with "
                "the record that it was trained with."
            )

    def embed(
        self,
        lines: Any,
        *,
        batch_size: int,
        errors: Errors,
        progress: Callable[[int, int], None] | None,
    ) -> np.ndarray:
        """See `PackedModel.embed`."""
        lines = given_lines(lines)
        known = self._settings
        batches = encode_batches(
            lines, known.vocabulary, batch_size, known.max_length, known.padding, errors=errors
        )
        vectors: np.ndarray | None = None
        done = 0
        for numbers, source in batches:
            # Padding rows save a compiler another shape; the engine does not compile, so it drops them.
            found = self._engine.run({"source": source[: len(numbers)]}, ["vector"])["vector"]
            if vectors is None and found.ndim == 2:
                vectors = np.empty((len(lines), found.shape[1]), np.float32)
            if vectors is None or found.shape != (len(numbers), vectors.shape[1]):
                raise ModelError(
                    f"this packed model gives {found.shape} of {len(numbers)} lines, where a vector a line was "
                    "expected: pack the trained autoencoder again."
                )
            vectors[numbers] = found
            done += len(numbers)
            if progress is not None:
                progress(done, len(lines))
        assert vectors is not None  # noqa: S101 (encode_batches refuses no lines)
        return vectors


def check_vectors_path(path: str | Path) -> None:
    """Raise the errors that `save_vectors` would raise about `path`, before any work is done.

    Raises:
        ConfigError: The suffix is neither ".npy" nor ".parquet".
        BackendError: It is ".parquet", and the package `pyarrow` is not installed.
    """
    suffix = Path(path).suffix
    if suffix not in (".npy", ".parquet"):
        raise ConfigError(f"vectors are written as .npy or .parquet, not {Path(path).name!r}.")
    if suffix == ".parquet":
        require("pyarrow", "tables", "writing Parquet files")


def save_vectors(vectors: np.ndarray, path: str | Path, lines: Sequence[str] | None = None) -> None:
    """Writes vectors as `.npy`, or as Parquet with a column `vector` (and `line`, if lines are given).

    Raises:
        ConfigError, BackendError: See `check_vectors_path`.
        OutputError: The file cannot be written.
    """
    check_vectors_path(path)
    path = Path(path)
    if path.suffix == ".parquet":
        write_parquet(path, ({} if lines is None else {"line": lines}) | {"vector": vector_column(vectors)})
        return
    with atomic_write(path) as beside, beside.open("wb") as file:
        np.save(file, vectors)


def vector_column(vectors: np.ndarray) -> Any:
    """(N, latent) vectors as a column of Arrow, each a list of fixed size."""
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])


def _listed(names: Any) -> str:
    return f"{', '.join(map(repr, names))}"[:80]
