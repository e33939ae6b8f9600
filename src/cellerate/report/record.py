"""What a run of `optimize` found: plain records that JSON holds, and nothing that computes them.

A module of its own because the passes fill these in, the state on disk keeps them, and every form of the report is
drawn from them alone: a report can be made again, or compared, where neither Keras nor the model is.
"""

import json
import math
import stat
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from cellerate.errors import DataError
from cellerate.files import atomic_write

SCHEMA = 1
FILE_NAME = "report.json"
_LARGEST = 64 << 20  # bytes of a report; a genuine one has less than one

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

# Counts that a machine can hold: what is larger comes from a damaged file.
_Count = Annotated[int, Field(ge=0, lt=1 << 63)]

Status = Literal["done", "failed", "skipped"]
Quantity = Literal["training", "use", "size"]
"""What a pass can make better: the speed of training, the speed of using the model, its size."""


@dataclass(frozen=True, config=_STRICT)
class Metric:
    """What the quality of a model is.

    Attributes:
        name: Such as "bits per character".
        unit: What stands behind a value, or "".
        higher_is_better: Whether more of it is better.
        source: What it was measured on: "160,231 characters of the held-out part".
    """

    name: str
    unit: str
    higher_is_better: bool
    source: str


@dataclass(frozen=True, config=_STRICT)
class Interval:
    """A mean with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, config=_STRICT)
class Speed:
    """How fast a model is in use.

    Attributes:
        way: How it was called: "predict", "predict_on_batch", "packed".
        latency_p50_ms: Of one call for one item (a character of one text, a forecast, a line).
        latency_p99_ms: The same, of one call in a hundred.
        per_s: Items a second, one at a time.
        throughput_per_s: Items a second, many at a time; None where this was not measured.
        batch: How many at a time.
    """

    way: str
    latency_p50_ms: float
    latency_p99_ms: float
    per_s: float
    throughput_per_s: float | None
    batch: _Count


@dataclass(frozen=True, config=_STRICT)
class TrainingStep:
    """How fast a model trains.

    Attributes:
        way: Whose kernels, and in what precision: "Keras, float32".
        batch_size: Rows of a batch.
        length: Time steps of a row; None where the task has no choice of them.
        step_ms: The median.
        step_p20_ms: The 20th percentile.
        step_p80_ms: The 80th.
        items_per_s: Items (characters, windows, lines) a second.
        peak_memory_bytes: Of the process, at most; None where the system does not say.
        loss: Mean over the steps that were measured; None where it was not read.
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


@dataclass(frozen=True, config=_STRICT)
class Curve:
    """A line of a chart.

    Attributes:
        chart: The title of the chart; curves of one title share it.
        name: The line's own.
        x_label: With its unit.
        y_label: With its unit.
        x: Ascending.
        y: As many.
        log_x: Whether x doubles from point to point.
        marks: What to say of points: a place in `x` and a text each.
    """

    chart: str
    name: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    log_x: bool = False
    marks: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, config=_STRICT)
class Change:
    """A figure before and after.

    Attributes:
        quantity: What it is of; None for the quality.
        label: In words: "training step", "generation, one text".
        before: As it was.
        after: As it is.
        unit: Of both: "ms", "characters/s", "bytes".
        higher_is_better: Whether more of it is better.
    """

    quantity: Quantity | None
    label: str
    before: float
    after: float
    unit: str
    higher_is_better: bool

    @property
    def factor(self) -> float:
        """How many times better: above 1 is better."""
        better, worse = (self.after, self.before) if self.higher_is_better else (self.before, self.after)
        return better / worse if worse else math.inf


