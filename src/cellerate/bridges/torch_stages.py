"""A pipeline stage on torch: its part of the model, forward and backward, and its messages to the other stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


class StagePart:
    """A function of a stage that runs forward and later, in another order, backward.

    Args:
        run: Called with (fixed, x, states, training), returns (y, states). `fixed` has no gradient; `x` may be None.
        trainable: The Keras variables that get a gradient.
        others: The variables that the function changes, such as seeds and metrics.
    """

    def __init__(self, run: Callable[..., Any], trainable: Sequence[Any], others: Sequence[Any]) -> None:
        self._run, self._trainable = run, list(trainable)

    def forward(self, fixed: Any, x: Any, states: Sequence[Any]) -> tuple[Any, list[Any], Any]:
        """Returns y, the states, and the tape for `backward`."""
        inputs = [None if one is None else one.detach().requires_grad_() for one in (x, *states)]
        with torch.enable_grad():
            y, after = self._run(fixed, inputs[0], inputs[1:], True)
        return y.detach(), [one.detach() for one in after], (inputs, [y, *after])

    def infer(self, fixed: Any, x: Any, states: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Computes y and the states without dropout."""
        with torch.no_grad():
            return self._run(fixed, x, list(states), False)

    def backward(self, tape: Any, dy: Any, dstates: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Returns the gradients of x and of the states, and sums the weights' gradients; None stands for zeros."""
        inputs, outputs = tape
        pairs = [
            (one, gradient)
            for one, gradient in zip(outputs, [dy, *dstates], strict=True)
            if gradient is not None and one.requires_grad
        ]
        if pairs:
            torch.autograd.backward(*map(list, zip(*pairs, strict=True)))
        dx, *dbefore = [None if one is None else one.grad for one in inputs]
        return dx, dbefore

    def take_gradients(self) -> list[Any]:
        """Returns the sums of the weights' gradients, and starts new sums."""
        found = []
        for variable in self._trainable:
            gradient = variable.value.grad
            found.append(torch.zeros_like(variable.value) if gradient is None else gradient)
            variable.value.grad = None
        return found


class StageLink:
    """The connection to the other processes of a pipeline.

    Args:
        stages: The number of stages of the model; processes k·stages to (k+1)·stages - 1 hold one copy of it.
    """

    def __init__(self, stages: int) -> None:
        self._number, count = dist.get_rank(), dist.get_world_size()
        self._sending: list[tuple[Any, Any]] = []
        # All processes must make all groups, in the same order.
        groups = [dist.new_group(list(range(stage, count, stages))) for stage in range(stages)]
        self._alike, self._copies = groups[self._number % stages], count // stages

    def send(self, value: Any, to: int) -> None:
        """Sends a tensor to a process, without waiting for it."""
        travelling = value.contiguous()
        if travelling.dtype == torch.bfloat16:
            travelling = travelling.view(torch.int16).view(torch.uint8)
        self._sending.append((dist.isend(travelling, to), travelling))

    def receive(self, shape: Sequence[int], dtype: str, source: int) -> Any:
        """Waits for a tensor of a process."""
        kind = getattr(torch, dtype)
        found = torch.empty(tuple(shape), dtype=kind, device=_device())
        arriving = found.view(torch.int16).view(torch.uint8) if kind == torch.bfloat16 else found
        dist.recv(arriving, source)
        return found

    def finish(self) -> None:
        """Waits until all messages are sent."""
        for work, _ in self._sending:
            work.wait()
        self._sending.clear()

    def mean_of_copies(self, gradients: Sequence[Any]) -> list[Any]:
        """The means of gradients over the processes with the same stage."""
        if self._copies == 1:
            return list(gradients)
        for one in gradients:
            dist.all_reduce(one, group=self._alike)
            one /= self._copies
        return list(gradients)

    def sums(self, values: Sequence[float], *, of_copies: bool = False) -> np.ndarray:
        """The sums of numbers, float64, over all processes or over the processes with the same stage."""
        found = torch.tensor(np.asarray(values, np.float64))
        dist.all_reduce(found, group=self._alike if of_copies else None)
        return found.numpy()


def squares(gradients: Sequence[Any]) -> float:
    """The sum of the squares of all gradients."""
    return float(sum((one.float().square().sum() for one in gradients), torch.zeros(())))


def scaled(gradients: Sequence[Any], factor: float) -> list[Any]:
    """The gradients times a number."""
    return [one * factor for one in gradients]


class StageUpdate:
    """The update of a stage's weights by the optimizer of the whole model.

    Args:
        optimizer: The optimizer, built on all trainable variables.
        trainable: The trainable variables of the stage.
    """

    def __init__(self, optimizer: Any, trainable: Sequence[Any]) -> None:
        self._optimizer, self._trainable = optimizer, list(trainable)

    def __call__(self, gradients: Sequence[Any]) -> None:
        """Takes a step."""
        with torch.no_grad():
            self._optimizer.apply(list(gradients), self._trainable)


def settled(values: Any) -> None:
    """Waits until tensors are computed."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def begin_steps(trainer: Any, step: Callable[[Any], dict[str, float]], training: bool) -> Callable[..., Any]:
    """The function that Keras's `fit` or `evaluate` calls for each batch; it calls `step` with the batch."""

    def function(data: list[Any]) -> dict[str, float]:
        return step(data[0])

    return function


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
