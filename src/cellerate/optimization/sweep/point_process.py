"""A process that trains one point of a sweep, so that its memory is its own and its failure affects no other point.

It opens the data, builds the model as `cellerate train` would, and trains the requested number of steps at a time. In
between it judges the model on the validation part. `points` starts it.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.windows import spread
from cellerate.errors import BackendError, DataError
from cellerate.layers.accelerate import accelerate
from cellerate.machine.environment import peak_memory_bytes
from cellerate.messages import argument
from cellerate.models.rewrite import with_dtype_policy
from cellerate.optimization.probe_process import answer_questions
from cellerate.settings import record_of
from cellerate.tasks.embed import LineTask
from cellerate.tasks.series import SeriesTask
from cellerate.tasks.settings import RECORDS, TextOptions
from cellerate.tasks.task import Task
from cellerate.tasks.text import TextTask
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry import Display
from cellerate.training.trial import Trainer

# A judgement must be cheap beside training, and read the same data for every point: a number of batches spread over the
# part, each of a number of rows; or, for texts, whose rows differ in length, of a number of items.
_JUDGED_BATCHES, _JUDGED_ROWS, _JUDGED_ITEMS = 20, 32, 3200
_FEWEST_BATCHES = 8
_FIRST_MILESTONE = 8
_MOST_TIMES = 200  # of steps of a turn, in its record


class _Messages(Display):
    """Collects the messages of a task for the process that asks."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def message(self, text: str) -> None:
        """Keeps a sentence."""
        self.said.append(str(text))


@dataclasses.dataclass(frozen=True)
class _Judge:
    """Judges a model on fixed batches, whatever it trains on.

    Attributes:
        batches: The batches.
        loss: The loss of training.
    """

    batches: list[tuple[Any, ...]]
    loss: Any

    @classmethod
    def of(cls, source: BatchSource | None, loss: Any) -> _Judge:
        """A judge on batches that are spread over a part of the data."""
        if source is None:
            return cls([], loss)
        return cls([source.batch(0, index) for index in spread(len(source), _JUDGED_BATCHES)], loss)

    def losses(self, model: keras.Model) -> list[tuple[float, float]]:
        """The mean loss of each batch and its weight."""
        found = []
        for x, y, *weights in self.batches:
            predicted = np.asarray(model.predict_on_batch(x), np.float32)
            of_rows = self.loss.call(keras.ops.convert_to_tensor(y), keras.ops.convert_to_tensor(predicted))
            each = keras.ops.convert_to_numpy(of_rows)
            weight = np.ones(len(each)) if not weights else np.asarray(weights[0], np.float64)
            weight = weight.reshape(weight.shape + (1,) * (each.ndim - weight.ndim))
            # One weight a row, as (B, 1), for losses (B,).
            weight = weight.reshape(each.shape[:1]) if weight.ndim > each.ndim else weight
            weight = np.broadcast_to(weight, each.shape)
            found.append((float((each * weight).sum() / max(weight.sum(), 1e-12)), float(weight.sum())))
        return found


