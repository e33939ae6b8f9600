"""The batches that train and judge a text model, and the check that a model can be one.

Custom models come in several forms, (B, T, V) or (B, V), logits or probabilities; only here do their batches
differ.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.text import EncodedText
from cellerate.data.tokenizers import Tokenizer
from cellerate.data.windows import ChangedBatches, MeanOverItems, StreamBatches, TextBatches
from cellerate.errors import DataError, ModelError
from cellerate.keras_graph.causality import looks_ahead
from cellerate.keras_graph.graph import functional_graph
from cellerate.messages import argument
from cellerate.tasks.settings import TextOptions


def text_sources(
    model: keras.Model, data: TextOptions, text: EncodedText, head: np.ndarray, tail: np.ndarray, seed: int
) -> tuple[BatchSource, BatchSource | None]:
    """The training batches, and the validation batches or None without a held-out part.

    Args:
        model: The model that reads the batches.
        data: The division of the text into parts and windows.
        text: The text.
        head: (N,) the ids to train on.
        tail: (M,) the ids that are held out.
        seed: The seed for the order of the windows.

    Raises:
        DataError: The text, or its held-out part, is too short.
    """
    unit = text.tokenizer.unit
    every_step = predicts_every_step(model)
    common: dict[str, Any] = {"length": data.length, "item": unit}
    if len(head) < data.length + 1:
        raise DataError(
            f"the training part has {len(head):,} {unit}, a window needs {data.length + 1:,} (the inputs "
            "and the next one). Give a longer text or a shorter length."
        )
    fingerprint = f"{text.fingerprint} head {len(head)}"
    source: BatchSource
    if data.carry_states:
        source = StreamBatches(head, batch_size=data.batch_size, data_fingerprint=fingerprint, **common)
    else:
        # A short text has fewer windows than a batch has rows; a smaller batch still trains.
        windows = max(1, (len(head) - 1) // data.length - 1)
        fixed = model.inputs[0].shape[0] is not None
        batch_size = data.batch_size if fixed else min(data.batch_size, windows)
        source = TextBatches(head, batch_size=batch_size, seed=seed, data_fingerprint=fingerprint, **common)
    if not every_step:
        source = _LastTarget(source)
    if len(tail) < 2:
        return source, None
    if not every_step and len(tail) <= data.length:
        raise DataError(
            f"the held-out part has {len(tail):,} {unit}, a window needs {data.length + 1:,}. Hold out more "
            f"or nothing ({argument('validation_fraction')}), or lower {argument('length')}."
        )
    if data.carry_states:
        streams = min(data.batch_size, (len(tail) - 1) // data.length)
        # Carried states are as large as the training batch, so validation needs as many streams.
        if streams < data.batch_size:
            raise DataError(
                f"the held-out part has {len(tail):,} {unit}, but {data.batch_size} streams of {data.length} "
                f"need {data.batch_size * data.length + 1:,}. Hold out more, or lower batch size or length."
            )
        held = StreamBatches(tail, batch_size=data.batch_size, **common)
        return source, held if every_step else _LastTarget(held)
    return source, every_window(tail, every_step, batch_size=source.batch_size, **common)[0]


def every_window(
    ids: np.ndarray, every_step: bool, *, length: int, batch_size: int, item: str
) -> tuple[BatchSource, int]:
    """The batches that judge a model on all of `ids`, and how many ids it must predict."""
    plain = TextBatches(ids, length=length, batch_size=batch_size, drop_last=False, item=item)
    if every_step:
        return MeanOverItems(plain, len(ids) - 1), len(ids) - 1
    predicted = (len(ids) - 1) // length
    return MeanOverItems(_LastTarget(plain), predicted), predicted


class _LastTarget(ChangedBatches):
    """Keeps only each row's last target, for a model that predicts after the last step only."""

    def __init__(self, source: BatchSource) -> None:
        super().__init__(source)
        self.items_per_batch = source.batch_size

    def _change(self, x: Any, y: Any, *weight: Any) -> tuple[Any, ...]:
        return x, *(array[:, -1] for array in (y, *weight))

    def fingerprint(self) -> str:
        """The fingerprint of the other source, with a prefix."""
        return f"last {super().fingerprint()}"


def predicts_every_step(model: keras.Model) -> bool:
    """True if a next-token model gives (B, T, V) rather than (B, V)."""
    return len(model.output_shape) == 3


def check_text_model(model: keras.Model, tokenizer: Tokenizer, data: TextOptions) -> None:
    """Raises `ModelError` if the model is not a next-token model for the tokenizer's vocabulary."""
    expected = "expected one input of ids (batch, time) and one output of logits or probabilities"
    if functional_graph(model) is None:
        raise ModelError(
            f"the model {model.name!r} has no graph to read: {expected}. Build it as a Functional or Sequential "
            "model that begins with keras.Input."
        )
    inputs, output = model.inputs, model.output_shape
    if len(inputs) != 1 or len(inputs[0].shape) != 2:
        shapes = [tuple(tensor.shape) for tensor in inputs]
        raise ModelError(f"the model is not a next-token model: {expected}; its inputs are {shapes}.")
    if not isinstance(output, tuple) or len(output) not in (2, 3):
        raise ModelError(f"the model is not a next-token model: {expected}; its outputs are {output}.")
    if output[-1] != tokenizer.vocabulary_size:
        raise ModelError(
            f"the model predicts {output[-1]} different {tokenizer.unit}, the text has "
            f"{tokenizer.vocabulary_size}: build the model for {tokenizer.vocabulary_size}, or choose the "
            "tokenizer it was made for."
        )
    for layer in model.layers:
        reads_ids = isinstance(layer, keras.layers.Embedding) and layer.input is inputs[0]
        if reads_ids and layer.input_dim < tokenizer.vocabulary_size:
            raise ModelError(
                f"the embedding {layer.name!r} takes {layer.input_dim} different {tokenizer.unit}, the text has "
                f"{tokenizer.vocabulary_size}: build it for {tokenizer.vocabulary_size}."
            )
    batch, time = inputs[0].shape
    if time not in (None, data.length):
        raise ModelError(f"the model takes windows of {time}, length is {data.length}: set length to {time}.")
    if batch not in (None, data.batch_size):
        raise ModelError(
            f"the model takes batches of {batch}, not {data.batch_size}: set {argument('batch_size', batch)}."
        )


def check_looks_back(model: keras.Model, tokenizer: Tokenizer) -> None:
    """Raises `ModelError` if a next-token model sees what it is to predict."""
    if predicts_every_step(model) and looks_ahead(model, tokenizer.vocabulary_size):
        raise ModelError(
            f"the model {model.name!r} sees the {tokenizer.unit} that it is to predict: an output changes with an id "
            "of a later step. Expected a model that looks back only: leave out Bidirectional, Conv1D without "
            'padding="causal", and attention without use_causal_mask=True; or let it predict after the last step only '
            "(return_sequences=False in its last recurrent layer)."
        )
