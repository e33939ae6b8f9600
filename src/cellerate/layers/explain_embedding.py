"""Explains an Embedding right before an LSTM: how the LSTM reads it, its gradient, and how small it starts."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from cellerate.keras_graph.graph import TimeLayer
from cellerate.keras_graph.keras_backend import stored
from cellerate.layers import fused
from cellerate.layers.conditions import Condition

_ROW_BY_ROW = (
    "goes to the optimizer row by row, as in stock Keras; accelerate(model, sum_embedding_gradients=True) sums it, "
    "so that a step is faster, and Adam and clipnorm take other steps"
)
_SUMMED = (
    "is summed by row (sum_embedding_gradients=True): Adam and clipnorm take other steps than in stock Keras"
)
# Keras's own initializer gives a deviation of 0.029; after 400 steps of Adam it was measured at 0.24.
_SMALL = 0.1
_ROUNDING = 1e-6


def lookup_conditions(layer: layers.RNN, embedding: layers.Embedding | None) -> list[Condition]:
    """Return how an accelerated LSTM reads the Embedding before it, as conditions.

    Args:
        layer: The LSTM.
        embedding: The Embedding whose output reaches it unchanged, if there is one.
    """
    summed = None if embedding is None else fused.sums_gradient(embedding)
    if embedding is None or summed is None:
        return []
    rows, tensorflow = embedding.input_dim, keras.backend.backend() == "tensorflow"
    each = [f"in calls of fewer than {fused.fewest_looked_up(rows):,} steps (batch x time)"]
    if tensorflow and rows > fused.TABLE_ROWS:
        each.append("where TensorFlow does not know the sizes of a batch in advance")
    if layer.cell.dropout:
        each.append(f"in training, for dropout={layer.cell.dropout:g}")
    found = (
        f"{embedding.name!r}: its {rows:,} rows are projected once a call, and each step looks one up; "
        f"each step is projected {', and '.join(each)}"
    )
    met = [Condition("embedding", True, found)]
    # Elsewhere the frameworks sum it, whichever kernel runs.
    if tensorflow and embedding.trainable:
        met.append(Condition("embedding's gradient", True, _SUMMED if summed else _ROW_BY_ROW))
    return met


def small_starts(model: keras.Layer, found: list[TimeLayer]) -> list[str]:
    """Return a sentence for each Embedding of an untrained model that would learn sooner if it started larger.

    Args:
        model: The model.
        found: Its layers that run over time.
    """
    optimizer = getattr(model, "optimizer", None) if getattr(model, "compiled", False) else None
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if optimizer is not None:
        adam = isinstance(optimizer, keras.optimizers.Adam | keras.optimizers.Nadam)
        if not adam or int(keras.ops.convert_to_numpy(optimizer.iterations)) > 0:
            return []
    said = []
    for embedding in dict.fromkeys(one.embedding for one in found if _is_lstm(one.layer)):
        if embedding is None or not embedding.built or not embedding.trainable or _tied(model, embedding):
            continue
        table = keras.ops.convert_to_numpy(keras.ops.cast(stored(embedding.embeddings), "float32"))
        deviation = float(np.std(table))
        if deviation < _SMALL and (optimizer is not None or _as_drawn(embedding, table)):
            said.append(
                f"Embedding {embedding.name!r} starts with a deviation of {deviation:.2g}, and Adam needs hundreds of "
                "steps to make it larger. With embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0), "
                "the loss of 400 steps was measured after 175 to 225 (docs/guide/training.md)."
            )
    return said


def _as_drawn(embedding: layers.Embedding, table: np.ndarray) -> bool:
    """True if all values of a table are within the range of Keras's initializer, so that it seems untrained."""
    drawn = embedding.embeddings_initializer
    if not isinstance(drawn, keras.initializers.RandomUniform):
        return False
    return bool(drawn.minval - _ROUNDING <= table.min() and table.max() <= drawn.maxval + _ROUNDING)


def _is_lstm(layer: keras.Layer) -> bool:
    return isinstance(layer.forward_layer if isinstance(layer, layers.Bidirectional) else layer, layers.LSTM)


def _tied(model: keras.Layer, embedding: layers.Embedding) -> bool:
    """True if another layer has the table, too, such as a head whose logits must start small."""
    table = embedding.weights[0]
    return any(
        any(variable is table for variable in layer.weights)
        for layer in model._flatten_layers(include_self=False)
        if layer is not embedding and not isinstance(layer, keras.Model)
    )
