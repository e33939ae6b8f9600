"""The record of a sweep: its settings, the measurements of each point, and the verdict; `sweep.json` holds it.

It needs no framework, and the page and the table are drawn from it alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cellerate.errors import DataError
from cellerate.files import atomic_write, read_regular
from cellerate.measure import Order, Timing, as_timing

FILE_NAME = "sweep.json"
FORMAT = 1
_MOST_BYTES = 1 << 28

PointStatus = Literal["waiting", "measured", "failed", "left out", "stopped early"]


def is_stock(values: Mapping[str, Any]) -> bool:
    """True if stock Keras trains a point of these values."""
    return values.get("implementation") == "keras"


@dataclasses.dataclass
class PointRecord:
    """A point and its measurements.

    Attributes:
        label: Its values in words.
        values: Its values of the swept settings.
        control: True if the others are compared with it.
        status: "waiting" until it has its first turn, "measured"; "failed" and "left out", with the reason;
            "stopped early" by a search.
        reason: See `status`.
        batch_size: Rows of a batch.
        items: Items (characters, windows, lines) of a batch.
        weights: The number of the model's weights.
        ready_s: Seconds to open the data, to build the model and to compile it.
        heat: The number of the group of points that were alive together and took turns, from 1.
        turns: The turns: `round`, `steps`, `seconds`, `times_s` of steps (at most 200, evenly chosen) and `train_loss`.
        judged: The judgements on the validation part: `steps` and `seconds` of training before, the `losses` of the
            batches with their `weights`, and `train_loss` since the last one.
        peak_memory_bytes: The largest resident memory of its process.
        peak_gpu_memory_bytes: The most memory that its arrays took on the GPU; None where it trained on the CPU.
        test: The judgement on the test part, for points that a search judges there.
    """

    label: str
    values: dict[str, Any]
    control: bool = False
    status: PointStatus = "waiting"
    reason: str = ""
    batch_size: int = 0
    items: int = 0
    weights: int = 0
    ready_s: float = 0.0
    heat: int = 0
    turns: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    judged: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    peak_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None
    test: list[list[float]] = dataclasses.field(default_factory=list)

    @property
    def measured(self) -> bool:
        """True if it has figures."""
        return bool(self.turns)

    @property
    def comparable(self) -> bool:
        """True if it trained for as long as the others; a point that a search stopped did not."""
        return self.measured and self.status != "stopped early"

    @property
    def steps(self) -> int:
        """Steps that it has trained."""
        return sum(turn["steps"] for turn in self.turns)

    @property
    def seconds(self) -> float:
        """Seconds that it has trained."""
        return sum(turn["seconds"] for turn in self.turns)

    @property
    def step(self) -> Timing:
        """The times of its steps."""
        return as_timing([seconds for turn in self.turns for seconds in turn["times_s"]])

    @property
    def items_per_s(self) -> float:
        """Items a second, by the median step."""
        return self.items / max(self.step.median_s, 1e-12)

    @property
    def item_s(self) -> tuple[float, float]:
        """The interval of the seconds that an item takes, from the median of each turn."""
        medians = tuple(as_timing(turn["times_s"]).median_s / max(1, self.items) for turn in self.turns)
        return Order(medians).interval


@dataclasses.dataclass
class SweepRecord:
    """A sweep.

    Attributes:
        task: "text", "series" or "embed".
        data: The files.
        model: The trained model that points continue; "" for new models.
        backend: The Keras backend.
        parts: The settings that all points share and that differ from the defaults.
        axes: The values of the swept settings, by name.
        settings: The settings of the sweep itself.
        unit: The unit of the losses: "bits/character" or "loss".
        item: The content of a batch: "characters", "windows", "lines".
        machine: The processor, memory and system.
        versions: The versions of the packages.
        began: The time of the start, in UTC.
        seconds: The seconds of all calls together.
        status: "running", "interrupted" or "finished".
        point_s: Seconds that each point trains for; 0 if steps limit it.
        notes: Sentences on the conditions of the sweep.
        points: The points, the control first.
        verdict: The conclusions; see `verdict.judge`.
    """

    task: str
    data: list[str]
    model: str
    backend: str
    parts: dict[str, dict[str, Any]]
    axes: dict[str, list[Any]]
    settings: dict[str, Any]
    unit: str = "loss"
    item: str = "items"
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    began: str = ""
    seconds: float = 0.0
    status: str = "running"
    point_s: float = 0.0
    notes: list[str] = dataclasses.field(default_factory=list)
    points: list[PointRecord] = dataclasses.field(default_factory=list)
    verdict: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def control(self) -> PointRecord:
        """The point that all others are compared with."""
        return next(point for point in self.points if point.control)

    @property
    def in_bits(self) -> float:
        """The factor from recorded losses to the unit shown to readers."""
        return 1 / math.log(2) if self.unit.startswith("bits") else 1.0

    def write(self, folder: Path) -> None:
        """Writes the record, whole or not at all.

        Raises:
            OutputError: The file could not be written.
        """
        with atomic_write(folder / FILE_NAME) as beside:
            beside.write_text(json.dumps(self.as_json(), indent=1) + "\n")

    def as_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        return {"format": FORMAT, **dataclasses.asdict(self)}


def read_record(folder: Path) -> SweepRecord:
    """Reads the record of a folder.

    Raises:
        DataError: The record is missing or damaged.
    """
    path = folder / FILE_NAME
    content = read_regular(path, _MOST_BYTES, "give the folder of a sweep")
    try:
        found: Mapping[str, Any] = json.loads(content)
        fields = {name: value for name, value in found.items() if name != "format"}
        points = [PointRecord(**point) for point in fields.pop("points")]
        if found["format"] != FORMAT:
            raise DataError(f"{path} is of format {found['format']}, and this version reads {FORMAT}.")
        return SweepRecord(**fields, points=points)
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is damaged ({error}): sweep again into another folder.") from error
