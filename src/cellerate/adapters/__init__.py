"""Cellerate's models in other libraries: forecasters for sktime and Darts, packed models as a flavour of MLflow."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cellerate.machine.environment import require

if TYPE_CHECKING:
    from cellerate.adapters.darts import DartsLSTM as DartsLSTM
    from cellerate.adapters.sktime import SktimeLSTM as SktimeLSTM

# The package that each needs.
_ADAPTERS = {"DartsLSTM": "darts", "SktimeLSTM": "sktime"}

__all__ = ["DartsLSTM", "SktimeLSTM"]


def __getattr__(name: str) -> Any:
    if name not in _ADAPTERS:
        raise AttributeError(f"module 'cellerate.adapters' has no attribute {name!r}")
    package = _ADAPTERS[name]
    require(package, package, f"cellerate.adapters.{name}")
    return getattr(import_module(f"cellerate.adapters.{package}"), name)
