"""The division of a model into stages, of processes into copies of them, and of time into chunks."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence

from cellerate.errors import ConfigError
from cellerate.machine.environment import CHUNKS_VARIABLE, STAGES_VARIABLE
from cellerate.messages import argument

# Each chunk costs some calls in every layer, so a chunk has at least this many time steps, if there are enough.
_LEAST_STEPS = 8
# With this many chunks for each stage, the bubble is at most a fifth of the time.
_CHUNKS_PER_STAGE = 4


@dataclasses.dataclass(frozen=True)
class StageLayout:
    """The place of a process among the stages and their copies.

    Processes k·stages to (k+1)·stages - 1 have the stages of copy k, in order; the copies share the rows of a batch.

    Attributes:
        number: The rank of the process.
        count: The number of processes.
        stages: The number of stages of the model.
        chunks: The number of chunks of the time axis; None for `default_chunks`.
    """

    number: int = 0
    count: int = 1
    stages: int = 1
    chunks: int | None = None

    @property
    def stage(self) -> int:
        """The number of the stage, from 0."""
        return self.number % self.stages

    @property
    def copy(self) -> int:
        """The number of the copy, from 0."""
        return self.number // self.stages

    @property
    def copies(self) -> int:
        """The number of copies, each with its rows of every batch."""
        return self.count // self.stages

    @property
    def divided(self) -> bool:
        """True if the model is divided."""
        return self.stages > 1

    @property
    def begins(self) -> bool:
        """True if the process has the first stage."""
        return self.stage == 0

    @property
    def ends(self) -> bool:
        """True if the process has the last stage."""
        return self.stage == self.stages - 1


def own_layout(number: int, count: int, environment: Mapping[str, str] = os.environ) -> StageLayout:
    """The layout of a group of processes, read from the environment.

    Args:
        number: The rank of this process.
        count: The number of processes.
        environment: Holds the numbers of stages and chunks; without them there is one stage.

    Raises:
        ConfigError: The number of processes is not a multiple of the stages.
    """
    stages, chunks = (_whole(name, environment) for name in (STAGES_VARIABLE, CHUNKS_VARIABLE))
    if count == 1 or stages is None:
        return StageLayout(number, count)
    if count % stages:
        raise ConfigError(
            f"{count} processes cannot hold {stages} stages equally often: start a multiple of {stages} processes."
        )
    return StageLayout(number, count, stages, chunks)


def _whole(name: str, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise ConfigError(f"{name} is {text!r}; expected a whole number of at least 1.")
    return found


def balanced(costs: Sequence[float], stages: int) -> list[range]:
    """Divides layers into stages so that the most expensive stage is as cheap as possible.

    Args:
        costs: The cost of each layer, in order.
        stages: The number of stages; each gets at least one layer.

    Returns:
        The numbers of the layers of each stage.

    Raises:
        ConfigError: There are fewer layers than stages.
    """
    if stages > len(costs):
        raise ConfigError(
            f"{argument('stages')} is {stages}, but the model has {len(costs)} layers to divide: expected at most that."
        )
    sums = [0.0, *itertools.accumulate(costs)]
    # worst[n]: the cost of the most expensive stage of the first n layers, and the first layer of each stage.
    worst: list[tuple[float, list[int]]] = [(total, [0]) for total in sums]
    for stage in range(1, stages):
        worst = [
            min(
                (max(worst[cut][0], sums[end] - sums[cut]), [*worst[cut][1], cut])
                for cut in range(stage, max(end, stage + 1))
            )
            if end > stage
            else (float("inf"), [0] * stage)
            for end in range(len(sums))
        ]
    begins = [*worst[-1][1], len(costs)]
    return [range(*pair) for pair in itertools.pairwise(begins)]


def default_chunks(steps: int, stages: int) -> int:
    """The number of chunks of a time axis: enough for a small bubble, few enough to be worth their calls."""
    return max(1, min(_CHUNKS_PER_STAGE * stages, max(stages, steps // _LEAST_STEPS), steps))


def chunk_bounds(steps: int, chunks: int) -> list[tuple[int, int]]:
    """The first step of each chunk and the step after its last; chunks differ by at most one step."""
    chunks = min(chunks, steps)
    ends = [steps * number // chunks for number in range(chunks + 1)]
    return list(itertools.pairwise(ends))


def bubble_share(stages: int, chunks: int) -> float:
    """The share of a step that each of several equal stages waits for the others, forward and backward.

    Source: Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019.
    """
    return (stages - 1) / (chunks + stages - 1)