class TrainingPoint:
    """A model in training, with its judges.

    Args:
        opened: The point: `task`, `paths`, `model`, the fields of the records as `parts`, and the `device`.
    """

    def __init__(self, opened: dict[str, Any]) -> None:
        began = time.perf_counter()
        _check_device(opened["device"])
        settings = record_of(TrainingSettings, opened["parts"].get("training", {}))
        self._messages = _Messages()
        run = RunOptions(output="sweep.keras", training=settings, display=self._messages)
        task = task_of(opened, run)
        task.open()
        model = task.build()
        self._source, validation = task.sources()
        about = task.training(validation)
        self._bits = about.bits
        self._begin(model, about)
        self._model = _in_precision(model, settings)
        length = opened["parts"].get("data", {}).get("length", TextOptions.length)
        rows = max(1, _JUDGED_ITEMS // length) if opened["task"] == "text" else _JUDGED_ROWS
        self._validation, self._test = (_Judge.of(part, about.loss) for part in _held_out(task, rows))
        if not self._validation.batches:
            raise DataError(
                "there are no data to judge the points on: hold some out with "
                f"{argument('validation_fraction', 0.1)}, or give more."
            )
        for name in self._fixed:
            self._model.get_layer(name).trainable = False
        self._trainer = Trainer(
            self._model, self._source, loss=about.loss, settings=settings, policy=settings.precision
        )
        self._ready_s = time.perf_counter() - began
        self._steps, self._seconds = 0, 0.0

    def answer(self, question: dict[str, Any]) -> Any:
        """See `answer_questions`."""
        asked: dict[str, Callable[..., Any]] = {"ready": self.ready, "turn": self.turn, "test": self.test}
        return asked[question["kind"]](**question.get("with", {}))

    def ready(self, *, state: str | None = None) -> dict[str, Any]:
        """Return the facts about the point; with the file of a state, continue from that state."""
        judged = []
        if state is None:
            judged = [self._judged()]
        else:
            found = self._trainer.load(state)
            self._steps, self._seconds = int(found["steps"]), found["seconds"]
        return {
            "batch_size": self._source.batch_size,
            "items": self._source.items_per_batch,
            "item": self._source.item,
            "bits": self._bits,
            "step_s": self._trainer.step_s if math.isfinite(self._trainer.step_s) else None,
            "ready_s": self._ready_s,
            "weights": int(self._model.count_params()),
            "messages": self._messages.said,
            "judged": judged,
            "steps": self._steps,
        }

    def turn(self, *, steps: int, state: str | None = None) -> dict[str, Any]:
        """Train for `steps` more steps; judge the model after them and at powers of two in between.

        Args:
            steps: The steps.
            state: The file that receives the state, to continue from.
        """
        seconds: list[float] = []
        losses, judged = [], []
        left = steps
        while left:
            count = min(left, _next_milestone(self._steps) - self._steps)
            trial = self._trainer.turn(count)
            seconds += trial.steps.seconds
            losses.append((trial.loss, count))
            left -= count
            self._steps += count
            self._seconds += sum(trial.steps.seconds)
            judged.append({**self._judged(), "train_loss": _finite(trial.loss)})
        if state is not None:
            self._trainer.save(state, steps=self._steps, seconds=self._seconds)
        mean = sum(loss * count for loss, count in losses) / steps
        kept = spread(len(seconds), _MOST_TIMES)
        return {
            "steps": steps,
            "seconds": sum(seconds),
            "times_s": [round(seconds[place], 7) for place in kept],
            "train_loss": _finite(mean),
            "judged": judged,
            "peak_memory_bytes": peak_memory_bytes(),
            "peak_gpu_memory_bytes": _bridge().peak_gpu_memory_bytes(),
        }

    def test(self) -> list[tuple[float, float]]:
        """The mean loss of each batch of the test part, and its weight."""
        return self._test.losses(self._model)

    def _begin(self, model: keras.Model, about: TrainingRun) -> None:
        """Give a new model the weights that `cellerate train` would begin with."""
        found = about.begin(model) if about.begin is not None else None
        self._fixed = () if found is None else found.fixed
        if found is not None:
            for name, arrays in found.weights.items():
                model.get_layer(name).set_weights(list(arrays))

    def _judged(self) -> dict[str, Any]:
        found = self._validation.losses(self._model)
        return {
            "steps": self._steps,
            "seconds": self._seconds,
            "losses": [_finite(loss) for loss, _ in found],
            "weights": [weight for _, weight in found],
        }


def task_of(opened: dict[str, Any], run: RunOptions) -> Task[Any]:
    """The task of a point; see `TrainingPoint`."""
    kind, model, paths = opened["task"], opened["model"], opened["paths"]
    records = RECORDS[kind]
    given: dict[str, Any] = {
        part: record_of(record, opened["parts"].get(part, {})) for part, record in records.items()
    }
    if kind == "text":
        return TextTask(dataclasses.replace(given["data"], paths=paths), run, given["architecture"], model)
    if kind == "embed":
        return LineTask(dataclasses.replace(given["data"], path=paths[0]), run, given["architecture"], model)
    data = dataclasses.replace(given["data"], paths=paths, reading=given["reading"])
    return SeriesTask(data, run, given["architecture"], model, given["table"])


def _held_out(task: Task[Any], rows: int) -> tuple[BatchSource | None, BatchSource | None]:
    """Return the parts that judge, in batches of `rows` rows, or smaller ones if an interval needs more batches."""
    while True:
        parts = task.held_out(rows)
        if rows == 1 or all(part is None or len(part) >= _FEWEST_BATCHES for part in parts):
            return parts
        rows = max(1, rows // 2)


def _in_precision(model: keras.Model, settings: TrainingSettings) -> keras.Model:
    """The model in the precision of its training, on its kernels; stock Keras is left as it is."""
    if settings.precision != "float32":
        model = with_dtype_policy(model, settings.precision)
    if settings.implementation != "keras":
        accelerate(model, settings.implementation, sum_embedding_gradients=True)
    return model


def _check_device(device: str) -> None:
    """Raise `BackendError` unless the backend computes on the given device."""
    if device != "auto" and _bridge().gpu_available() != (device == "gpu"):
        found = "a GPU" if device == "cpu" else "no GPU"
        raise BackendError(f"{keras.config.backend()} should train on the {device}, but it has {found}.")


def _bridge() -> Any:
    return importlib.import_module(f"cellerate.bridges.{keras.config.backend()}")


def _next_milestone(steps: int) -> int:
    """The next power of two, at which every point is judged, so that points can be compared after equal steps."""
    found = _FIRST_MILESTONE
    while found <= steps:
        found *= 2
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


if __name__ == "__main__":
    answer_questions(TrainingPoint)
