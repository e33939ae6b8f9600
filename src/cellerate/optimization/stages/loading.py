"""The classes of the stages, and which of them a run needs."""

from __future__ import annotations

import pkgutil

from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.stages import registry
from cellerate.optimization.stages.base import Stage


def load_stages() -> dict[str, type[Stage]]:
    """Return every stage by name, in order."""
    return {name: pkgutil.resolve_name(place) for name, place in registry.STAGES.items()}


def chosen_stages(settings: OptimizeSettings) -> dict[str, type[Stage]]:
    """Return the stages of a run by name, in order.

    Without `only` these are the stages the objective needs; for faster training, none that changes the model.
    """
    every = load_stages()
    if settings.only:
        return {name: kind for name, kind in every.items() if name in settings.only}
    training = settings.objective == "training"
    return {
        name: kind
        for name, kind in every.items()
        if name not in settings.skip and not (training and kind.changes_model)
    }
