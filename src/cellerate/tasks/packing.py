"""Packs a trained Keras model into one small file that runs without Keras, or into the same form in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras

import cellerate
from cellerate.data.tokenizers import HAS_OWN_VOCABULARY, Vocabulary, open_vocabulary
from cellerate.errors import ConfigError, ModelError
from cellerate.keras_graph.to_program import read_program
from cellerate.models.autoencoder import with_vectors
from cellerate.models.storage import TaskRecord, load_model
from cellerate.program import Program
from cellerate.runtime.cell import Cell, check_packed, narrowed, write_cell
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.signing import private_key, sign
from cellerate.runtime.text import id_counts


def pack(
    model: str | os.PathLike[str] | keras.Model,
    output: str | os.PathLike[str],
    *,
    precision: str = "float32",
    record: TaskRecord | None = None,
    vocabulary: Vocabulary | None = None,
    sign_key: str | os.PathLike[str] | None = None,
) -> None:
    """Writes a model into a `.cell` file, whole or not at all; `cellerate.load` opens it.

    Args:
        model: A Keras model, or its file, from Cellerate or anywhere else. It is not changed.
        output: Must end in ".cell".
        precision: How the matrices are kept: "float32", "bfloat16", "int8" or "int4".
        record: The record, as `load_model` returns it, of a model that is not given as a file.
        vocabulary: The meaning of the ids (or one-hot positions) of your own text model, as for
            `cellerate.generate`; kept in the file, which then needs nothing more to generate.
        sign_key: A file with a private key (PEM, Ed25519, no password), whose signature is written beside the output,
            as `book.cell.sig`; `cellerate.load(public_key=...)` checks it.

    Raises:
        BackendError: The package that signs is not installed.
        ConfigError: The output has another suffix, the precision is unknown, `record` is given with a file, or
            `sign_key` does not hold such a key.
        DataError: The vocabulary cannot be used.
        ModelError: The file is damaged, or the model cannot be packed; the message names all layers and all reasons,
            and nothing is written. With a vocabulary: the model is not a next-token model of that size.
        OutputError: The file could not be written.

    Example:
        >>> cellerate.pack("book.keras", "book.cell", precision="int8")
        >>> cellerate.pack(model, "mine.cell", vocabulary="book.txt")
    """
    target = Path(output)
    check_packed(target, precision)
    if sign_key is not None:
        private_key(sign_key)
    if not isinstance(model, keras.Model):
        if record is not None:
            raise ConfigError(
                "record is for a Keras model, and a file has its own record: leave one of them out."
            )
        model, record = load_model(model)
    program = read_program(packable(model, record))
    if vocabulary is not None:
        record = _with_vocabulary(program, record, vocabulary)
    digest = write_cell(target, program, precision=precision, header=_header(model, record))
    if sign_key is not None:
        sign(target, digest, sign_key)


def packed(
    model: keras.Model,
    record: TaskRecord | None = None,
    *,
    precision: str = "float32",
    device: str = "cpu",
) -> PackedModel:
    """Packs a model in memory: the same result as `pack` to a file and `cellerate.load` from it.

    Args:
        model: A model from Cellerate or anywhere else. Its weights are copied, so further training does not
            change the packed model.
        record: The model's record, as `load_model` returns it; its payload holds the tokenizer of a text model.
        precision: How the matrices are kept: "float32", "bfloat16", "int8" or "int4".
        device: As for `cellerate.load`.

    Raises:
        BackendError: The requested GPU cannot be used.
        ConfigError: The precision or the device is unknown.
        ModelError: The model cannot be packed; the message names all layers and all reasons.

    Example:
        >>> packed(model, precision="int8").predict(ids)
    """
    program = narrowed(read_program(packable(model, record)), precision)
    return PackedModel(Cell(program, precision, _header(model, record)), device)


def packable(model: keras.Model, record: TaskRecord | None) -> keras.Model:
    """The model to pack; for a line model, one that also outputs its vectors."""
    return with_vectors(model) if record is not None and record.task == "embed" else model


def _with_vocabulary(program: Program, record: TaskRecord | None, vocabulary: Vocabulary) -> TaskRecord:
    """Make the record of a text model that has none."""
    if record is not None:
        raise ConfigError(HAS_OWN_VOCABULARY)
    ids, logits = id_counts(program)
    tokenizer = open_vocabulary(vocabulary, logits)
    if ids != logits:
        raise ModelError(
            f"the model reads {ids:,} different ids and predicts {logits:,}: a text model has as many of both."
        )
    return TaskRecord("text", {"tokenizer": tokenizer.to_config()})


def _header(model: keras.Model, record: TaskRecord | None) -> dict[str, Any]:
    header: dict[str, Any] = {"cellerate": cellerate.__version__, "model": model.name}
    return header if record is None else header | {"task": record.task, "payload": record.payload}