@dataclass(frozen=True, config=_STRICT)
class Pass:
    """A pass of the run.

    Attributes:
        name: Such as "quantise".
        title: In words.
        status: Whether it was done; "failed" and "skipped" have a reason.
        seconds: What it took.
        decision: One sentence: what was found, and what was kept of it.
        kept: Whether something of it was kept.
        reason: Why it failed or was skipped, or "".
        gains: What it made better, whether kept or not.
        curves: To draw.
        facts: Further rows to show, a label and a value each.
        notes: Sentences to show: remarks, warnings.
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


@dataclass(frozen=True, config=_STRICT)
class ForecastSample:
    """A forecast to draw: what was, what came, what was forecast."""

    title: str
    past: tuple[float, ...]
    truth: tuple[float, ...]
    forecast: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True, config=_STRICT)
class Sample:
    """What a model makes of one and the same input.

    Attributes:
        prompt: A text: what it was given; a line: the line.
        text: What it made of it; "" for forecasts.
        forecasts: Of a forecaster.
    """

    prompt: str = ""
    text: str = ""
    forecasts: tuple[ForecastSample, ...] = ()


@dataclass(frozen=True, config=_STRICT)
class Candidate:
    """A model that could be chosen.

    Attributes:
        id: Short and unique: "original", "int8", "pruned-50-int8".
        title: In words.
        made_by: The pass.
        precision: How its matrices are kept: "float32", "bfloat16" or "int8".
        parameters: Weights, in numbers.
        file_bytes: Of the file it is used from.
        quality: On the held-out data.
        loss: By how much worse than the original, as a share of its value, with the 95 % interval of the paired
            difference; below 0 is better. None of the original.
        passes_gate: Whether that is allowed.
        speeds: In use; the first is the one it is compared by.
        on_front: Whether none is both better and faster.
        file: Of the model, within the folder of the run; None where it was not kept.
        sample: What it makes of the sample's input.
        error: Why it could not be packed or measured, or "".
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
    sample: Sample | None = None
    error: str = ""

    @property
    def measured(self) -> bool:
        """Whether it is known what it is worth: a model that cannot be packed is measured on Keras."""
        return not self.error or self.quality is not None


@dataclass(frozen=True, config=_STRICT)
class Verdict:
    """What the run comes to.

    Attributes:
        sentence: In one sentence.
        chosen: The id of the candidate.
        rows: Before and after, all of this run.
        files: What to use: a label and a path within the folder of the run each.
        training: The settings to train with from now on, as options of `cellerate train`.
        warnings: What to know before relying on it.
    """

    sentence: str
    chosen: str
    rows: tuple[Change, ...]
    files: tuple[tuple[str, str], ...]
    training: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, config=_STRICT)
class Run:
    """A run of `optimize`.

    Attributes:
        schema: The version of this format.
        model: The name of the model.
        task: "text", "series" or "embed".
        item: What the task makes: "characters", "forecasts", "lines".
        data: What it was run on, in words.
        started: When, ISO 8601 with the zone.
        seconds: What it took, all sessions together.
        status: Whether it came to its end.
        command: To reproduce it.
        settings: The options.
        environment: Machine, versions, backend: labels and values.
        metric: The quality.
        max_quality_loss: The gate, as a share.
        explanation: Which kernel runs each layer before: a layer, a kernel and why each.
        passes: In their order.
        candidates: In the order in which they were made; the first is the original.
        training_steps: What was measured of training; the first is the baseline.
        verdict: None of a run that did not come to its end.
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
    passes: tuple[Pass, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    training_steps: tuple[TrainingStep, ...] = ()
    verdict: Verdict | None = None


def training_item(item: str) -> str:
    """What training reads where use makes so many `item`: characters, windows, lines."""
    return {"forecasts": "windows"}.get(item, item)


_RUN: TypeAdapter[Run] = TypeAdapter(Run)


def write_run(run: Run, folder: str | Path) -> Path:
    """Writes a run into a folder, whole or not at all, and gives the path of the file.

    Raises:
        OutputError: The file could not be written.
    """
    path = Path(folder) / FILE_NAME
    with atomic_write(path) as beside:
        beside.write_bytes(_RUN.dump_json(run, indent=1) + b"\n")
    return path


def read_run(path: str | Path) -> Run:
    """Reads what `write_run` wrote.

    Args:
        path: The file, or the folder that it is in.

    Raises:
        DataError: There is no such file, it is damaged, or a newer Cellerate wrote it.
    """
    source = Path(path)
    try:
        source = source / FILE_NAME if source.is_dir() else source
        # A pipe would be waited for without end, and a device need not have one.
        if not stat.S_ISREG(source.stat().st_mode):
            raise DataError(f"{source} is no file: give the folder that `cellerate optimize` wrote with -o.")
        with source.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except FileNotFoundError as error:
        raise DataError(
            f"there is no {source}: give the folder that `cellerate optimize` wrote with -o."
        ) from error
    except OSError as error:
        raise DataError(f"{source} cannot be read: {error.strerror}.") from error
    if len(content) > _LARGEST:
        raise DataError(
            f"{source} has more than {_LARGEST:,} bytes: it is no report of `cellerate optimize`."
        )
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
        told = error.errors()[0] if isinstance(error, ValidationError) else None
        reason = (
            f"{'.'.join(map(str, told['loc']))}: {told['msg']}" if told else f"it is no JSON object ({error})"
        )
        reason = "".join(c if c.isprintable() else "?" for c in reason)
        raise DataError(
            f"{source} is damaged or no report of `cellerate optimize`: {reason:.200}. Run optimize again."
        ) from error
