"""The processes that measure, kept for a whole run: starting one and compiling in it takes longer than measuring.

Contestants run in separate processes: one with Keras alone, which never loads our kernels, and one for each way to
train. A waiting process uses no processor time.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from cellerate.measure import as_timing
from cellerate.optimization.probe_client import PATIENCE_S, Probe, ProbeError
from cellerate.optimization.training import way_of
from cellerate.report.record import TrainingStep

# Each training process holds a model and its data; beyond this number the oldest ones end.
_MOST_TRAININGS = 3


@dataclasses.dataclass(frozen=True)
class TrainingWay:
    """A way to train.

    Attributes:
        implementation: The implementation of the LSTM layers.
        policy: Keras's dtype policy.
        batch_size: Rows per batch.
        length: Time steps per row; None if the task has no choice of length.
    """

    implementation: str
    policy: str
    batch_size: int
    length: int | None

    def __str__(self) -> str:
        return way_of(self.implementation, self.policy)

    @property
    def key(self) -> str:
        """The name of its trainer in a process."""
        return f"{self}, batches of {self.batch_size}, rows of {self.length}"


class Training:
    """A way to train, in a process that keeps its training ready to continue.

    Attributes:
        way: The way.
        probe: The process.
        compile_s: The seconds to compile and warm up, had it a processor to itself.
        step_s: About the seconds of a step; infinite if unknown.
        items: Items (characters, windows, lines) of a batch.
        raced: True if it has taken a turn of a race.
    """

    def __init__(self, way: TrainingWay, probe: Probe) -> None:
        self.way, self.probe = way, probe
        self.compile_s = self.step_s = float("inf")
        self.items, self.raced = 0, False
        self._about: dict[str, Any] = {}
        probe.tell("trainer", name=way.key, **dataclasses.asdict(way))

    def get_ready(self) -> None:
        """Wait until the training is compiled and warm.

        Raises:
            ProbeError: The model cannot be trained this way.
        """
        if self._about:
            return
        self._about = self.probe.answer()
        self.step_s, self.items = self._about["step_s"] or self.step_s, self._about["items"]
        self.compile_s = self._about["compile_s"]

    def turn(self, steps: int, *, restart: bool) -> dict[str, Any]:
        """Train for `steps` steps; with `restart`, as in the first turn of a race, from the model's weights.

        Raises:
            ProbeError: The training failed.
        """
        return self.probe.ask("turn", name=self.way.key, steps=steps, restart=restart)

    def step(self, turns: Sequence[dict[str, Any]], race: str = "") -> TrainingStep:
        """The figures of a step over all its turns."""
        whole = as_timing([seconds for turn in turns for seconds in turn["seconds"]])
        losses = [(turn["loss"], len(turn["seconds"])) for turn in turns]
        known = all(loss is not None for loss, _ in losses)
        count = sum(steps for _, steps in losses)
        return TrainingStep(
            way=str(self.way),
            batch_size=self._about["batch_size"],
            length=self._about["length"],
            step_ms=1e3 * whole.median_s,
            step_p20_ms=1e3 * whole.percentile_s(0.2),
            step_p80_ms=1e3 * whole.percentile_s(0.8),
            items_per_s=self.items / whole.median_s,
            peak_memory_bytes=turns[-1]["peak_memory_bytes"],
            loss=sum(loss * steps for loss, steps in losses) / count if known else None,
            race=race,
        )


class Workers:
    """The processes of a run.

    Args:
        probe: Makes a process, not started yet, that measures the original.

    Attributes:
        opened_s: The processor seconds that the Keras process took to open the model and the data: about the time of
            a process that starts alone.

    Example:
        >>> with contextlib.closing(Workers(probe)) as workers:
        ...     (ours,) = workers.trainings([TrainingWay("auto", "float32", 64, 100)])
    """

    def __init__(self, probe: Callable[[], Probe]) -> None:
        self._probe, self._patience_s = probe, PATIENCE_S
        self._keras: Probe | None = None
        self._keras_ready = False
        self.opened_s = 0.0
        self._spare: Probe | None = None
        self._trainings: dict[TrainingWay, Training] = {}

    def begin(self) -> None:
        """Start the two processes of the baseline, which open the model while this process does other work."""
        self._keras, self._spare = self._start(), self._start()
        self._spare.tell("open")
        self._keras.tell("open", files=[])

    def wait_for(self, patience_s: float) -> None:
        """Set the seconds that an answer may take from now on."""
        self._patience_s = patience_s
        trainings = [training.probe for training in self._trainings.values()]
        for probe in filter(None, (self._keras, self._spare, *trainings)):
            probe.patience_s = patience_s

    def prepare(self, way: TrainingWay) -> None:
        """Let a process prepare a way to train, without waiting for it."""
        if way not in self._trainings:
            self._trainings[way] = Training(way, self._take())

    def keras(self) -> Probe:
        """Return the process that uses the original as its user does, ready to be timed.

        Raises:
            ProbeError: It cannot open the model.
        """
        if self._keras is None:
            self._keras = self._start()
            self._keras.tell("open", files=[])
        if not self._keras_ready:
            self.opened_s = self._keras.answer()
            self._keras_ready = True
        return self._keras

    def trainings(self, ways: Sequence[TrainingWay]) -> list[Training | ProbeError]:
        """Return ways to train, each ready in its own process; new processes get ready at the same time.

        Returns:
            For each way a training, or the error if it cannot be trained.
        """
        for way in [way for way, training in self._trainings.items() if training.probe.has_ended]:
            # The system ends these processes first when memory is short.
            self.end(way)
        known = [self._trainings.get(way) for way in ways]
        for place, way in enumerate(ways):
            if known[place] is None:
                self.prepare(way)
                known[place] = self._trainings[way]
        found = [self._ready(training) for training in known if training is not None]
        for way in [way for way in self._trainings if way not in ways][: -_MOST_TRAININGS or None]:
            self.end(way)
        return found

    def end(self, way: TrainingWay) -> None:
        """Ends the process of a way to train."""
        if (training := self._trainings.pop(way, None)) is not None:
            training.probe.close()

    def close(self) -> None:
        """Ends all processes."""
        for way in list(self._trainings):
            self.end(way)
        for probe in (self._keras, self._spare):
            if probe is not None:
                probe.close()
        self._keras = self._spare = None
        self._keras_ready = False

    def _start(self) -> Probe:
        probe = self._probe()
        probe.patience_s = self._patience_s
        probe.start()
        return probe

    def _take(self) -> Probe:
        """Return a process without a training."""
        if self._spare is None:
            return self._start()
        probe, self._spare = self._spare, None
        # If the model cannot be opened, the next question fails with the same error.
        with contextlib.suppress(ProbeError):
            probe.answer()
        return probe

    def _ready(self, training: Training) -> Training | ProbeError:
        try:
            training.get_ready()
        except ProbeError as error:
            self.end(training.way)
            return error
        return training
