"""Predicts the time of a training on several devices from its steps on one device.

The computation of each device's rows is measured; the exchange of gradients is a formula, with an assumed or measured
link. The prediction assumes that all devices are as fast as the measured one, and that the exchange does not overlap
the computation; so the truth is usually better than the prediction.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cellerate.distributed.launch import launch
from cellerate.errors import ConfigError
from cellerate.machine.environment import PROBE_VARIABLE, STAGES_VARIABLE


@dataclasses.dataclass(frozen=True)
class Link:
    """The link between two devices.

    Attributes:
        bytes_per_s: The bandwidth.
        latency_s: The seconds that the shortest message takes.
    """

    bytes_per_s: float
    latency_s: float

    def exchange_s(self, size: int, devices: int) -> float:
        """Seconds in which `devices` add up gradients of `size` bytes.

        Every device sends and receives each byte about twice, in rounds along a tree.

        Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in
        MPICH", IJHPCA 2005.
        """
        if devices == 1:
            return 0.0
        return 2 * (
            math.ceil(math.log2(devices)) * self.latency_s + (devices - 1) / devices * size / self.bytes_per_s
        )


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A training on a number of devices.

    Attributes:
        devices: The number of devices.
        rows: The rows of each batch on one device.
        compute_s: Seconds in which a step reads its rows and computes.
        exchange_s: Seconds in which a step then exchanges gradients.
        step_s: The sum of both.
        efficiency: The gain over one device, divided by the number of devices.
        epoch_s: Seconds of an epoch, without validation.
        memory_bytes: The resident memory of the process of one device.
    """

    devices: int
    rows: int
    compute_s: float
    exchange_s: float
    step_s: float
    efficiency: float
    epoch_s: float
    memory_bytes: int | None


@dataclasses.dataclass(frozen=True)
class StagePlan:
    """A training whose layers are divided over devices.

    Attributes:
        layers: The layers of each stage.
        compute_s: Seconds of a step in which the most expensive stage computes.
        bubble_s: Seconds of a step in which that stage waits while the pipeline fills and drains.
        exchange_s: Seconds of a step for that stage's messages.
        step_s: The sum of all three.
        chunks: The number of chunks of time.
        efficiency: The gain over one device, divided by the number of stages.
        epoch_s: Seconds of an epoch, without validation.
    """

    layers: Sequence[Sequence[str]]
    compute_s: float
    bubble_s: float
    exchange_s: float
    step_s: float
    chunks: int
    efficiency: float
    epoch_s: float

    @property
    def stages(self) -> int:
        """The number of stages, and of devices."""
        return len(self.layers)


@dataclasses.dataclass(frozen=True)
class Check:
    """A prediction for processes on this machine, with the measured times.

    Attributes:
        devices: The number of processes.
        predicted_s: The predicted seconds of a step.
        measured_s: The measured seconds of a step.
        link: The measured link between the processes.
    """

    devices: int
    predicted_s: float
    measured_s: float
    link: Link

    @property
    def error(self) -> float:
        """The error of the prediction, as a share of the measured time; negative if it promised too much speed."""
        return self.predicted_s / self.measured_s - 1


def measure(command: Sequence[str], devices: Sequence[int], stages: Sequence[int] = ()) -> dict[str, Any]:
    """Times steps of a training in one process, with the rows of one device out of each number of devices.

    Args:
        command: The training.
        devices: The numbers of devices.
        stages: The numbers of stages, for which each layer is timed separately.

    Returns:
        What `training.probe` writes.

    Raises:
        SystemExit: The training itself fails, after its own error message.
    """
    return _probed(command, sorted({1, *devices}), 1, 1, stages=stages)


