"""The classes of the passes, and which of them a run needs."""

import pkgutil

from cellerate.optimize.passes import registry
from cellerate.optimize.passes.base import OptimizerPass
from cellerate.optimize.settings import OptimizeSettings


def load_passes() -> dict[str, type[OptimizerPass]]:
    """Every pass by its name, in their order."""
    return {name: pkgutil.resolve_name(place) for name, place in registry.PASSES.items()}


def chosen_passes(settings: OptimizeSettings) -> dict[str, type[OptimizerPass]]:
    """The passes of a run, by name, in their order.

    Without `only` they are those that the objective needs: to train faster, none that changes the model.
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
