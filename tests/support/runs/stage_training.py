"""Trainings of models in stages, and in one process: `python stage_training.py FOLDER JOB...` in a group or not."""

import functools
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import numpy as np



def stack(layers=3, units=8, vocabulary=11, dropout=0.0):
    from cellerate.models.text import build_text_model

    return build_text_model(
        vocabulary, embedding=6, units=units, layers=layers, layer_norm=True, dropout=dropout, seed=3
    )


def texts(batch_size, length=13, vocabulary=11, **settings):
    from cellerate.data.windows.text_windows import TextBatches

    rng = np.random.default_rng(0)
    ids = (np.arange(1500) * 3 % vocabulary + (rng.random(1500) < 0.2)) % vocabulary
    return TextBatches(ids.astype(np.uint8), length=length, batch_size=batch_size, **settings)


def run(folder, name, model, source, validation, loss, metrics=(), **settings):
    from cellerate.training.loop import train
    from cellerate.training.parallel import apart
    from cellerate.training.run import RunOptions, TrainingRun
    from cellerate.training.settings import TrainingSettings

    options = {"epochs": 2, "learning_rate": 0.01, "log_every": 4}
    asked = {key: settings.pop(key) for key in ("display", "resume") if key in settings}
    result = train(
        model,
        source,
        TrainingRun(
            options=RunOptions(
                output=folder / f"{name}.keras", training=TrainingSettings(**{**options, **settings}), **asked
            ),
            loss=loss,
            metrics=list(metrics),
            validation=validation,
        ),
    )
    predicted = curve = None
    if result.here:
        path = folder / f"{name}.run" / "curve.csv"
        lines = path.read_text().splitlines()[1:] if result.history else []
        curve = [float(line.rpartition(",")[2]) for line in lines]
        with apart():
            predicted = np.asarray(result.model.predict_on_batch(source.batch(0, 0)[0]))[..., :3].tolist()
    return {
        "status": result.status,
        "here": result.here,
        "history": [
            {k: v for k, v in r.items() if "loss" in k or "mae" in k or k in ("steps", "gradient_norm")} for r in result.history
        ],
        "curve": curve,
        "predicted": predicted,
        "stages": [[list(one.layers), one.chunks, one.memory_bytes] for one in result.stages],
    }


def _text_loss():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def text(folder):
    """A stack over tokens, with the norm of all gradients clipped."""
    return run(
        folder, "text", stack(), texts(8, seed=1), texts(8), _text_loss(), global_clipnorm=0.5
    )


JOBS = {job.__name__: job for job in (text,)}


def main() -> None:
    from cellerate.cli.backend import start_backend
    from cellerate.distributed.group import join, own_place

    folder, *jobs = sys.argv[1:]
    place = own_place()
    start_backend(None, functools.partial(join, place) if place else lambda _: None)
    for job in jobs:
        try:
            found = JOBS[job](Path(folder))
        except BaseException:
            # The others would wait for this one, and this one for them.
            traceback.print_exc()
            os._exit(1)
        Path(folder, f"{job}-{place.number if place else 0}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
