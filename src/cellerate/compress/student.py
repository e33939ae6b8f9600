"""The student for `distill` to train: the layers of a model with fewer units and new weights.

It doesn't matter which units are removed, as all weights are drawn anew.
"""

from __future__ import annotations

import keras
import numpy as np

from cellerate.compress.prune import without
from cellerate.errors import ModelError
from cellerate.keras_graph.ties import units_of
from cellerate.models.rewrite import reinitialized
from cellerate.settings import check_number


def smaller(model: keras.Model, keep: float, *, multiple_of: int = 8, seed: int = 0) -> keras.Model:
    """Gives a copy of a model that has a share of the units in its LSTM layers, and new weights.

    Args:
        model: A built Functional or Sequential model. It is not changed.
        keep: The share of units, above 0 and below 1.
        multiple_of: The units of a layer are rounded to a multiple of this, at least one multiple.
        seed: The seed of the new weights, for initializers of the layers that have none of their own.

    Returns:
        The model, not compiled; its weights are drawn by the initializers of its layers.

    Raises:
        ConfigError: `keep` is out of range.
        ModelError: The model cannot be rebuilt, or no layer of it can have fewer units.

    Example:
        >>> student, record = cellerate.distill(model, smaller(model, 0.5), data, loss=loss)
    """
    check_number("keep", keep, above=0, below=1)
    units = units_of(model)
    removed: list[int] = []
    for members in units.groups().values():
        left = min(len(members), multiple_of * max(1, round(keep * len(members) / multiple_of)))
        removed += members[left:].tolist()
    if not removed:
        why = "; ".join(f"{path!r}: {reason}" for path, reason in units.kept_whole.items())
        raise ModelError(
            f"model {model.name!r} has no LSTM layer that can have fewer units"
            + (f" ({why})." if why else ".")
        )
    return reinitialized(without(model, units, np.array(removed)), seed=seed)
