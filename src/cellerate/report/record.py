"""The record of a run of `optimize`: plain values that JSON holds, and no code that computes them.

The stages fill it in, the state on disk stores it, and all forms of the report are drawn from it alone. So a
report can be made again, or compared, without Keras and without the model.
"""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from cellerate.errors import DataError
from cellerate.files import atomic_write, read_regular
from cellerate.report.quality import STRICT, Interval, Metric, Tested

SCHEMA = 3
FILE_NAME = "report.json"
CONTROL = "control"
"""The value of `made_by` for a control."""
_LARGEST = 64 << 20  # bytes of a report; a genuine one is below 1 MiB

# Counts that a machine can hold: anything larger comes from a damaged file.
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]

Status = Literal["done", "failed", "skipped"]
Quantity = Literal["training", "use", "size"]
"""The quantities that a stage can improve: the speed of training, the speed of using the model, or its size."""


@dataclass(frozen=True, config=STRICT)
class Speed:
    """The speed of a model in use.

    Attributes:
        way: How the model was called: "predict", "predict_on_batch", "packed".
        latency_p50_ms: Median time of one call that gives one item: a character, a forecast, a line's vector.
        latency_p99_ms: The 99th percentile of such calls.
        per_s: Items per second, one after another. A packed text model is called for many characters at once, as in
            normal use; every other way for one item at a time.
        throughput_per_s: Items per second, many at a time; None if not measured.
        batch: How many items at a time.
    """

    way: str
    latency_p50_ms: float
    latency_p99_ms: float
    per_s: float
    throughput_per_s: float | None
    batch: _Count


@dataclass(frozen=True, config=STRICT)
class TrainingStep:
    """The speed of a model in training.

    Attributes:
        way: Whose kernels, and in what precision: "Keras, float32".
        batch_size: Rows per batch.
        length: Time steps per row; None if the task has no choice of length.
        step_ms: The median.
        step_p20_ms: The 20th percentile.
        step_p80_ms: The 80th percentile.
        items_per_s: Items (characters, windows, lines) per second.
        peak_memory_bytes: Peak memory of the process; None if the system does not report it.
        loss: Mean over the measured steps; None if it was not read.
        race: The name of its race: steps of one race were timed in turns, and can be compared; "" for a step that was
            timed alone.
    """

    way: str
    batch_size: _Count
    length: _Count | None
    step_ms: float
    step_p20_ms: float
    step_p80_ms: float
    items_per_s: float
    peak_memory_bytes: _Count | None = None
    loss: float | None = None
    race: str = ""


@dataclass(frozen=True, config=STRICT)
class Curve:
    """A line of a chart.

    Attributes:
        chart: The title of the chart; curves with the same title share a chart.
        name: The name of the line.
        x_label: The label of x, with its unit.
        y_label: The label of y, with its unit.
        x: Ascending values.
        y: As many values.
        log_x: Whether x doubles from point to point.
        marks: Labels of points: an index into `x` and a text each.
    """

    chart: str
    name: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    log_x: bool = False
    marks: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, config=STRICT)
class Change:
    """A figure before and after.

    Attributes:
        quantity: The quantity that the figure belongs to; None for quality.
        label: The figure in words: "training step", "generation, one text".
        before: The value before.
        after: The value after.
        unit: The unit of both: "ms", "characters/s", "bytes".
        higher_is_better: Whether more is better.
    """

    quantity: Quantity | None
    label: str
    before: float
    after: float
    unit: str
    higher_is_better: bool

    @property
    def factor(self) -> float:
        """The factor by which it is better, above 1."""
        better, worse = (self.after, self.before) if self.higher_is_better else (self.before, self.after)
        return better / worse if worse else math.inf


@dataclass(frozen=True, config=STRICT)
class StageRecord:
    """A stage of the run.

    Attributes:
        name: Such as "quantise".
        title: The name in words.
        status: Whether it was done; "failed" and "skipped" come with a reason.
        seconds: The time it took.
        decision: One sentence: what was found, and what was kept.
        kept: Whether any of it was kept.
        reason: Why it failed or was skipped, or "".
        gains: What it improved, whether kept or not.
        curves: The curves to draw.
        facts: Further rows to show, each a label and a value.
        notes: Sentences to show, such as remarks and warnings.
        needs_s: If it was skipped for lack of time, about how many seconds it needs at least.
        expected_s: The time that it was expected to take when it began; None if it did not begin.
    """

    name: str
    title: str
    status: Status
    seconds: float = 0.0
    decision: str = ""
    kept: bool = False
    reason: str = ""
    gains: tuple[Change, ...] = ()
    curves: tuple[Curve, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    needs_s: float | None = None
    expected_s: float | None = None


@dataclass(frozen=True, config=STRICT)
class ForecastSample:
    """A forecast to draw: the past, the values that came, the forecast values."""

    title: str
    past: tuple[float, ...]
    truth: tuple[float, ...]
    forecast: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, config=STRICT)
class SampleOutput:
    """The output of a model for the sample input, which is the same for all models.

    Attributes:
        prompt: For a text, its beginning; for a line, the line.
        text: The model's output; "" for forecasts.
        forecasts: The forecasts of a forecaster.
    """

    prompt: str = ""
    text: str = ""
    forecasts: tuple[ForecastSample, ...] = ()