def predict(
    measured: Mapping[str, Any], devices: Sequence[int], link: Link, items: int | None = None
) -> list[Prediction]:
    """The time of the training on each number of devices.

    Args:
        measured: The result of `measure`.
        devices: The numbers of devices.
        link: What connects two of them.
        items: Items of an epoch, such as windows; None for those of the data.
    """
    steps = math.ceil(items / measured["items"]) if items is not None else measured["batches"]
    alone = measured["step_s"]["1"]
    found = []
    for count in devices:
        compute, exchange = measured["step_s"][str(count)], link.exchange_s(measured["gradient_bytes"], count)
        step = compute + exchange
        found.append(
            Prediction(
                devices=count,
                rows=-(-measured["batch_size"] // count),
                compute_s=compute,
                exchange_s=exchange,
                step_s=step,
                efficiency=alone / (count * step),
                epoch_s=steps * step,
                memory_bytes=measured["memory_bytes"][str(count)],
            )
        )
    return found


def predict_stages(measured: Mapping[str, Any], link: Link, items: int | None = None) -> list[StagePlan]:
    """The time of the training with each number of stages that was measured.

    A stage sends and receives a message for each chunk, forward and backward, of what lies between it and the next one;
    the messages are not hidden behind the computation.

    Args:
        measured: The result of `measure`.
        link: What connects two devices.
        items: As in `predict`.
    """
    steps = math.ceil(items / measured["items"]) if items is not None else measured["batches"]
    alone, found = measured["step_s"]["1"], []
    for divided in measured["stages"].values():
        compute, chunks = max(divided["seconds"]), divided["chunks"]
        bubble = compute * divided["bubble"] / (1 - divided["bubble"])
        exchange = max(
            (2 * (chunks * link.latency_s + size / link.bytes_per_s) for size in divided["bytes"]),
            default=0.0,
        )
        step = compute + bubble + exchange
        found.append(
            StagePlan(
                layers=divided["layers"],
                compute_s=compute,
                bubble_s=bubble,
                exchange_s=exchange,
                step_s=step,
                chunks=chunks,
                efficiency=alone / (len(divided["layers"]) * step),
                epoch_s=steps * step,
            )
        )
    return found


def check_stages(command: Sequence[str], stages: int) -> Check:
    """Predicts what stages in processes on this machine take, each with its share of the processors, and runs them.

    Raises:
        SystemExit: The training itself fails, after its own error message.
    """
    alone = _probed(command, [1], 1, stages, stages=[stages])
    together = _probed(command, [1], stages, stages, {STAGES_VARIABLE: str(stages)})
    link = Link(**together["link"])
    (planned,) = predict_stages(alone, link)
    return Check(stages, planned.step_s, together["step_s"]["1"], link)


def check(command: Sequence[str], devices: int) -> Check:
    """Predicts what processes on this machine take, each with its share of the processors, and runs them.

    Raises:
        SystemExit: The training itself fails, after its own error message.
    """
    alone = _probed(command, [devices], 1, devices)
    together = _probed(command, [1], devices, devices)
    link = Link(**together["link"])
    predicted = alone["step_s"][str(devices)] + link.exchange_s(alone["gradient_bytes"], devices)
    return Check(devices, predicted, together["step_s"]["1"], link)


def training_command(words: Sequence[str], program: Sequence[str]) -> list[str]:
    """The command of the training to plan.

    Raises:
        ConfigError: It is none, or says by itself how many processes there are to be.
    """
    if not words or words[0] != "train":
        raise ConfigError(
            "expected a training to plan, as in `cellerate plan --devices 8 -- train series data.csv --target "
            f"y -o y.keras`; got {' '.join(words) or 'nothing'!r}."
        )
    if wrong := [word for word in words if word.split("=")[0] in ("--processes", "--ray", "--stages")]:
        raise ConfigError(
            f"{wrong[0]} is not for a plan, which tells what other numbers of devices would take."
        )
    return [*program, *words]


def _probed(
    command: Sequence[str],
    shares: Sequence[int],
    count: int,
    parts: int,
    variables: Mapping[str, str] | None = None,
    *,
    stages: Sequence[int] = (),
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "probe.json"
        request = json.dumps({"result": str(result), "shares": list(shares), "stages": list(stages)})
        code = launch(command, count, {PROBE_VARIABLE: request, **(variables or {})}, parts=parts)
        if code or not result.exists():
            raise SystemExit(code or 1)
        found: dict[str, Any] = json.loads(result.read_text())
        return found
