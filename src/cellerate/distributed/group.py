"""The group of processes that this one belongs to, as its launcher says in the environment.

torchrun, Slurm scripts, Ray and `cellerate train --processes` all say it in the four variables that torch made usual:
`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping

from cellerate.errors import BackendError, ConfigError
from cellerate.machine.environment import STAGES_VARIABLE
from cellerate.messages import argument

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclasses.dataclass(frozen=True)
class Membership:
    """Where a process stands in its group.

    Attributes:
        number: Which one it is, from 0.
        count: How many there are.
        address: Host and port at which all meet; it is process 0 that listens there.
    """

    number: int
    count: int
    address: str

    def environment(self) -> dict[str, str]:
        """The variables that tell a process its place."""
        host, _, port = self.address.rpartition(":")
        return dict(zip(VARIABLES, (str(self.number), str(self.count), host, port), strict=True))


def own_place(environment: Mapping[str, str] = os.environ) -> Membership | None:
    """The place of this process, or None if it belongs to no group or is the only one of it.

    Raises:
        ConfigError: The environment names a group, but not all of it.
    """
    if environment.get("WORLD_SIZE", "1") == "1":
        return None
    missing = [name for name in VARIABLES if name not in environment]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {environment['WORLD_SIZE']}, but {', '.join(missing)} is not set: a launcher sets "
            f"{', '.join(VARIABLES)}. To train in one process, unset WORLD_SIZE."
        )
    number, count = own_share(environment)
    port = _whole("MASTER_PORT", environment["MASTER_PORT"])
    return Membership(number, count, f"{environment['MASTER_ADDR']}:{port}")


def own_share(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The rank of this process and their number, for work without meetings: `RANK` and `WORLD_SIZE` alone.

    Raises:
        ConfigError: One of the two is missing or wrong.
    """
    if "WORLD_SIZE" not in environment and "RANK" not in environment:
        return 0, 1
    if missing := [name for name in ("RANK", "WORLD_SIZE") if name not in environment]:
        raise ConfigError(
            f"{missing[0]} is not set: processes that share work need both RANK and WORLD_SIZE."
        )
    number, count = (_whole(name, environment[name]) for name in ("RANK", "WORLD_SIZE"))
    if not 0 <= number < count:
        raise ConfigError(
            f"RANK is {number}, but WORLD_SIZE is {count}: expected a number from 0 to {count - 1}."
        )
    return number, count


def check_backend(backend: str) -> None:
    """Raises `BackendError` for a backend whose processes cannot train together."""
    if backend == "tensorflow":
        raise BackendError(
            "Keras cannot train one model in several processes on TensorFlow. Two backends can: "
            f"{argument('backend', 'jax', 'torch')}; the model file is the same."
        )


def join(place: Membership, backend: str) -> None:
    """Meets the other processes of a group; waits until all have come. Call it before anything is computed.

    Raises:
        BackendError: The backend cannot, or the others do not come.
    """
    check_backend(backend)
    try:
        importlib.import_module(f"cellerate.bridges.{backend}_processes").join(
            place.address, place.count, place.number, divided=bool(os.environ.get(STAGES_VARIABLE))
        )
    except (RuntimeError, ValueError, OSError) as error:
        reason = next(iter(str(error).splitlines()), "").rstrip(".")
        raise BackendError(
            f"process {place.number} could not meet the other {place.count - 1} at {place.address}: {reason}. They "
            "must all be started, and reach that address."
        ) from error


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"{name} is {value!r}; expected a whole number.") from None
