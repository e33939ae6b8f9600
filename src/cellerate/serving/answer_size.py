"""The size of an answer, known before it is computed, and the outputs of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from cellerate.errors import CellerateError, DataError, ModelError
from cellerate.runtime.packed import PackedModel
from cellerate.serving.answers import RequestError
from cellerate.serving.limits import Limits
from cellerate.serving.sessions import Push, StepSize, steps_in, zeros

# Rows times steps of a prediction, in steps of one row.
_ROWS_OF_STEPS = 10
# The first two are longer than kernels of convolutions, and so far apart that pooling gives different numbers of steps.
# The others are for models that take few lengths.
_TRIED_STEPS = (32, 95, 1024, 3071, *range(1, 129))

Outputs = Mapping[str, tuple[str, list[int]]]
"""The dtype and the shape of each output by its name; -1 for the batch, and for sizes that depend on the steps."""


def tried_outputs(model: PackedModel, path: Path) -> Outputs:
    """Compute one row of zeros, so that a faulty model fails when it is loaded, and describe its outputs.

    Args:
        model: The model.
        path: Its file.

    Returns:
        Its outputs; empty, with nothing computed, if no number of steps fits all inputs.

    Raises:
        ModelError: The model cannot compute the row.
    """
    fitting: list[tuple[dict[str, tuple[int, ...]], dict[str, tuple[tuple[int, ...], str]]]] = []
    for steps in _TRIED_STEPS:
        shapes = {
            name: (1, *(steps if size < 0 else size for size in shape[1:]))
            for name, shape in model.inputs.items()
        }
        try:
            fitting.append((shapes, model.result_sizes(shapes)))
        except DataError:
            continue
        if len(fitting) == 2:
            break
    if not fitting:
        return {}
    shapes, few = fitting[0]
    try:
        model.predict(zeros(model, shapes))
    except CellerateError as error:
        raise ModelError(f"{path} cannot compute a row of zeros: {error} Pack the model again.") from error
    many = fitting[-1][1]
    return {
        name: (
            dtype,
            [
                -1,
                *(
                    one if one == other else -1
                    for one, other in zip(shape[1:], many[name][0][1:], strict=True)
                ),
            ],
        )
        for name, (shape, dtype) in few.items()
    }


def check_prediction(
    model: PackedModel, tensors: Mapping[str, np.ndarray], outputs: Sequence[str] | None, limits: Limits
) -> None:
    """Refuse a prediction that would take too long, or whose answer would be too large.

    Raises:
        ConfigError, DataError: As `PackedModel.predict`.
        RequestError: The prediction exceeds a bound; the message names the bound.
    """
    rows = max((len(array) for array in tensors.values() if array.ndim), default=0)
    steps = max((array.shape[1] for array in tensors.values() if array.ndim > 1), default=1)
    most = limits.steps
    if steps > most or rows * steps > _ROWS_OF_STEPS * most:
        raise RequestError(
            413,
            f"{rows:,} rows of {steps:,} steps are too many: at most {most:,} steps a row, and "
            f"{_ROWS_OF_STEPS * most:,} in all, are read at once.",
        )
    found = model.result_sizes({name: array.shape for name, array in tensors.items()}, outputs)
    check_numbers(sum(math.prod(shape) for shape, _ in found.values()), limits)


def check_pushes(pushes: Sequence[Push], size: StepSize, limits: Limits) -> None:
    """Raises `RequestError` for pushes that are too long, or whose answer would be too large: nothing is read."""
    numbers = 0
    for push in pushes:
        steps = steps_in(push)
        if steps > limits.steps:
            raise RequestError(
                413,
                f"a push has {steps:,} steps, and at most {limits.steps:,} are read at once: push them in parts, which "
                "give the same.",
            )
        numbers += size.last + size.step * steps
    check_numbers(numbers, limits)


def check_numbers(numbers: int, limits: Limits) -> None:
    """Raises `RequestError` if an answer would have too many numbers."""
    if numbers > limits.answer_numbers:
        raise RequestError(
            413,
            f"the answer would have {numbers:,} numbers, and at most {limits.answer_numbers:,} are given at once: ask "
            "for less at a time.",
        )
