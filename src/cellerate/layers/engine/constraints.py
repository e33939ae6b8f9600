"""The Keras constraints that the engine supports: one row each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import constraints

_Projection = Callable[[np.ndarray], np.ndarray]


def projection_of(constraint: Any) -> _Projection | None:
    """The function that applies a constraint to a weight; None for a constraint that the engine does not have."""
    row = _ROWS.get(type(constraint))
    return None if row is None else row(constraint)


def _max_norm(constraint: Any) -> _Projection:
    return _of_norms(constraint.axis, lambda norms: np.clip(norms, 0, constraint.max_value))


def _min_max_norm(constraint: Any) -> _Projection:
    rate = constraint.rate
    return _of_norms(
        constraint.axis,
        lambda norms: rate * np.clip(norms, constraint.min_value, constraint.max_value) + (1 - rate) * norms,
    )


def _unit_norm(constraint: Any) -> _Projection:
    return _of_norms(constraint.axis, lambda norms: 1.0)


def _non_negative(constraint: Any) -> _Projection:
    return lambda weight: np.maximum(weight, 0)


def _of_norms(axis: Any, target: Callable[[np.ndarray], Any]) -> _Projection:
    """The projection that scales a weight so that its norms along one or several axes become `target(norms)`."""
    axes = tuple(axis) if isinstance(axis, list | tuple) else axis

    def project(weight: np.ndarray) -> np.ndarray:
        norms = np.sqrt(np.sum(np.square(weight), axis=axes, keepdims=True))
        projected: np.ndarray = weight * (target(norms) / (np.float32(keras.config.epsilon()) + norms))
        return projected

    return project


_ROWS: dict[type, Callable[[Any], _Projection]] = {
    constraints.MaxNorm: _max_norm,
    constraints.MinMaxNorm: _min_max_norm,
    constraints.UnitNorm: _unit_norm,
    constraints.NonNeg: _non_negative,
}
