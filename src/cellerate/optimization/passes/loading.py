"""The classes of the passes, and which of them a run needs."""

import pkgutil

from cellerate.optimization.passes import registry
from cellerate.optimization.passes.base import OptimizerPass
from cellerate.optimization.settings import OptimizeSettings


def load_passes() -> dict[str, type[OptimizerPass]]:
    """Gives every pass by name, in order."""
    return {name: pkgutil.resolve_name(place) for name, place in registry.PASSES.items()}


def chosen_passes(settings: OptimizeSettings) -> dict[str, type[OptimizerPass]]:
    """Gives the passes of a run by name, in order.

    Without `only` these are the passes the objective needs; for faster training, none that changes the model.
    """
    every = load_passes()
    if settings.only:
        return {name: kind for name, kind in every.items() if name in settings.only}
    training = settings.objective == "training"
    return {
        name: kind
        for name, kind in every.items()
        if name not in settings.skip and not (training and kind.changes_model)
    }
