"""The models of the inference contest: their common layers and weights, and their float64 results."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.precisions import PRECISIONS

BATCHES = (1, 8, 32, 256)
# The number of rows of a batch that are compared with float64.
CHECKED = 2
Weights = list[np.ndarray]


class Layer(NamedTuple):
    """A layer: "embedding", "lstm", "bidirectional", "layer_norm" or "dense".

    Attributes:
        kind: The kind of layer.
        units: The width of the output; that of a bidirectional layer is twice as large.
        sequences: For an LSTM, whether it returns all steps.
        activation: For a dense layer, "linear" or "sigmoid".
    """

    kind: str
    units: int = 0
    sequences: bool = True
    activation: str = "linear"


class Model(NamedTuple):
    """A model: its input and its layers.

    Attributes:
        steps: T.
        width: The features of the input; with ids, the vocabulary.
        ids: Whether the input is (B, T) ids and not (B, T, width) numbers.
        layers: The layers, in order.
    """

    steps: int
    width: int
    ids: bool
    layers: tuple[Layer, ...]


_TEXT = (Layer("embedding", 256), Layer("lstm", 512))
MODELS = {
    "forecaster 2x50": Model(
        60, 1, False, (Layer("lstm", 50), Layer("lstm", 50, sequences=False), Layer("dense", 1))
    ),
    "bidirectional 2x64": Model(
        96,
        7,
        False,
        (Layer("bidirectional", 64), Layer("bidirectional", 64, sequences=False), Layer("dense", 24)),
    ),
    "IMDB bidirectional 2x64": Model(
        200,
        20_000,
        True,
        (
            Layer("embedding", 128),
            Layer("bidirectional", 64),
            Layer("bidirectional", 64, sequences=False),
            Layer("dense", 1, activation="sigmoid"),
        ),
    ),
    "text 512": Model(100, 96, True, (*_TEXT, Layer("dense", 96))),
    "stacked 2x512": Model(
        100,
        96,
        True,
        (*_TEXT, Layer("layer_norm"), Layer("lstm", 512), Layer("layer_norm"), Layer("dense", 96)),
    ),
    "encoder 256": Model(
        64, 96, True, (Layer("embedding", 128), Layer("lstm", 256, sequences=False), Layer("dense", 256))
    ),
}


STREAMED = {
    "forecaster 2x64": Model(
        60, 1, False, (Layer("lstm", 64), Layer("lstm", 64, sequences=False), Layer("dense", 1))
    )
}
"""The model of many streams, which run a step at a time."""
# The most bytes of the table that our core makes of embeddings · kernel (csrc/engine/program_graph.cpp).
_LARGEST_TABLE = 16 << 20


def products(model: Model) -> int:
    """The multiplications of a row, without those that our core replaces by a table."""
    found, steps, before = 0, model.steps, Layer("input")
    for layer, width in widths(model):
        ways = {"lstm": 1, "bidirectional": 2}.get(layer.kind, 0)
        tabled = before.kind == "embedding" and 16 * model.width * layer.units <= _LARGEST_TABLE
        found += ways * steps * 4 * layer.units * (layer.units + (0 if tabled else width))
        if layer.kind == "dense":
            found += steps * width * layer.units
        if ways and not layer.sequences:
            steps = 1
        before = layer
    return found


def widths(model: Model) -> Iterator[tuple[Layer, int]]:
    """Each layer with the width of its input."""
    width = model.width
    for layer in model.layers:
        yield layer, width
        width = {"bidirectional": 2 * layer.units, "layer_norm": width}.get(layer.kind, layer.units)


def weights_of(model: Model) -> list[Weights]:
    """The weights of each layer in Keras's shapes: normal numbers, large enough for every layer to matter."""
    random = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    def one(layer: Layer, width: int) -> Weights:
        units = layer.units
        if layer.kind == "embedding":
            return [random.standard_normal((width, units), np.float32)]
        if layer.kind == "layer_norm":
            return [np.ones(width, np.float32), np.zeros(width, np.float32)]
        if layer.kind == "dense":
            return [draw(width, units), np.zeros(units, np.float32)]
        lstm = [draw(width, 4 * units), draw(units, 4 * units), np.zeros(4 * units, np.float32)]
        lstm[2][units : 2 * units] = 1  # the initial forget bias in Keras
        return lstm

    return [
        one(layer, width) + (one(layer, width) if layer.kind == "bidirectional" else [])
        for layer, width in widths(model)
    ]


def batch_of(model: Model, batch: int) -> np.ndarray:
    """The input; all batches begin with the same rows."""
    random = np.random.default_rng(1)
    if model.ids:
        return random.integers(0, model.width, (256, model.steps)).astype(np.int32)[:batch]
    return random.standard_normal((256, model.steps, model.width), np.float32)[:batch]


def truth_of(model: Model) -> np.ndarray:
    """The results of the first rows in float64."""
    from cellerate.kernels.lstm import reference
    from cellerate.kernels.lstm.spec import Arguments, LstmOptions

    x: np.ndarray = batch_of(model, CHECKED)
    for (layer, _), weights in zip(widths(model), weights_of(model), strict=True):
        if layer.kind == "embedding":
            x = weights[0][x].astype(np.float64)
        elif layer.kind == "dense":
            x = x @ weights[0].astype(np.float64) + weights[1]
            x = 1 / (1 + np.exp(-x)) if layer.activation == "sigmoid" else x
        elif layer.kind == "layer_norm":
            off = x - x.mean(axis=-1, keepdims=True)
            x = off / np.sqrt(np.square(off).mean(axis=-1, keepdims=True) + 1e-3)
        else:
            outputs = reference.forward(Arguments(*weights[:3], x=x)).outputs
            made = [outputs if layer.sequences else outputs[:, -1]]
            if layer.kind == "bidirectional":
                outputs = reference.forward(
                    Arguments(*weights[3:], x=x), LstmOptions(go_backwards=True)
                ).outputs
                made.append(outputs[:, ::-1] if layer.sequences else outputs[:, -1])
            x = np.concatenate(made, axis=-1)
    return x


def keras_model(model: Model) -> Any:
    """The model in Keras."""
    import keras

    layers = keras.layers
    shape = (model.steps,) if model.ids else (model.steps, model.width)
    made: list[Any] = [keras.Input(shape, dtype="int32" if model.ids else "float32")]
    for layer, width in widths(model):
        if layer.kind == "embedding":
            made.append(layers.Embedding(width, layer.units))
        elif layer.kind == "dense":
            made.append(layers.Dense(layer.units, activation=layer.activation))
        elif layer.kind == "layer_norm":
            made.append(layers.LayerNormalization(epsilon=1e-3))
        else:
            lstm = layers.LSTM(layer.units, return_sequences=layer.sequences)
            made.append(layers.Bidirectional(lstm) if layer.kind == "bidirectional" else lstm)
    found = keras.Sequential(made)
    found.set_weights([array for weights in weights_of(model) for array in weights])
    return found


def build(folder: Path) -> None:
    """Pack all models in each precision."""
    import cellerate

    for name, model in (MODELS | STREAMED).items():
        made = keras_model(model)
        for precision in PRECISIONS:
            cellerate.pack(made, cell_file(folder, name, precision), precision=precision)


def cell_file(folder: Path, name: str, precision: str) -> Path:
    """The path of a packed model."""
    return folder / f"{name.replace(' ', '-')}-{precision}.cell"
