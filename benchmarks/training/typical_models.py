"""Models that people train, of tutorials and of `cellerate train`, in plain Keras and as loops of torch.nn.LSTM.

Data are drawn from a fixed seed: the time of a step does not depend on their content, except for repeated words.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from benchmarks.training.contestant import initial_weight

CHARACTERS, WORDS = 96, 20_000
"""Sizes of the vocabularies of texts and of IMDB."""


@dataclasses.dataclass(frozen=True)
class Typical:
    """A model that people train.

    Attributes:
        title: The model in words, with the shape (T, D) of an input.
        batches: The batch sizes, with a race for each.
        steps: T.
        loss: Keras's name of the loss; "next id" is the sparse cross-entropy of logits.
        layers: For each layer its name in `LAYERS` and its arguments, from which both frameworks build the model.
        features: D of a series; 0 for ids.
        vocabulary: V of ids.
    """

    title: str
    batches: tuple[int, ...]
    steps: int
    loss: str
    layers: tuple[tuple[Any, ...], ...]
    features: int = 0
    vocabulary: int = 0

    @property
    def random(self) -> bool:
        """True if a step draws random numbers, so that its loss differs between frameworks."""
        return any(name == "dropout" for name, *_ in self.layers)

    @property
    def in_torch(self) -> bool:
        """True if torch.nn.LSTM, which has only tanh, can compute the model."""
        return not any(name == "lstm" and "activation" in options for name, _, options in self._recurrent())

    @property
    def products(self) -> int:
        """The unavoidable multiplications of a row's forward pass.

        A row of an embedding, and its product with a kernel, can be looked up: neither is counted.
        """
        width, looked_up, total = self.features, False, 0
        steps = self.steps
        for name, *rest in self.layers:
            if name == "embedding":
                width, looked_up = rest[0], True
            elif name == "lstm":
                units, options = rest
                directions = 2 if options.get("bidirectional") else 1
                total += directions * steps * 4 * units * (units + (0 if looked_up else width))
                width, looked_up = directions * units, False
                steps = steps if options.get("sequences") else 1
            elif name == "dense":
                total += steps * width * rest[0]
                width = rest[0]
        return total

    def _recurrent(self) -> list[tuple[str, int, dict[str, Any]]]:
        return [(one[0], one[1], one[2]) for one in self.layers if one[0] == "lstm"]

    def data(self, rows: int, random: Any) -> tuple[Any, Any]:
        """A batch: inputs (B, T, D) float32 or (B, T) int32, and targets."""
        import numpy as np

        if self.vocabulary:
            # Word frequencies follow Zipf's law; novels and reviews repeat words even more.
            share = 1 / (np.arange(self.vocabulary) + 3.7)
            ids = random.choice(self.vocabulary, (rows, self.steps + 1), p=share / share.sum()).astype(
                np.int32
            )
            if self.loss == "next id":
                return ids[:, :-1], ids[:, 1:]
            return ids[:, :-1], random.integers(0, 2, (rows, 1)).astype(np.float32)
        x = random.standard_normal((rows, self.steps, self.features), np.float32)
        return x, random.standard_normal((rows, self.layers[-1][1]), np.float32)


@dataclasses.dataclass(frozen=True)
class Lines(Typical):
    """The sequence autoencoder of `train embed`: two inputs of ids, the line and the line one step late.

    Attributes:
        embedding: The width of its embeddings.
        units: H of the decoder and of each direction of the encoder.
        latent: The width of the vector.
    """

    embedding: int = 64
    units: int = 256
    latent: int = 128

    @property
    def products(self) -> int:
        """As for other models; the decoder reads a table row and the same vector at each step."""
        recurrent = 3 * self.steps * 4 * self.units * self.units
        dense = 2 * self.units * self.latent + self.latent * (self.embedding + 2 * self.units)
        return recurrent + dense + self.embedding * 4 * self.units + self.steps * self.units * self.vocabulary

    def data(self, rows: int, random: Any) -> tuple[Any, Any]:
        """A batch of lines, all of the maximum length."""
        import numpy as np

        ids = random.integers(1, self.vocabulary, (rows, self.steps + 1), np.int32)
        return {"source": ids[:, 1:], "target_in": ids[:, :-1]}, ids[:, 1:]

    def built(self) -> Any:
        """The model in plain Keras."""
        from cellerate.models.autoencoder import build_autoencoder

        return build_autoencoder(
            self.vocabulary, embedding=self.embedding, units=self.units, latent=self.latent
        )


def _stacked(units: tuple[int, ...], rate: float = 0.0, **options: Any) -> tuple[tuple[Any, ...], ...]:
    """Stacked LSTMs, each followed by dropout; the last one returns its last output."""
    rows: list[tuple[Any, ...]] = []
    for place, count in enumerate(units, 1):
        rows.append(("lstm", count, {"sequences": place < len(units), **options}))
        rows += [("dropout", rate)] if rate else []
    return tuple(rows)


def _characters(units: int) -> Typical:
    layers = (("embedding", 256), ("lstm", units, {"sequences": True}), ("dense", CHARACTERS, None))
    title = f"characters, embedding 256, LSTM {units}, T=100"
    return Typical(title, (1, 8, 128), 100, "next id", layers, vocabulary=CHARACTERS)


MODELS: dict[str, Typical] = {
    "forecaster": Typical(
        "forecaster, 2 LSTM 50 with dropout, (60, 1)",
        (32,),
        60,
        "mean_squared_error",
        (*_stacked((50, 50), 0.2), ("dense", 1, None)),
        features=1,
    ),
    "autoregressor": Typical(
        "autoregressor, LSTM 64 and 32 with ReLU(0.05) and dropout, (10, 8)",
        (1, 64, 512),
        10,
        "mean_squared_error",
        (
            ("lstm", 64, {"sequences": True, "activation": 0.05}),
            ("dropout", 0.2),
            ("lstm", 32, {"sequences": False}),
            ("dropout", 0.2),
            ("dense", 8, None),
        ),
        features=8,
    ),
    "bidirectional": Typical(
        "bidirectional, 2 LSTM 64, (96, 7)",
        (32,),
        96,
        "mean_squared_error",
        (*_stacked((64, 64), bidirectional=True), ("dense", 7, None)),
        features=7,
    ),
    "imdb": Typical(
        "IMDB, embedding 128, bidirectional 2 LSTM 64, 200 ids",
        (32,),
        200,
        "binary_crossentropy",
        (("embedding", 128), *_stacked((64, 64), bidirectional=True), ("dense", 1, "sigmoid")),
        vocabulary=WORDS,
    ),
    "normalized": Typical(
        "characters, embedding 256, 2 LSTM 256 with LayerNormalization, T=100",
        (64,),
        100,
        "next id",
        (
            ("embedding", 256),
            ("lstm", 256, {"sequences": True}),
            ("norm",),
            ("lstm", 256, {"sequences": True}),
            ("norm",),
            ("dense", CHARACTERS, None),
        ),
        vocabulary=CHARACTERS,
    ),
    "characters-128": _characters(128),
    "characters-512": _characters(512),
    "lines": Lines(
        "lines to vectors and back, embedding 64, bidirectional LSTM 256 and LSTM 256, T=64",
        (64,),
        64,
        "next id",
        (),
        vocabulary=CHARACTERS,
    ),
}
"""The models by their names."""
SMALL = ("forecaster", "autoregressor", "bidirectional", "imdb", "characters-128")
"""The models with layers of at most 128 units."""


def keras_model(model: Typical, *, dropout: bool = True) -> Any:
    """The model in plain Keras, not compiled; its weights are the same on every backend."""
    import keras
    import numpy as np

    L = keras.layers

    def lstm(x: Any, units: int, options: dict[str, Any]) -> Any:
        slope = options.get("activation")
        activation = "tanh" if slope is None else L.ReLU(negative_slope=slope)
        layer = L.LSTM(units, activation=activation, return_sequences=options["sequences"])
        return (L.Bidirectional(layer) if options.get("bidirectional") else layer)(x)

    make: dict[str, Callable[..., Any]] = {
        "embedding": lambda x, width: L.Embedding(model.vocabulary, width)(x),
        "lstm": lstm,
        "dropout": lambda x, rate: L.Dropout(rate if dropout else 0.0)(x),
        "norm": lambda x: L.LayerNormalization()(x),
        "dense": lambda x, units, activation: L.Dense(units, activation=activation)(x),
    }
    shape, dtype = (
        ((model.steps,), "int32") if model.vocabulary else ((model.steps, model.features), "float32")
    )
    if isinstance(model, Lines):
        built = model.built()
    else:
        inputs = x = keras.Input(shape, dtype=dtype)
        for name, *options in model.layers:
            x = make[name](x, *options)
        built = keras.Model(inputs, x)
    random = np.random.default_rng(0)
    built.set_weights([weight_of(one.name, one.shape, random) for one in built.weights if one.trainable])
    return built


def weight_of(name: str, shape: Any, random: Any) -> Any:
    """A first weight by its Keras name, in the order of the layers."""
    import numpy as np

    return np.ones(shape) if name == "gamma" else initial_weight(name, shape, random)


def keras_loss(model: Typical) -> Any:
    """The loss as a user of Keras writes it."""
    import keras

    if model.loss == "next id":
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model.loss
