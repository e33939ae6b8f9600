"""Small training runs on ids that are half predictable."""

import json
import os
import signal

import keras
import numpy as np

from cellerate.data.windows.text_windows import TextBatches
from cellerate.models.text import build_text_model
from cellerate.training.loop import train
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.settings import TrainingSettings
from cellerate.training.start import run_folder
from cellerate.training.telemetry.display import Display

# Each id is the one before plus 1 or 2, so a model can learn to choose between two ids, but no better.
IDS = np.random.default_rng(3).integers(1, 3, 1200).cumsum().astype(np.int64) % 7
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def run(
    output,
    *,
    model=None,
    source=None,
    validation=None,
    display=None,
    carry=False,
    sample=None,
    metrics=(),
    **settings,
):
    passed = ("resume", "overwrite", "callbacks", "sample_every")
    options = {name: settings.pop(name) for name in passed if name in settings}
    model = model or build_text_model(7, embedding=4, units=6, dropout=0.3, seed=5)
    source = source or TextBatches(IDS[:1000], length=10, batch_size=8, seed=1)
    return train(
        model,
        source,
        TrainingRun(
            options=RunOptions(
                output=output,
                training=TrainingSettings(
                    **({"epochs": 3, "learning_rate": 0.01, "log_every": 1} | settings)
                ),
                display=display,
                **options,
            ),
            loss=LOSS,
            validation=validation,
            carry_states=carry,
            sample=sample,
            metrics=metrics,
        ),
    )


def held_out():
    return TextBatches(IDS[1000:], length=10, batch_size=8, drop_last=False)


def curve(output):
    return (run_folder(output) / "curve.csv").read_text()


def losses(output):
    lines = (run_folder(output) / "history.jsonl").read_text().splitlines()
    names = ("epoch", "loss", "val_loss", "accuracy", "val_accuracy")
    return [tuple(record.get(name) for name in names) for record in map(json.loads, lines)]


class Heard(Display):
    """Record the messages of the run."""

    def __init__(self):
        self.messages, self.waits = [], []

    def message(self, text):
        self.messages.append(text)

    def end_at_once(self):
        self.messages.append("at once")

    def data_wait(self, share):
        self.waits.append(share)


class StopAt(Display):
    """Send a signal to this process at a step, as Ctrl-C does."""

    def __init__(self, epoch, step, number=signal.SIGINT):
        self.place, self.number, self.said = (epoch, step), number, []

    def step(self, epoch, step, logs):
        if (epoch, step) == self.place:
            os.kill(os.getpid(), self.number)

    def message(self, text):
        self.said.append(text)
