"""The model of the generation contest, packed in each precision, and its results in float64."""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.generation.peers import CHARACTERS, EMBEDDING, TEXT, V
from benchmarks.precisions import PRECISIONS


def build(folder: Path, units: int) -> None:
    """The model as Keras saves it, packed in each precision, and its results in float64 for some characters."""
    import keras

    import cellerate
    from cellerate.data.tokenizers import CharacterTokenizer
    from cellerate.models.storage import TaskRecord

    keras.utils.set_random_seed(0)
    embedding = keras.layers.Embedding(
        V, EMBEDDING, embeddings_initializer=keras.initializers.RandomNormal(stddev=1)
    )
    lstm, dense = keras.layers.LSTM(units, return_sequences=True), keras.layers.Dense(V)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), embedding, lstm, dense])
    model.save(folder / "model.keras")
    record = TaskRecord("text", {"tokenizer": CharacterTokenizer(CHARACTERS).to_config()})
    for precision in PRECISIONS:
        cellerate.pack(model, folder / f"{precision}.cell", precision=precision, record=record)
    table, kernel, recurrent_kernel, bias, head, head_bias = model.get_weights()
    weights = {
        "table": table,
        "kernel": kernel,
        "recurrent_kernel": recurrent_kernel,
        "bias": bias,
        "head": head,
        "head_bias": head_bias,
    }
    np.savez(folder / "truth.npz", **truth_of(weights))


def truth_of(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results in float64: the logits after 40 ids, and the log-likelihood of a text after its first id."""
    from cellerate.kernels.lstm import reference
    from cellerate.kernels.lstm.spec import Arguments

    lstm = [weights[name] for name in ("kernel", "recurrent_kernel", "bias")]
    random = np.random.default_rng(0)
    ids, text = random.integers(0, V, 40), random.integers(0, V, TEXT + 1)
    x = weights["table"][ids]
    h = reference.forward(Arguments(*lstm, x=x[None])).h_T[0]
    outputs = reference.forward(Arguments(*lstm, x=weights["table"][text[:-1]][None])).outputs[0]
    logits = outputs @ weights["head"] + weights["head_bias"]
    logits -= logits.max(axis=-1, keepdims=True)
    judged = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return weights | {
        "ids": ids,
        "x": x,
        "h": h,
        "logits": h @ weights["head"] + weights["head_bias"],
        "text": text,
        "likelihood": judged[np.arange(TEXT), text[1:]].sum(),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("units", type=int)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    build(arguments.folder, arguments.units)
