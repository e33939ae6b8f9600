"""In how many processes a training runs, and what starts them. Nothing heavy is imported here: the options need it."""

from __future__ import annotations

import dataclasses

from cellerate.errors import ConfigError
from cellerate.machine.environment import CHUNKS_VARIABLE, STAGES_VARIABLE
from cellerate.messages import argument
from cellerate.settings import check_number


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """In how many processes a training runs.

    Attributes:
        processes: Train in this many processes, each on a part of every batch: the curve stays that of one.
        stages: Divide the layers into this many stages, each in a process of its own, or in as many as `processes`:
            a stage works on one part of the time axis while the stage before works on the next. The curve stays that
            of one process.
        chunks: With `stages`: into how many parts the time axis is divided; chosen by its length if not given.
        probe: With several processes: first time a few steps, and refuse if they are no faster than one.
        ray: Let a Ray cluster run the processes and start them again after a failure: "local" for one on this machine,
            "auto" for the one that this machine is part of, or host:port.
        min_processes: With `ray`: begin, and go on after a failure, with this many if there is no room for more.
    """

    processes: int = 1
    stages: int = 1
    chunks: int | None = None
    probe: bool = True
    ray: str | None = None
    min_processes: int | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used, or two fields contradict each other.
        """
        check_number("processes", self.processes, at_least=1, whole=True)
        check_number("stages", self.stages, at_least=1, whole=True)
        check_number("chunks", self.chunks, at_least=1, whole=True, optional=True)
        if self.chunks is not None and self.stages == 1:
            raise ConfigError(
                f"{argument('chunks')} divides time for stages: add {argument('stages', 2)}, or leave it out."
            )
        if self.min_processes is not None and self.stages > 1:
            raise ConfigError(
                f"{argument('min_processes')} lets processes be missing, and a model needs all of its stages: leave it "
                f"out, or train without {argument('stages')}."
            )
        check_number("min_processes", self.min_processes, at_least=1, whole=True, optional=True)
        if self.min_processes is not None and self.ray is None:
            raise ConfigError(
                f"{argument('min_processes')} is for a Ray cluster: name one ({argument('ray')}), or leave it out."
            )
        if self.min_processes is not None and self.min_processes > self.processes:
            raise ConfigError(
                f"{argument('min_processes')} is {self.min_processes}, but {argument('processes')} only "
                f"{self.processes}: expected at most that."
            )

    @property
    def count(self) -> int:
        """The number of processes in all."""
        return self.processes * self.stages

    def variables(self) -> dict[str, str]:
        """The variables that tell the processes how the model is divided."""
        if self.stages == 1:
            return {}
        chunks = {} if self.chunks is None else {CHUNKS_VARIABLE: str(self.chunks)}
        return {STAGES_VARIABLE: str(self.stages), **chunks}