@dataclass(frozen=True, config=STRICT)
class Candidate:
    """A model that could be chosen.

    Attributes:
        id: Short and unique: "original", "int8", "pruned-50-int8".
        title: The name in words.
        made_by: The stage that made it; `CONTROL` for the original trained further and not changed otherwise.
        precision: How its matrices are stored: "float32", "bfloat16" or "int8".
        parameters: The number of weights.
        file_bytes: The size of the file it is used from.
        quality: The quality on the validation part.
        loss: How much worse than the original it is, as a share of the original's value, with the 95 %
            interval of the paired difference; below 0 is better. None for the original.
        passes_gate: Whether the worse of its two losses is allowed.
        speeds: The speed in each way to use it, the fastest first; models are compared by the first.
        on_front: Whether no other model is both better and faster.
        file: The path of the model, within the folder of the run; None if it was not kept.
        sample: Its output for the sample input.
        error: Why it could not be packed or measured, or "".
        control: The id of the original trained for as many further steps; None if it was not trained further.
        control_loss: How much worse than that control it is, like `loss`.
    """

    id: str
    title: str
    made_by: str
    precision: str
    parameters: _Count
    file_bytes: _Count
    quality: Interval | None
    loss: Interval | None
    passes_gate: bool
    speeds: tuple[Speed, ...]
    on_front: bool = False
    file: str | None = None
    sample: SampleOutput | None = None
    error: str = ""
    control: str | None = None
    control_loss: Interval | None = None

    @property
    def is_control(self) -> bool:
        """True if it is only a reference for other models, and cannot be chosen."""
        return self.made_by == CONTROL

    @property
    def worst_loss(self) -> float:
        """The loss that counts against the limit: against the better of the original and the control."""
        return max((loss.value for loss in (self.loss, self.control_loss) if loss), default=0.0)

    @property
    def measured(self) -> bool:
        """True if its quality is known: a model that cannot be packed is measured on Keras."""
        return not self.error or self.quality is not None


@dataclass(frozen=True, config=STRICT)
class Verdict:
    """The result of the run.

    Attributes:
        sentence: The result in one sentence.
        chosen: The id of the chosen candidate.
        rows: Figures before and after, all from this run.
        files: The files to use: each a label and a path within the folder of the run.
        training: The command to train with from now on; "" where none is proposed.
        warnings: Warnings before relying on the result.
        tested: The quality on the test part.
        rejected: The id of the model that would have been chosen, and broke the promise there; or None.
    """

    sentence: str
    chosen: str
    rows: tuple[Change, ...]
    files: tuple[tuple[str, str], ...]
    training: str
    warnings: tuple[str, ...] = ()
    tested: tuple[Tested, ...] = ()
    rejected: str | None = None


@dataclass(frozen=True, config=STRICT)
class Run:
    """A run of `optimize`.

    Attributes:
        schema: The version of this format.
        model: The name of the model.
        task: "text", "series" or "embed".
        item: The output of the task: "characters", "forecasts", "lines".
        data: The data of the run, in words.
        started: The time of the start, ISO 8601 with the zone.
        seconds: The time it took, all sessions together.
        status: Whether it came to its end.
        command: The command that reproduces it.
        settings: The options.
        environment: Machine, versions, backend: labels and values.
        metric: The measure of quality.
        max_quality_loss: How much worse a model may be than the original, as a share.
        explanation: Which kernel ran each layer before optimizing: each a layer, a kernel and a reason.
        passes: The stages in order, under the key that reports on disk have.
        candidates: The models in the order they were made; the first is the original.
        training_steps: The measurements of training; the first is the baseline.
        verdict: None if the run did not come to its end.
    """

    schema: int
    model: str
    task: str
    item: str
    data: str
    started: str
    seconds: float
    status: Literal["finished", "interrupted", "failed"]
    command: str
    settings: dict[str, Any]
    environment: tuple[tuple[str, str], ...]
    metric: Metric
    max_quality_loss: float
    explanation: tuple[tuple[str, str, str], ...] = ()
    passes: tuple[StageRecord, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    training_steps: tuple[TrainingStep, ...] = ()
    verdict: Verdict | None = None


def training_item(item: str) -> str:
    """Names what training reads, given the `item` that the model makes: characters, windows, lines."""
    return {"forecasts": "windows"}.get(item, item)


_RUN: TypeAdapter[Run] = TypeAdapter(Run)


def write_run(run: Run, folder: str | Path) -> Path:
    """Writes a run into a folder, whole or not at all, and gives the file's path.

    Raises:
        OutputError: The file could not be written.
    """
    path = Path(folder) / FILE_NAME
    with atomic_write(path) as beside:
        beside.write_bytes(_RUN.dump_json(run, indent=1) + b"\n")
    return path


def read_run(path: str | Path) -> Run:
    """Reads a run that `write_run` wrote.

    Args:
        path: The file, or the folder it is in.

    Raises:
        DataError: There is no such file, it is damaged, or a newer Cellerate wrote it.
    """
    source = Path(path)
    with contextlib.suppress(OSError):  # `read_regular` reports it
        source = source / FILE_NAME if source.is_dir() else source
    content = read_regular(source, _LARGEST, "give the folder that `cellerate optimize` wrote with -o")
    try:
        version = json.loads(content).get("schema")
        if isinstance(version, int) and version > SCHEMA:
            raise DataError(
                f"{source} was written by a newer Cellerate (schema {version}; this one reads {SCHEMA}). Run: "
                "pip install --upgrade cellerate"
            )
        return _RUN.validate_json(content)
    except DataError:
        raise
    except (ValueError, AttributeError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        reason = (
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            if first
            else "it is not a JSON object"
            if isinstance(error, AttributeError)
            else f"it is not a JSON object ({error})"
        )
        reason = "".join(c if c.isprintable() else "?" for c in reason)
        raise DataError(
            f"{source} is damaged or no report of `cellerate optimize`: {reason:.200}. Run optimize again."
        ) from error
