"""Trainings that several processes share, and one alone: `python joint_training.py FOLDER JOB...` in a group or not."""

import json
import os
import signal

import numpy as np

from support.runs.in_processes import outcome, run_jobs

LINES = ["".join("abcdefgh"[(n * k + k) % 8] for k in range(1 + n % 6)) for n in range(60)]


def forecaster(dropout=0.0, normalised=False):
    import keras

    keras.utils.set_random_seed(5)
    layers = [keras.layers.LSTM(8, dropout=dropout)]
    if normalised:
        layers.append(keras.layers.BatchNormalization())
    return keras.Sequential([keras.Input((6, 2)), *layers, keras.layers.Dense(2)])


def windows(batch_size, **settings):
    from cellerate.data.windows.windows import WindowSettings, WindowSource

    values = np.random.default_rng(0).normal(size=(220, 2)).astype(np.float32).cumsum(axis=0) / 5
    return WindowSource(values, WindowSettings(window=6, horizon=1, batch_size=batch_size, **settings))


def run(folder, name, model, source, validation, **settings):
    """Train, and return the outcome of the run."""
    import keras

    from cellerate.data.windows.changed import ChangedBatches
    from cellerate.training.loop import train
    from cellerate.training.run import RunOptions, TrainingRun
    from cellerate.training.settings import TrainingSettings

    class LastRow(ChangedBatches):
        def _change(self, x, y, *weight):
            return x, y[:, 0], *weight

    options = {"epochs": 3, "clipnorm": 1.0, "learning_rate": 0.01, "log_every": 4}
    asked = {name: settings.pop(name) for name in ("display", "resume") if name in settings}
    extra = {
        "begin": settings.pop("begin", None),
        "metrics": settings.pop("metrics", None) or [keras.metrics.MeanAbsoluteError(name="mae")],
    }
    result = train(
        model,
        LastRow(source),
        TrainingRun(
            options=RunOptions(
                output=folder / f"{name}.keras", training=TrainingSettings(**{**options, **settings}), **asked
            ),
            loss=keras.losses.MeanSquaredError(),
            validation=LastRow(validation),
            **extra,
        ),
    )
    return {**outcome(result, source), "best_epoch": result.best_epoch}


def divided(folder):
    """A batch size that the processes divide evenly, and a last validation batch that is padded."""
    return run(folder, "divided", forecaster(), windows(12, seed=1), windows(10, drop_last=False))


def odd(folder):
    """A batch size that the processes do not divide evenly."""
    return run(folder, "odd", forecaster(), windows(7, seed=1), windows(7, drop_last=False), accumulate=2)


def lines(folder):
    """Rows of different lengths: the processes have different numbers of tokens."""
    from cellerate.files import atomic_write
    from cellerate.tasks.embed import train_on_lines
    from cellerate.tasks.settings import AutoencoderArchitecture, LineOptions
    from cellerate.training.run import RunOptions
    from cellerate.training.settings import TrainingSettings

    # Each process writes the same file, atomically, because another process may be reading it.
    with atomic_write(folder / "lines.txt") as beside:
        beside.write_text("\n".join(LINES))
    found = train_on_lines(
        LineOptions(path=folder / "lines.txt", batch_size=9, validation_fraction=0.2),
        RunOptions(output=folder / "lines.keras", training=TrainingSettings(epochs=3, learning_rate=0.01)),
        architecture=AutoencoderArchitecture(latent=8),
    )
    return {
        "history": [
            {k: r[k] for k in ("loss", "val_loss", "token_accuracy")} for r in found.training.history
        ],
        "judged": found.evaluation,
    }


def begun(folder):
    """Each process would begin with different weights, and some layers are frozen."""
    import keras

    from cellerate.training.beginning import Beginning
    from cellerate.training.stretches import ErrorByStretch

    model = forecaster()

    def begin(one):
        own = 0.01 * int(os.environ.get("RANK", "0"))
        name = one.layers[-1].name
        return Beginning("somewhere", {name: [np.full((8, 2), 0.1 + own), np.zeros(2)]}, (name,))

    source, validation = windows(12, seed=1), windows(10, drop_last=False)
    metrics = [ErrorByStretch(len(validation))]
    found = run(folder, "begun", model, source, validation, begin=begin, metrics=metrics)
    fixed = [np.asarray(keras.ops.convert_to_numpy(v)).tolist() for v in model.layers[-1].weights]
    return {**found, "fixed": fixed}


def drawn(folder):
    """Dropout, which each process draws itself, and batch statistics, which each process computes itself."""
    model = forecaster(dropout=0.3, normalised=True)
    found = run(folder, "drawn", model, windows(12, seed=1), windows(10, drop_last=False), epochs=1)
    kept = [[np.asarray(v.value).tolist() for v in layer.non_trainable_variables] for layer in model.layers]
    return {**found, "states": kept[0], "statistics": kept[1]}


def interrupted(folder):
    """A signal that only the last process gets, early in the second epoch."""
    from cellerate.data.windows.windows import WindowSource

    last = os.environ.get("RANK") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
    resume = any((folder / "interrupted.run").glob("checkpoint-*"))
    sent: list[int] = []

    class Stopping(WindowSource):
        def _read(self, epoch, first, last_row):
            if epoch == 1 and last and not resume and not sent:
                sent.append(epoch)
                os.kill(os.getpid(), signal.SIGTERM)
            return super()._read(epoch, first, last_row)

    source = windows(12, seed=1)
    source.__class__ = Stopping
    model = forecaster()
    return run(folder, "interrupted", model, source, windows(10, drop_last=False), resume=resume, log_every=2)


def elastic(folder):
    """Train until the step that `STOP_AT` names, from where the last processes stopped."""
    from support.runs.training_runs import StopAt

    stop = StopAt(*json.loads(os.environ["STOP_AT"]), signal.SIGTERM)
    resume = any((folder / "elastic.run").glob("checkpoint-*"))
    source, validation = windows(12, seed=1), windows(10, drop_last=False)
    return run(folder, "elastic", forecaster(), source, validation, resume=resume, log_every=2, display=stop)


def diverging(folder):
    """A learning rate at which the loss soon becomes NaN or infinite."""
    from cellerate.errors import TrainingError

    try:
        run(
            folder,
            "diverging",
            forecaster(),
            windows(12, seed=1),
            windows(10),
            learning_rate=1e30,
            clipnorm=None,
        )
    except TrainingError as error:
        return {"history": str(error)}
    return {"history": ""}


def failing(folder):
    """An error in the first process alone, after all processes have joined the group."""
    from cellerate.cli.main import _end
    from cellerate.training.parallel import Processes

    if os.environ.get("RANK") == "0":
        _end("the disk is full", 6)
    Processes().wait()


def link(folder):
    """The measured link between the processes."""
    from cellerate.training.parallel import Processes

    return Processes().measure_link()


JOBS = {
    job.__name__: job
    for job in (
        divided,
        odd,
        begun,
        lines,
        drawn,
        interrupted,
        elastic,
        diverging,
        failing,
        link,
    )
}


if __name__ == "__main__":
    run_jobs(JOBS)
