"""The next-token language model, and the checked, seeded pieces that all builders share.

The model is a plain `keras.Model` of Keras's own layers.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack, get_args

import keras
import numpy as np

from cellerate.errors import ConfigError
from cellerate.keras_graph.initial_weights import at_once
from cellerate.keywords import BuildTextModelKeywords
from cellerate.messages import argument
from cellerate.models.cells import Cell
from cellerate.settings import check_choice, takes_fields_of

RECURRENT_LAYERS: Mapping[Cell, type[keras.layers.RNN]] = {
    "lstm": keras.layers.LSTM,
    "gru": keras.layers.GRU,
    "simple_rnn": keras.layers.SimpleRNN,
}
"""The layers of the cells."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextNetwork:
    """The sizes and the parts of a next-token model.

    Attributes:
        embedding: The width of the token vectors.
        units: H, for all layers; or one number per layer, which also sets the number of layers.
        layers: The number of recurrent layers.
        cell: Their kind: "lstm", "gru" or "simple_rnn".
        dropout: The fraction of each layer's outputs to drop while training.
        recurrent_dropout: The fraction of the recurrent state to drop. Keras's own fused kernels do not
            have it; Cellerate's do.
        layer_norm: Whether to normalise each layer's output.
        tie_weights: Whether the logits come from the transposed embedding (no bias). If `embedding` differs
            from the last layer's units, a Dense projection comes between them.
        dtype_policy: A Keras dtype policy or its name; None is Keras's global one. Logits are always float32.
        seed: Makes the initial weights and the dropout reproducible; every layer draws its own seed.
    """

    embedding: int = 256
    units: int | Sequence[int] = 256
    layers: int = 1
    cell: Cell = "lstm"
    dropout: float = 0.0
    recurrent_dropout: float = 0.0
    layer_norm: bool = False
    tie_weights: bool = False
    dtype_policy: Any = None
    seed: int | None = None


@at_once
@takes_fields_of(TextNetwork)
def build_text_model(vocabulary_size: int, **options: Unpack[BuildTextModelKeywords]) -> keras.Model:
    """Builds `Embedding → recurrent layers → Dense`: token ids in, the next token's logits out.

    Dropout follows each recurrent layer, not the embedding: with nothing between `Embedding → LSTM`, an LSTM can
    look up its input products in a table.

    Args:
        vocabulary_size: V, the number of token ids.
        options: The fields of a `TextNetwork`.

    Returns:
        A model named "text": ids (B, T) integers → logits (B, T, V) float32.

    Raises:
        ConfigError: An argument is out of range.

    Source: tied weights: Press & Wolf, "Using the Output Embedding to Improve Language Models", 2016.
    """
    check_positive("vocabulary_size", vocabulary_size)
    network = TextNetwork(**options)
    check_positive("embedding", network.embedding)
    widths = layer_widths(network.units, network.layers)
    check_fraction("dropout", network.dropout)
    check_fraction("recurrent_dropout", network.recurrent_dropout)
    dtype = check_policy(network.dtype_policy)
    seeds = layer_seeds(network.seed)

    ids = keras.Input((None,), dtype="int32", name="ids")
    table_class = keras.layers.ReversibleEmbedding if network.tie_weights else keras.layers.Embedding
    table = table_class(
        vocabulary_size,
        network.embedding,
        embeddings_initializer=embedding_initializer(next(seeds), tied=network.tie_weights),
        dtype=dtype,
        name="embedding",
    )
    x = table(ids)
    for number, width in enumerate(widths, start=1):
        x = seeded_recurrent(
            width,
            seeds,
            name=f"{network.cell}_{number}",
            cell=network.cell,
            return_sequences=True,
            recurrent_dropout=network.recurrent_dropout,
            dtype=dtype,
        )(x)
        if network.layer_norm:
            x = keras.layers.LayerNormalization(dtype=dtype, name=f"norm_{number}")(x)
        if network.dropout:
            x = keras.layers.Dropout(
                network.dropout, seed=next(seeds), dtype=dtype, name=f"dropout_{number}"
            )(x)
    if network.tie_weights:
        if widths[-1] != network.embedding:
            x = seeded_dense(network.embedding, seeds, name="projection", dtype=dtype)(x)
        x = table(x, reverse=True)
    else:
        x = seeded_dense(vocabulary_size, seeds, name="head", dtype=dtype)(x)
    # A separate layer, so that the large product above may run in 16 bits but the softmax never does.
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(x)
    return keras.Model(ids, logits, name="text")


def embedding_initializer(seed: int | None, *, tied: bool = False) -> keras.initializers.Initializer:
    """The start of token vectors: normal with deviation 1, not Keras's uniform ±0.05.

    An LSTM's gates hardly respond to inputs of about 0.01, and the embedding needs an epoch to outgrow that;
    `docs/decisions/0003-embedding-scale.md` has the measurement. Tied vectors are also the output projection,
    whose logits must start small.
    """
    if tied:
        return keras.initializers.RandomUniform(-0.05, 0.05, seed=seed)
    return keras.initializers.RandomNormal(stddev=1.0, seed=seed)


