"""The study of a search: Optuna's, in a file or a database that several processes share.

Only this module imports Optuna. Every process asks for a trial, trains it, and reports the result; the process that
began the search ends it, and the others help.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cellerate.errors import ConfigError
from cellerate.format import one_line
from cellerate.machine.environment import require
from cellerate.messages import argument
from cellerate.optimization.sweep.record import PointRecord
from cellerate.optimization.sweep.settings import CONTROL_PATIENCE_S
from cellerate.optimization.sweep.space import Dimension

FILE = "study.db"
_STARTUP_TRIALS = 6  # drawn at random before Optuna suggests or stops any
_PATIENCE_S = 60.0  # for the lock of an SQLite file, and for the study of another process
_POLL_S = 0.2
_REPEATS = "repeats"  # the number of the trial whose result another one took
_MADE = "made"  # when, in UNIX time


class Study:
    """A study that all processes of one search share.

    Args:
        folder: The folder of the sweep.
        url: The database of the study; None for a file in the folder.
        identity: The data, settings and space that all its processes share.
        seed: The seed of the draws; None for another one in each process.
        joins: True if another process has begun the search, so that a study of this identity must exist.

    Raises:
        BackendError: Optuna is not installed.
        ConfigError: The search of another process has other settings.
    """

    def __init__(
        self,
        folder: Path,
        url: str | None,
        identity: Mapping[str, Any],
        seed: int | None,
        *,
        joins: bool = False,
    ) -> None:
        check_optuna()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        name = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=8).hexdigest()
        storage = _storage(optuna, url or f"sqlite:///{(folder / FILE).absolute()}")
        if joins:
            _wait_for(lambda: optuna.get_all_study_names(storage))
            if f"cellerate-{name}" not in optuna.get_all_study_names(storage):
                raise ConfigError(
                    f"another process searches in {folder} with other settings: give the same settings to help it, or "
                    f"another {argument('output')}."
                )
        common: dict[str, Any] = {
            "storage": storage,
            "sampler": optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_TRIALS),
            "pruner": optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS),
            "study_name": f"cellerate-{name}",
        }
        # If several processes start at once, the database lets only one make the study.
        try:
            self._study, self._is_new = optuna.create_study(direction="minimize", **common), True
            self._study.set_user_attr(_MADE, time.time())
        except optuna.exceptions.DuplicatedStudyError:
            self._study, self._is_new = optuna.load_study(**common), False

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that its first process wrote: `ends`, `point_s` and `control`; empty if it has not begun."""
        return {name: value for name, value in self._study.user_attrs.items() if name != _MADE}

    @property
    def has_begun(self) -> bool:
        """True if another process searches: trials may be begun, or its control is in training."""
        if self._is_new or self.facts:
            return self.goes_on
        return time.time() < self._study.user_attrs.get(_MADE, math.inf) + CONTROL_PATIENCE_S

    @property
    def goes_on(self) -> bool:
        """True while trials may begin: the time is not up, and no process has ended the study."""
        facts = self.facts
        return bool(facts) and not facts.get("ended") and time.time() < facts["ends"]

    def wait(self, seconds: float) -> bool:
        """Wait until the process that began the search has trained the control; return False on a timeout."""
        return _wait_for(lambda: self.facts, seconds)

    def begin(self, ends: float, point_s: float, control: PointRecord) -> None:
        """Write the facts for all processes: the end of starting trials (UNIX time), and the time of each trial."""
        self._study.set_user_attr("ended", False)
        self._study.set_user_attr("control", dataclasses.asdict(control))
        self._study.set_user_attr("point_s", point_s)
        self._study.set_user_attr("ends", ends)

    def end(self) -> None:
        """Stop all processes from starting trials."""
        self._study.set_user_attr("ended", True)

    def ask(self, space: Sequence[Dimension]) -> tuple[Any, dict[str, Any]]:
        """Return a trial and the values to try."""
        trial = self._study.ask()
        return trial, {one.axis.name: one.draw(trial) for one in space}

    def tell(self, trial: Any, record: PointRecord, loss: float | None) -> None:
        """End a trial with its record, and its loss if it was trained to the end."""
        states = self._optuna.trial.TrialState
        with contextlib.suppress(Exception):  # a record that the database refuses must not end the search
            trial.set_user_attr("record", dataclasses.asdict(record))
        if record.status == "stopped early":
            self._study.tell(trial, state=states.PRUNED)
        elif loss is None:
            self._study.tell(trial, state=states.FAIL)
        else:
            self._study.tell(trial, loss)

    def repeat(self, trial: Any, values: Mapping[str, Any]) -> bool:
        """End a trial with the result of an earlier one of the same values; False if there is none.

        A failed trial is tried again: it may have been interrupted, or memory was short.
        """
        states = self._optuna.trial.TrialState
        for one in self._study.get_trials(deepcopy=False, states=(states.COMPLETE, states.PRUNED)):
            record = one.user_attrs.get("record")
            if record is not None and record["values"] == values:
                trial.set_user_attr(_REPEATS, one.number)
                complete = one.state == states.COMPLETE
                self._study.tell(trial, one.value if complete else None, state=one.state)
                return True
        return False

    def count(self) -> int:
        """The number of ended and running trials, without those that reused a result."""
        return sum(_REPEATS not in one.user_attrs for one in self._study.get_trials(deepcopy=False))

    def wait_for_others(self, seconds: float) -> None:
        """Wait until no trial is running, or for `seconds`, because trials of killed processes never end."""
        running = (self._optuna.trial.TrialState.RUNNING,)
        _wait_for(lambda: not self._study.get_trials(deepcopy=False, states=running), seconds)

    def records(self) -> list[PointRecord]:
        """The records of the trials that have ended, in their order."""
        kept = [trial.user_attrs.get("record") for trial in self._study.get_trials(deepcopy=False)]
        return [PointRecord(**one) for one in kept if one is not None]


def check_optuna() -> None:
    """Raises `BackendError` if Optuna is not installed."""
    require("optuna", "sweep", "a search")


def _wait_for(found: Callable[[], object], seconds: float = _PATIENCE_S) -> bool:
    """Wait until `found` returns something true; return False on a timeout."""
    ends = time.monotonic() + seconds
    while not found():
        if time.monotonic() > ends:
            return False
        time.sleep(_POLL_S)
    return True


def _storage(optuna: Any, url: str) -> Any:
    """The storage of a URL; processes that write into one SQLite file wait for each other."""
    from sqlalchemy.exc import SQLAlchemyError

    options = {"connect_args": {"timeout": _PATIENCE_S}} if url.startswith("sqlite:") else {}
    with warnings.catch_warnings():
        # Two processes may make the tables at once.
        warnings.simplefilter("ignore")
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=options)
        except ImportError as error:
            # Optuna's message does not name the package.
            raise ConfigError(
                f"the database that {argument('study')} names needs a package that is not installed "
                f"({error.__cause__ or error}): install it, such as `pip install 'psycopg[binary]'` for "
                "postgresql+psycopg://…"
            ) from error
        except SQLAlchemyError as error:
            reason = one_line(str(getattr(error, "orig", error)))
            raise ConfigError(
                f"the database that {argument('study')} names cannot be used ({reason}): expected one that exists, as "
                "postgresql://USER@HOST/NAME or sqlite:///FILE."
            ) from error
