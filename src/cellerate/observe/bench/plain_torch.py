"""Training steps of torch.nn.LSTM in the plain loop that its users write."""

from __future__ import annotations

from pathlib import Path

from cellerate.bridges.torch_bench import training_step
from cellerate.observe.bench.jobs import Job, timed
from cellerate.observe.bench.model import (
    CHECKED_STEPS,
    EPSILON,
    LEARNING_RATE,
    Batches,
    Sizes,
    error_of_losses,
    read_truth,
    weights_of,
)


def training_jobs(folder: Path, sizes: Sizes) -> list[Job]:
    """The job of a training step, eager, with fused Adam."""
    truth = read_truth(folder)
    batches = Batches(truth["text"], sizes)
    step = training_step(weights_of(truth), LEARNING_RATE, EPSILON)

    def error(_: str) -> float:
        return error_of_losses([step(*batches.next()) for _ in range(CHECKED_STEPS)], truth)

    run = timed(lambda: step(*batches.next()))
    return [Job("training", "a step", "float32", {"as it comes": run}, error, sizes.batch * sizes.steps)]