def check_positive(name: str, value: Any) -> int:
    """Returns `value` if it is an integer of at least 1, else raises `ConfigError` naming the argument."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{argument(name)} must be a whole number of at least 1, not {value!r}.")
    return int(value)


def check_fraction(name: str, value: Any) -> float:
    """Returns `value` if it is a number in [0, 1), else raises `ConfigError` naming the argument."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not 0.0 <= value < 1.0:
        raise ConfigError(
            f"{argument(name)} must be a fraction from 0 up to, not including, 1, not {value!r}."
        )
    return float(value)


def check_policy(policy: Any) -> Any:
    """Returns a Keras dtype policy (or None, for Keras's global one).

    Raises:
        ConfigError: Keras does not know the name, or it is for quantised layers or 16-bit weights.
    """
    if policy is None:
        return None
    try:
        found = keras.dtype_policies.get(policy)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"dtype policy {policy!r} is not one Keras knows: expected a name such as 'float32', "
            "'mixed_bfloat16' or 'mixed_float16'."
        ) from error
    if isinstance(found, keras.dtype_policies.QuantizedDTypePolicy):
        raise ConfigError(
            f"dtype policy {policy!r} is for quantised layers; expected a floating-point one such as "
            "'float32' or 'mixed_bfloat16'."
        )
    if found.variable_dtype in ("float16", "bfloat16"):
        # Keras's initialiser for recurrent weights has no 16-bit version on any backend.
        raise ConfigError(
            f"dtype policy {policy!r} keeps the weights themselves in 16 bits, in which Keras cannot "
            f"initialise an LSTM; use 'mixed_{found.variable_dtype}', which computes in 16 bits."
        )
    return found


def layer_widths(units: Any, layers: Any) -> tuple[int, ...]:
    """The units of each layer, from one number for all layers or one number per layer.

    Raises:
        ConfigError: A number is not positive, or the two arguments disagree.
    """
    check_positive("layers", layers)
    if not isinstance(units, Sequence | np.ndarray) or isinstance(units, str):
        return (check_positive("units", units),) * layers
    widths = tuple(check_positive("units", width) for width in units)
    if not widths or layers not in (1, len(widths)):
        raise ConfigError(
            f"units has {len(widths)} entries and layers is {layers}: give one entry a layer, or one number."
        )
    return widths


def layer_seeds(seed: int | None) -> Iterator[int | None]:
    """An endless stream of different seeds drawn from `seed`, or of None if it is None.

    Keras layers with the same seed and shape start with the same weights, so no two may share a seed.

    Raises:
        ConfigError: The seed is neither None nor a whole number of at least 0.
    """
    if seed is not None and (
        isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63
    ):
        raise ConfigError(f"{argument('seed')} must be None or a whole number of at least 0, not {seed!r}.")
    return _draw_seeds(seed)


def seeded_recurrent(
    units: int,
    seeds: Iterator[int | None],
    *,
    name: str,
    cell: Cell = "lstm",
    recurrent_dropout: float = 0.0,
    **arguments: Any,
) -> keras.layers.RNN:
    """A recurrent layer with Keras's own initialisers, each with its own seed.

    Raises:
        ConfigError: The cell is unknown.
    """
    check_choice("cell", cell, get_args(Cell))
    return RECURRENT_LAYERS[cell](
        units,
        kernel_initializer=keras.initializers.GlorotUniform(seed=next(seeds)),
        recurrent_initializer=keras.initializers.Orthogonal(seed=next(seeds)),
        recurrent_dropout=recurrent_dropout,
        seed=next(seeds),
        name=name,
        **arguments,
    )


def seeded_bidirectional(
    units: int,
    seeds: Iterator[int | None],
    *,
    name: str,
    dtype: Any,
    cell: Cell = "lstm",
    **arguments: Any,
) -> keras.layers.Bidirectional:
    """A `keras.layers.Bidirectional` layer whose two directions start from different weights.

    Keras would copy the forward layer, seeds and all, so the backward layer is passed explicitly.
    """
    return keras.layers.Bidirectional(
        seeded_recurrent(units, seeds, name=cell, cell=cell, dtype=dtype, **arguments),
        backward_layer=seeded_recurrent(
            units, seeds, name=f"backward_{cell}", cell=cell, go_backwards=True, dtype=dtype, **arguments
        ),
        dtype=dtype,
        name=name,
    )


def seeded_dense(
    units: int, seeds: Iterator[int | None], *, name: str, **arguments: Any
) -> keras.layers.Dense:
    """A `keras.layers.Dense` with Keras's own initialiser and its own seed."""
    arguments.setdefault("kernel_initializer", keras.initializers.GlorotUniform(seed=next(seeds)))
    return keras.layers.Dense(units, name=name, **arguments)


def _draw_seeds(seed: int | None) -> Iterator[int | None]:
    random = None if seed is None else np.random.default_rng(seed)
    while True:
        yield None if random is None else int(random.integers(2**31 - 1))
