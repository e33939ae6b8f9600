"""Text models trained in a moment, and their figures recomputed in plain NumPy."""

import keras
import numpy as np

from cellerate.data.text.text import open_text
from cellerate.tasks.settings import TextArchitecture, TextOptions
from cellerate.tasks.text.train import train_on_text
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings

LENGTH = 6
TEXT = (
    "".join(
        f"the {animal} sat on the {place}.\n"
        for animal in ("cat", "dog", "cow", "owl")
        for place in ("mat", "roof", "hill", "boat", "wall")
    )
    * 3
)
V = len(set(TEXT))


def options(path, **changes):
    return TextOptions(
        **({"paths": [path], "length": LENGTH, "batch_size": 16, "validation_fraction": 0.1} | changes)
    )


def fit(folder, *, text=TEXT, model=None, output="m.keras", epochs=1, file="text.txt", **changes):
    path = folder / file
    path.write_text(text, encoding=changes.get("encoding", "utf-8"))
    passed = ("resume", "overwrite", "callbacks", "sample_every", "display")
    how = {name: changes.pop(name) for name in passed if name in changes}
    prompt = changes.pop("prompt", None)
    sizes = {name: changes.pop(name) for name in ("units", "cell") if name in changes}
    settings = TrainingSettings(epochs=epochs, learning_rate=0.02)
    return train_on_text(
        options(path, **changes),
        RunOptions(output=folder / output, training=settings, **how),
        architecture=TextArchitecture(**{"embedding": 4, "units": 8, **sizes}),
        model=model,
        prompt=prompt,
    )


def log_probabilities(model, ids, *, logits=True):
    """(B, T[, V]) natural logarithms in float64, straight from the model."""
    out = keras.ops.convert_to_numpy(model(np.asarray(ids, np.int32), training=False)).astype(np.float64)
    if not logits:
        return np.log(out)
    out -= out.max(axis=-1, keepdims=True)
    return out - np.log(np.exp(out).sum(axis=-1, keepdims=True))


def mean_nats(model, ids, *, logits=True):
    """The mean over every id but the first, in windows that each start from zero states."""
    whole = (len(ids) - 1) // LENGTH * LENGTH
    total = 0.0
    for x, y in (
        (ids[:whole].reshape(-1, LENGTH), ids[1 : whole + 1].reshape(-1, LENGTH)),
        (ids[None, whole:-1], ids[None, whole + 1 :]),
    ):
        if y.size:
            found = log_probabilities(model, x, logits=logits)
            total -= np.take_along_axis(found, y[..., None], axis=-1).sum()
    return total / (len(ids) - 1)


def tail_of(folder, fraction=0.1):
    text = open_text(folder / "text.txt")
    return text.split(fraction)[1].astype(np.int64)
