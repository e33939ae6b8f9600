"""The processes that train one model together, each on its rows of every batch.

The backend knows the number of this process: `distributed.group`, or a program that torchrun started, joins a group
before anything else. Without a group there is a single process, and the methods here do nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.data.arrays import BatchSource
from cellerate.data.windows import share_of
from cellerate.errors import CheckpointError, ConfigError
from cellerate.layers.accelerate import accelerate
from cellerate.messages import argument
from cellerate.models.rewrite import describe, rebuild
from cellerate.training.checkpoint import Position
from cellerate.training.pipeline import DividedTraining, StageReport, divisible, own_layout

# The number of timed exchanges, and the float32 numbers of a long exchange: 16 MB.
_EXCHANGES, _LONG = 15, 4 << 20


class Processes:
    """The processes that train together, as one of them sees them.

    Attributes:
        number: The number of this process, from 0. Process 0 writes all files and messages.
        count: The number of processes.
        layout: The division of the model into stages, if there is one.
    """

    def __init__(self) -> None:
        self.number, self.count = 0, 1
        self._pipeline: DividedTraining | None = None
        if keras.config.backend() != "tensorflow":
            self._bridge: Any = importlib.import_module(
                f"cellerate.bridges.{keras.config.backend()}_processes"
            )
            self.number, self.count = self._bridge.place()
        self.layout = own_layout(self.number, self.count)

    @property
    def first(self) -> bool:
        """True if this process writes the files and messages."""
        return self.number == 0

    @property
    def several(self) -> bool:
        """True if there are other processes."""
        return self.count > 1

    def check(self, model: keras.Model, *, carry_states: bool) -> None:
        """Raises `ConfigError` or `ModelError` for a training that several processes cannot share."""
        if not self.several:
            return
        divided = self.layout.divided
        if divided:
            if keras.distribution.distribution() is not None:
                raise ConfigError(
                    "the arrays of a stage live in its process alone: do not call keras.distribution.set_distribution "
                    "if a model is divided into stages."
                )
            divisible(model, self.layout.stages)
        if keras.config.backend() == "jax" and not divided and keras.distribution.distribution() is None:
            raise ConfigError(
                f"{self.count} processes have met, but Keras has no distribution: before the model is made, call "
                "keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))."
            )
        if carry_states:
            check_whole_batches(self.count)
        describe(model)
        if any(tensor.shape[0] is not None for tensor in model.inputs):
            raise ConfigError(
                f"the model takes batches of {model.inputs[0].shape[0]} only, and each of {self.count} processes has a "
                "part of a batch: build it with keras.Input(shape), without a batch size."
            )

    def share(self, source: BatchSource) -> BatchSource:
        """The rows of each batch that this process computes."""
        return share_of(source, self.layout.copy, self.layout.copies)

    def loss(self, loss: Any) -> Any:
        """The loss of this process's rows, as its part of the loss of the whole batch."""
        return self._bridge.joint_loss(loss) if self.several and not self.layout.divided else loss

    def replicate(self, trainer: keras.Model, source: BatchSource) -> str:
        """Makes a compiled model train together with the other processes, on batches of `source`.

        Returns:
            A message for the user; "" for none.
        """
        if self.layout.divided:
            self._pipeline = DividedTraining(trainer, self.share(source), self.layout, self.array_of_first)
            return self._pipeline.in_words()
        if self.several:
            self._bridge.replicate(trainer)
        return ""

    def stages(self) -> tuple[StageReport, ...]:
        """The stages of the model at the end of training; none if it is not divided. All processes must call it."""
        return () if self._pipeline is None else self._pipeline.reports(self._bridge.gathered)

    def array_of_first(self, array: np.ndarray) -> np.ndarray:
        """The first process's array, in float32, because other processors may round the same sums differently.

        All processes must call it, with arrays of the same shape.
        """
        array = np.ascontiguousarray(array, np.float32)
        if not self.several:
            return array
        first = self._bridge.gathered(array.reshape(-1).view(np.int32))[0]
        return np.asarray(first, np.int32).view(np.float32).reshape(array.shape)

    def settle(self, trainer: keras.Model) -> None:
        """Gives the first process the counts of all, before the model is saved or judged. All must call it."""
        if self._pipeline is not None:
            self._pipeline.settle()
        elif self.several:
            self._bridge.settle(trainer)

    def count_once(self, trainer: keras.Model) -> None:
        """Makes metric sums that every process has read from a checkpoint count only once."""
        if self._pipeline is not None:
            self._pipeline.count_once()
        elif self.several:
            self._bridge.count_once(trainer)

    def most(self, values: Sequence[int]) -> list[int]:
        """The largest of each value over all processes. All processes must call it."""
        if not self.several:
            return list(values)
        return [int(value) for value in self._bridge.gathered(values).max(axis=0)]

    def wait(self) -> None:
        """Waits until all processes have come here, so that none ends while the first still writes."""
        self.most([0])

    def check_same(self, identity: Mapping[str, Any], position: Position | None) -> None:
        """Raises `CheckpointError` in all processes if their runs or their starting positions differ."""
        if not self.several:
            return
        place = (-1, -1) if position is None else (position.epoch, position.batch)
        known = zlib.crc32(json.dumps(identity, default=str, sort_keys=True).encode()) >> 1
        found = self._bridge.gathered([*place, known])
        if (found != found[0]).any():
            raise CheckpointError(
                "the processes differ in their data, their settings or their newest checkpoint. All need the same "
                "files under the same names; a network file system may take a minute to show new ones."
            )

    def logs(self, trainer: keras.Model, logs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The metrics over the rows of all processes, from this process's logs. All processes must call it."""
        if self._pipeline is not None:
            return self._pipeline.metrics()
        return self._bridge.joint_logs(trainer, logs) if self.several else logs

    def of_first(self, value: int) -> int:
        """The value of the first process. All processes must call it."""
        return int(self._bridge.gathered([value])[0, 0]) if self.several else value

    def measure_link(self) -> dict[str, float] | None:
        """The bandwidth and the latency between the processes, in bytes per second and seconds; None for one."""
        if not self.several:
            return None
        short, long = (self._exchange_s(values) for values in (1, _LONG))
        rounds = 2 * math.ceil(math.log2(self.count))
        travelling = 2 * (self.count - 1) / self.count * 4 * _LONG
        return {"latency_s": short / rounds, "bytes_per_s": travelling / max(long - short, 1e-9)}

    def _exchange_s(self, values: int) -> float:
        """The median seconds in which the processes add up arrays of `values` float32 numbers."""
        array = np.zeros(values, np.float32)
        self._bridge.add_up(array)
        found = []
        for _ in range(_EXCHANGES):
            began = time.perf_counter()
            self._bridge.add_up(array)
            found.append(time.perf_counter() - began)
        return float(np.median(found))

    def apart(self) -> contextlib.AbstractContextManager[None]:
        """A block in which this process works on its own: reads or saves the model, or judges it."""
        return self._bridge.apart() if self.several else contextlib.nullcontext()

    def own(self, model: keras.Model, implementation: str) -> keras.Model:
        """A model that this process can use without the others: on JAX a copy, whose arrays are its own."""
        if not self.several or self.layout.divided or keras.config.backend() != "jax":
            return model
        values = model.get_weights()
        with self.apart():
            return accelerate(rebuild(model, describe(model), values), implementation)


def apart() -> contextlib.AbstractContextManager[None]:
    """A block in which this process computes without the others that it trains with."""
    return Processes().apart()


def check_whole_batches(count: int) -> None:
    """Raises `ConfigError` for states that carry over, if `count` processes share the rows of a batch."""
    if count > 1:
        raise ConfigError(
            f"states that carry over need all rows of a batch in one process, not in {count}: train without "
            f"{argument('carry_states')}, or in one process."
        )
