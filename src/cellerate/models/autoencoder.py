"""The sequence autoencoder: a line of characters in, the same line out, through one vector per line.

Its two parts are also used separately: `encode` turns lines into vectors, `decode` turns vectors back into
lines. All models here are plain `keras.Model`s of Keras's own layers.
"""

from __future__ import annotations

from typing import Any

import keras

from cellerate.errors import ModelError
from cellerate.keras_graph.initial_weights import at_once
from cellerate.models.text import (
    check_fraction,
    check_policy,
    check_positive,
    embedding_initializer,
    layer_seeds,
    seeded_bidirectional,
    seeded_dense,
    seeded_recurrent,
)


@at_once
def build_autoencoder(
    vocabulary_size: int,
    *,
    embedding: int = 64,
    units: int = 256,
    latent: int = 128,
    dropout: float = 0.0,
    decoder_dropout: float = 0.0,
    dtype_policy: Any = None,
    seed: int | None = None,
) -> keras.Model:
    """Builds a bidirectional LSTM encoder, a vector, and an LSTM decoder trained with teacher forcing.

    Id 0 is padding in `source`, on the right or on the left. It is masked, so it does not affect the vector.
    (With TensorFlow on a GPU, Keras's cuDNN path refuses padding on the left and lines of nothing but padding
    inside `fit` and `predict`.) `target_in` must be padded on the right. The decoder is not masked: what it
    reads after a line's end cannot change its earlier outputs, and a mask would cost JAX and torch their fast
    path.

    The vector sets the decoder's initial state, and a projection of it is added to every character that the
    decoder reads.

    Args:
        vocabulary_size: V, the number of ids, padding included.
        embedding: The width of the character vectors.
        units: H of the decoder, and of each direction of the encoder.
        latent: The width of a line's vector.
        dropout: The fraction of the encoder's and the decoder's outputs to drop while training.
        decoder_dropout: The fraction of whole characters hidden from the decoder while training, so that it
            must read the vector instead of guessing from the characters before.
        dtype_policy: A Keras dtype policy or its name; None is Keras's global one. The vector and the logits
            are always float32.
        seed: Makes the initial weights and the dropout reproducible.

    Returns:
        A model named "autoencoder": {"source": (B, S) ids, "target_in": (B, S') ids} → logits (B, S', V)
        float32. `encoder_and_decoder` gives its parts: "encode", (B, S) ids → (B, latent) float32, and
        "decode", [(B, latent), (B, S') ids] → logits (B, S', V).

    Raises:
        ConfigError: An argument is out of range.

    Source: word dropout: Bowman et al., "Generating Sentences from a Continuous Space", 2015.
    """
    sizes = {"vocabulary_size": vocabulary_size, "embedding": embedding, "units": units, "latent": latent}
    for name, value in sizes.items():
        check_positive(name, value)
    check_fraction("dropout", dropout)
    check_fraction("decoder_dropout", decoder_dropout)
    dtype = check_policy(dtype_policy)
    seeds = layer_seeds(seed)

    def table(name: str, mask_zero: bool) -> keras.layers.Embedding:
        return keras.layers.Embedding(
            vocabulary_size,
            embedding,
            embeddings_initializer=embedding_initializer(next(seeds)),
            mask_zero=mask_zero,
            dtype=dtype,
            name=name,
        )

    def drop(name: str, rate: float, noise_shape: tuple[None, None, int] | None = None) -> Any:
        return keras.layers.Dropout(rate, noise_shape, seed=next(seeds), dtype=dtype, name=name)

    source = keras.Input((None,), dtype="int32", name="source")
    x = table("source_embedding", mask_zero=True)(source)
    x = seeded_bidirectional(units, seeds, name="encoder", dtype=dtype)(x)
    if dropout:
        x = drop("encoder_dropout", dropout)(x)
    vector = seeded_dense(latent, seeds, name="vector", dtype="float32")(x)
    encode = keras.Model(source, vector, name="encode")

    vector_in = keras.Input((latent,), dtype="float32", name="vector_in")
    target_in = keras.Input((None,), dtype="int32", name="target_in")
    x = table("target_embedding", mask_zero=False)(target_in)
    if decoder_dropout:
        x = drop("character_dropout", decoder_dropout, (None, None, 1))(x)
    hint = seeded_dense(embedding, seeds, name="hint", dtype=dtype)(vector_in)
    hint = keras.layers.Reshape((1, embedding), dtype=dtype, name="hint_step")(hint)
    x = keras.layers.Add(dtype=dtype, name="hinted")([x, hint])
    state = [
        seeded_dense(units, seeds, name="initial_h", activation="tanh", dtype=dtype)(vector_in),
        seeded_dense(units, seeds, name="initial_c", dtype=dtype)(vector_in),
    ]
    x = seeded_recurrent(units, seeds, name="decoder", return_sequences=True, dtype=dtype)(
        x, initial_state=state
    )
    if dropout:
        x = drop("decoder_dropout", dropout)(x)
    x = seeded_dense(vocabulary_size, seeds, name="head", dtype=dtype)(x)
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(x)
    decode = keras.Model([vector_in, target_in], logits, name="decode")

    whole = {
        "source": keras.Input((None,), dtype="int32", name="source"),
        "target_in": keras.Input((None,), dtype="int32", name="target_in"),
    }
    return keras.Model(whole, decode([encode(whole["source"]), whole["target_in"]]), name="autoencoder")


