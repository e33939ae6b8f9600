"""One operation of a program, and the words that its options may hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from cellerate import activations

MASKED_OUTPUTS = ("previous_output", "previous_state", "zero")
"""The outputs at steps where the mask is False."""

PRECISIONS = ("float32", "bfloat16", "int8", "int4")
"""The types of a packed model's matrices and products."""

NORMALIZERS = ("softmax", "log_softmax")
"""Further activations of a dense or activation node, beside those of the kernels; they work over the last axis."""

Option = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | None
"""The value of an option: a plain JSON value, with tuples for lists."""


@dataclasses.dataclass(frozen=True)
class Node:
    """One operation of a program.

    Attributes:
        op: A key of `OPERATIONS`.
        name: Where it came from, for messages: the path of a Keras layer.
        inputs: The name of an input → the number of the earlier node it reads.
        arrays: Its weights, float32, contiguous. Nodes may share one array.
        options: Its options, each an `Option` of the type that `Program` has checked.
    """

    op: str
    name: str
    inputs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def named_activation(activation: Option) -> tuple[str, Mapping[str, float]]:
    """The name of an activation of a node, and its parameters.

    Raises:
        ConfigError: It is none.
    """
    name = str(activation)
    return (name, {}) if name in NORMALIZERS else activations.read(name)
