"""In how many processes a training runs, and what starts them. Nothing heavy is imported here: the options need it."""

import dataclasses

from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.settings import check_number


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """In how many processes a training runs.

    Attributes:
        processes: Train in this many processes, each on a part of every batch: the curve stays that of one.
        probe: With several processes: first time a few steps, and refuse if they are no faster than one.
        ray: Let a Ray cluster run the processes and start them again after a failure: "local" for one on this machine,
            "auto" for the one that this machine is part of, or host:port.
        min_processes: With `ray`: begin, and go on after a failure, with this many if there is no room for more.
    """

    processes: int = 1
    probe: bool = True
    ray: str | None = None
    min_processes: int | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used, or two fields contradict each other.
        """
        check_number("processes", self.processes, at_least=1, whole=True)
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
