"""Several processes of torch that train one model: `DistributedDataParallel` within a Keras model.

Keras has no distribution on torch. Here its `fit` stays as it is: the model's forward pass goes through
`DistributedDataParallel`, which averages the gradients while they are computed, and metrics are added up over all
processes when they are read.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import keras
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# How long a process waits for another: longer than the first one needs to write a large model.
_PATIENCE = datetime.timedelta(minutes=30)
# A thread of gloo lets go of the tensors of the last exchange once it is over, for which it needs Python. Where Python
# ends first, torch 2.13 aborts the process; waiting gives it the time.
_LAST_S = 0.25


def join(address: str, count: int, number: int, *, divided: bool = False) -> None:
    """Meets the other processes.

    Args:
        address: Host and port of process 0.
        count: How many processes there are.
        number: Which one this is.
        divided: Whether each has a stage of the model rather than rows of each batch.

    Raises:
        RuntimeError: They do not all come.
    """
    if dist.is_initialized():
        return
    if torch.cuda.is_available():
        # torchrun shows every process all GPUs; the other launchers show each its own.
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group(
        # NCCL carries arrays of a GPU, gloo arrays of a CPU; the metrics may be on either.
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        init_method=f"tcp://{address}",
        world_size=count,
        rank=number,
        timeout=_PATIENCE,
    )
    atexit.register(time.sleep, _LAST_S)


def place() -> tuple[int, int]:
    """The rank of this process, and the number of those that train together."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gathered(values: Sequence[int]) -> np.ndarray:
    """The integers of each process, int64, (processes, values). All processes must call it."""
    mine = torch.tensor(values, dtype=torch.int64)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return torch.stack(found).numpy()


def add_up(array: np.ndarray) -> None:
    """Adds up float32 arrays of all processes, to time it."""
    tensor = torch.from_numpy(array)
    dist.all_reduce(tensor.cuda() if torch.cuda.is_available() else tensor)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def joint_loss(loss: Any) -> Any:
    """The loss whose mean over the processes is the loss of the whole batch."""
    return JointLoss(loss) if isinstance(loss, keras.losses.Loss) else loss


def joint_logs(trainer: keras.Model, logs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metrics over the rows of all processes; `logs` are those of this one."""
    found: Mapping[str, Any] = trainer.get_metrics_result()
    return found


def replicate(trainer: keras.Model) -> None:
    """Makes a compiled model train with the other processes' copies of it, from the weights of process 0.

    Each process draws its own dropout, and all see the same metrics.
    """
    if dist.get_rank():
        # Process 0 stays as it is: its state is the one that checkpoints keep.
        for generator in _seed_generators(trainer):
            state = keras.ops.convert_to_numpy(generator.state.value).astype(np.int64)
            state[0] = (state[0] + 0x9E3779B1 * dist.get_rank()) % 2**31
            generator.state.assign(state)
    Replica(trainer)


def settle(trainer: keras.Model) -> None:
    """Makes process 0 hold what all have counted: sums of metrics, and the statistics of batch normalisation."""
    for variable in trainer.metrics_variables:
        dist.all_reduce(variable.value.data)
    count_once(trainer)
    for variable in trainer.non_trainable_variables:
        if "float" in variable.dtype:
            dist.all_reduce(variable.value.data)
            variable.value.data /= dist.get_world_size()


def count_once(trainer: keras.Model) -> None:
    """Leaves sums of metrics that all processes hold to process 0: they are added up when they are read."""
    if dist.get_rank():
        for variable in trainer.metrics_variables:
            variable.value.data.zero_()


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Does nothing: on torch, one process may always compute without the others."""
    yield


class JointLoss(keras.losses.Loss):
    """Another loss, weighted by what it divides by in this process and in all.

    Processes have equally many rows, but not equally many that count: lines have lengths, and rows may be masked.
    """

    def __init__(self, loss: keras.losses.Loss) -> None:
        super().__init__(name=loss.name)
        self._loss = loss

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """The loss of the rows of this process, times their share of what counts."""
        value = self._loss(y_true, y_pred, sample_weight)
        if self._loss.reduction == "sum":
            return value * dist.get_world_size()
        counted = sample_weight if self._loss.reduction == "mean_with_sample_weight" else None
        mask = getattr(y_pred, "_keras_mask", None)
        if mask is not None:
            mask = mask.to(torch.float32)
            counted = (
                mask
                if counted is None
                else counted * mask.reshape(*mask.shape, *[1] * (counted.ndim - mask.ndim))
            )
        if counted is None:
            return value
        here = counted.sum()
        everywhere = here.clone()
        dist.all_reduce(everywhere)
        # A batch in which nothing counts has the loss 0, as in one process.
        return value * (
            dist.get_world_size() * here / everywhere.clamp(min=torch.finfo(everywhere.dtype).tiny)
        )


class _Network(torch.nn.Module):
    """A model's forward pass with its trainable weights, which is all that is averaged."""

    def __init__(self, forward: Callable[..., Any], weights: Sequence[Any]) -> None:
        super().__init__()
        for number, weight in enumerate(weights):
            self.register_parameter(f"weight_{number}", weight.value)
        self._forward = forward

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self._forward(*arguments, **options)


class Replica:
    """Takes over what must differ in a model that several processes train: its forward pass and its metrics."""

    def __init__(self, trainer: keras.Model) -> None:
        self._trainer = trainer
        self._alone = trainer.call
        self._together = DistributedDataParallel(_Network(trainer.call, trainer.trainable_variables))
        self._local_metrics = trainer.get_metrics_result
        self._step: Literal["train", "test", None] = None
        # On the instance, not in a class of its own: the model's variables keep their order, so checkpoints of one
        # process and of several are the same.
        trainer.call = self._call
        trainer.train_step = self._within("train", trainer.train_step)
        trainer.test_step = self._within("test", trainer.test_step)
        trainer.get_metrics_result = self._metrics

    def _call(self, *arguments: Any, **options: Any) -> Any:
        network = self._together if self._step == "train" else self._alone
        return network(*arguments, **options)

    def _within(self, name: Literal["train", "test"], step: Callable[..., Any]) -> Callable[..., Any]:
        def known(data: Any) -> Any:
            self._step = name
            try:
                return step(data)
            finally:
                self._step = None

        return known

    def _metrics(self) -> dict[str, Any]:
        """The metrics over the rows of all processes; within a step, which does not wait for them, of this one."""
        if self._step is not None:
            return self._local_metrics()
        variables = self._trainer.metrics_variables
        mine = [variable.value.detach().clone() for variable in variables]
        for variable in variables:
            dist.all_reduce(variable.value.data)
        found = {name: float(value) for name, value in self._local_metrics().items()}
        for variable, value in zip(variables, mine, strict=True):
            variable.assign(value)
        return found


def _seed_generators(trainer: keras.Model) -> list[keras.random.SeedGenerator]:
    return [generator for layer in trainer._flatten_layers() for generator in layer._seed_generators]