def encoder_and_decoder(model: keras.Model) -> tuple[keras.Model, keras.Model]:
    """The two parts of an autoencoder, sharing its weights.

    A decoder step is `decode([vectors, prefix])[:, t]`, where the prefix holds the ids so far. Ids after
    position t do not matter, so a prefix filled up to a fixed length needs only one compiled program.

    Args:
        model: The result of `build_autoencoder`, or such a model loaded from a file.

    Returns:
        (encode, decode), as `build_autoencoder` describes them.

    Raises:
        ModelError: The model has no parts named "encode" and "decode".
    """
    parts = {layer.name: layer for layer in model.layers if isinstance(layer, keras.Model)}
    if not {"encode", "decode"} <= parts.keys():
        raise ModelError(
            f"model {model.name!r} is not a line autoencoder: expected nested models named "
            f"'encode' and 'decode', found {sorted(parts) or 'none'}. Train one with `cellerate train embed`."
        )
    return parts["encode"], parts["decode"]


def with_vectors(model: keras.Model) -> keras.Model:
    """The autoencoder with the vector as an output beside the logits, for packing; it shares the weights.

    Args:
        model: The result of `build_autoencoder`, or its encoder alone, which is returned unchanged.

    Returns:
        {"source": (B, S) ids, "target_in": (B, S') ids} → {"logits": (B, S', V), "vector": (B, latent)}.

    Raises:
        ModelError: The model has no parts named "encode" and "decode".
    """
    if "vector" in getattr(model, "output_names", ()):
        return model
    encode, decode = encoder_and_decoder(model)
    whole = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target_in")}
    vector = encode(whole["source"])
    outputs = {"logits": decode([vector, whole["target_in"]]), "vector": vector}
    return keras.Model(whole, outputs, name=model.name)


def stepwise_decoder(decode: keras.Model) -> tuple[keras.Model, keras.Model]:
    """The decoder as a model of one character at a time, sharing its weights.

    Args:
        decode: The decoder that `encoder_and_decoder` gives.

    Returns:
        (start, step): `start` turns vectors (B, latent) into [h, c, hint]; `step` takes
        [ids (B, 1), h, c, hint] and gives [logits (B, V), h, c, hint].

    Raises:
        ModelError: `decode` does not come from `build_autoencoder`.
    """
    try:
        table, hint, dense_h, dense_c, hinted, lstm, head = map(
            decode.get_layer,
            ["target_embedding", "hint_step", "initial_h", "initial_c", "hinted", "decoder", "head"],
        )
    except ValueError as error:
        raise ModelError(f"model {decode.name!r} cannot be stepped: {error}") from error
    vector = keras.Input(decode.inputs[0].shape[1:], dtype="float32")
    start = keras.Model(vector, [dense_h(vector), dense_c(vector), hint(decode.get_layer("hint")(vector))])
    ids = keras.Input((1,), dtype="int32")
    h, c, shown = (keras.Input(part.shape[1:], dtype=part.dtype) for part in start.outputs)
    x = keras.ops.squeeze(hinted([table(ids), shown]), axis=1)
    _, (next_h, next_c) = lstm.cell(x, [h, c])
    logits = keras.ops.cast(head(next_h), "float32")
    return start, keras.Model([ids, h, c, shown], [logits, next_h, next_c, shown])
