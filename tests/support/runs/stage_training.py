"""Trainings of models in stages, and in one process: `python stage_training.py FOLDER JOB...` in a group or not."""

import json
import os
import signal

import numpy as np

from support.runs.in_processes import outcome, run_jobs


def stack(layers=3, units=8, vocabulary=11, dropout=0.0):
    from cellerate.models.text import build_text_model

    return build_text_model(
        vocabulary, embedding=6, units=units, layers=layers, layer_norm=True, dropout=dropout, seed=3
    )


def texts(batch_size, length=13, vocabulary=11, **settings):
    from cellerate.data.windows.text_windows import TextBatches

    rng = np.random.default_rng(0)
    ids = (np.arange(1200) * 3 % vocabulary + (rng.random(1200) < 0.2)) % vocabulary
    return TextBatches(ids.astype(np.uint8), length=length, batch_size=batch_size, **settings)


def text_loss():
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def run(folder, name, model, source, validation, loss, **settings):
    """Train, and return the outcome of the run."""
    from cellerate.training.loop import train
    from cellerate.training.run import RunOptions, TrainingRun
    from cellerate.training.settings import TrainingSettings

    options = {"epochs": 2, "learning_rate": 0.01, "log_every": 4}
    asked = {key: settings.pop(key) for key in ("display", "resume") if key in settings}
    metrics = settings.pop("metrics", [])
    result = train(
        model,
        source,
        TrainingRun(
            options=RunOptions(
                output=folder / f"{name}.keras", training=TrainingSettings(**{**options, **settings}), **asked
            ),
            loss=loss,
            metrics=metrics,
            validation=validation,
        ),
    )
    return {
        **outcome(result, source),
        "stages": [[*one.layers] for one in result.stages],
        "chunks": [one.chunks for one in result.stages],
        "waiting": [one.waiting for one in result.stages],
        "memory": [one.memory_bytes for one in result.stages],
    }


def text(folder):
    """A stack over tokens, with the norm of all gradients clipped."""
    return run(folder, "text", stack(), texts(8, seed=1), texts(8), text_loss(), global_clipnorm=0.5)


def forecast(folder):
    """A forecaster with layers before and after its stack, whose last recurrent layer returns no sequence."""
    import keras

    from cellerate.data.windows.changed import ChangedBatches
    from cellerate.data.windows.windows import WindowSettings, WindowSource
    from cellerate.models.forecast import build_forecast_model

    values = np.random.default_rng(0).normal(size=(220, 2)).astype(np.float32).cumsum(axis=0) / 5

    class ByStep(ChangedBatches):
        def _change(self, x, y, *weight):
            return x, y, *(one[:, None] for one in weight)

    def windows(**settings):
        # A batch size that the copies do not divide evenly, and a last batch that is padded.
        return ByStep(WindowSource(values, WindowSettings(window=9, horizon=2, batch_size=7, **settings)))

    model = build_forecast_model(9, 2, 2, 2, target_columns=(0, 1), units=8, layers=3, seed=3)
    return run(
        folder,
        "forecast",
        model,
        windows(seed=1),
        windows(drop_last=False),
        keras.losses.MeanSquaredError(),
        metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
        accumulate=2,
        optimizer="adamw",
        epochs=1,
    )


def begun(folder):
    """A layer with weights before the stack, and recurrent layers other than LSTM."""
    import keras

    keras.utils.set_random_seed(5)
    layers = keras.layers
    ids = keras.Input((None,), dtype="int32")
    x = layers.Conv1D(6, 3, padding="causal")(layers.Embedding(11, 6)(ids))
    x = layers.GRU(8, return_sequences=True)(x)
    x = layers.SimpleRNN(8, return_sequences=True)(x)
    model = keras.Model(ids, layers.Dense(11)(layers.Dropout(0.0)(x)))
    return run(folder, "begun", model, texts(8, seed=1), texts(8), text_loss(), optimizer="sgd", epochs=1)


def interrupted(folder):
    """Train until the step that `STOP_AT` names, from where the last processes stopped."""
    from support.runs.training_runs import StopAt

    stop = StopAt(*json.loads(os.environ.get("STOP_AT", "[9, 9]")), signal.SIGTERM)
    resume = any((folder / "interrupted.run").glob("checkpoint-*"))
    settings = {"resume": resume, "log_every": 2, "display": stop, "global_clipnorm": 0.5}
    return run(folder, "interrupted", stack(), texts(8, seed=1), texts(8), text_loss(), **settings)


def dying(folder):
    """The process of the last stage dies in the middle of a step."""
    model, source = stack(), texts(8, seed=1)
    if os.environ["RANK"] == "1":
        batch, calls = type(source)._read, []

        def dies(self, *arguments):
            calls.append(0)
            if len(calls) > 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return batch(self, *arguments)

        type(source)._read = dies
    return run(folder, "dying", model, source, None, text_loss(), epochs=50)


def large(folder):
    """Four layers of 512 units."""
    model = stack(4, 512)
    return run(folder, "large", model, texts(16, 40, seed=1), texts(16, 40), text_loss(), learning_rate=0.001)


JOBS = {job.__name__: job for job in (text, forecast, begun, interrupted, dying, large)}


if __name__ == "__main__":
    run_jobs(JOBS)
