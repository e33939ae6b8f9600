"""The settings of a sweep itself: one frozen record, checked when it is made.

The command line makes its options from this module, so nothing heavy is imported here.
"""

from __future__ import annotations

import dataclasses

from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.settings import check_number

LEAST_S = 1.0
"""The fewest seconds that a time budget may leave each point to train for."""
CONTROL_PATIENCE_S = 3600.0
"""The seconds that the control may take to get ready; reading large data takes long."""
DEFAULT_S = 6.0
_SEARCH_S = 20.0
_SEARCH_BUDGET_S = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """The limits of a sweep, and how it chooses.

    Attributes:
        seconds: Seconds that each point trains for, compiling left out. Default: 6; 20 with `search`.
        steps: Steps that each point trains for, in place of seconds.
        rounds: In how many turns each point trains; all points take a turn in each round, in changing order.
        time_budget: About how many seconds the whole sweep may take; points then train for less, and points that do
            not fit are left out and listed. Default: no limit; 600 with `search`, unless `trials` are given.
        beside_stock: Whether each point is also trained by stock Keras. Default: only if no setting but the batch size
            and the device is swept.
        search: Whether to look for the best settings in place of training all of them; needs Optuna.
        trials: The most points that a search tries; without it, as many as the time allows.
        study: Where a search keeps what it has tried, as SQLAlchemy writes it, to share it between machines;
            without it, an SQLite file in the folder, which processes of this machine share.
    """

    seconds: float | None = None
    steps: int | None = None
    rounds: int = 4
    time_budget: float | None = None
    beside_stock: bool | None = None
    search: bool = False
    trials: int | None = None
    study: str | None = None

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used, or two of them contradict each other.
        """
        for name in ("seconds", "time_budget"):
            check_number(name, getattr(self, name), above=0, optional=True)
        for name in ("steps", "trials"):
            check_number(name, getattr(self, name), at_least=1, whole=True, optional=True)
        check_number("rounds", self.rounds, at_least=1, whole=True)
        if self.seconds is not None and self.steps is not None:
            raise ConfigError(
                f"{argument('seconds')} and {argument('steps')} cannot be used together: choose one."
            )
        for name in ("trials", "study"):
            if getattr(self, name) is not None and not self.search:
                raise ConfigError(f"{argument(name)} is for a search: add {argument('search', True)}.")
        if self.search and self.steps is not None:
            raise ConfigError(
                f"a search compares points after equal time: give {argument('seconds')}, not {argument('steps')}."
            )

    @property
    def point_s(self) -> float:
        """The seconds that a point trains for if `steps` is unset."""
        return self.seconds if self.seconds is not None else _SEARCH_S if self.search else DEFAULT_S

    @property
    def budget_s(self) -> float | None:
        """The seconds that the whole sweep may take; None without a limit."""
        if self.time_budget is None and self.search and self.trials is None:
            return _SEARCH_BUDGET_S
        return self.time_budget
