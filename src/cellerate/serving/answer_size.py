"""The size of an answer, before anything of it is computed."""

from collections.abc import Mapping, Sequence

import numpy as np

from cellerate.runtime.packed import PackedModel
from cellerate.serving.answers import RequestError
from cellerate.serving.limits import Limits
from cellerate.serving.sessions import Push, StepSize, steps_in, zeros

# Rows times steps of a prediction, in steps of one row.
_ROWS_OF_STEPS = 10
# More steps than kernels of convolutions are long, and so far apart that pooling gives different numbers of steps.
_COMPARED_STEPS = (32, 95)


class AnswerSize:
    """The count of numbers in the predictions of a model, found out with rows of two and of three steps.

    Args:
        model: The model.
    """

    def __init__(self, model: PackedModel) -> None:
        two, three = (sum(map(np.size, _computed(model, steps).values())) for steps in (2, 3))
        self._step = max(0, three - two)
        self._row = max(0, two - 2 * self._step)

    def check(self, tensors: Mapping[str, np.ndarray], limits: Limits) -> None:
        """Raises `RequestError` for a prediction that would take too long, or whose answer would be too large."""
        rows = max((len(array) for array in tensors.values() if array.ndim), default=0)
        steps = max((array.shape[1] for array in tensors.values() if array.ndim > 1), default=1)
        most = limits.steps
        if steps > most or rows * steps > _ROWS_OF_STEPS * most:
            raise RequestError(
                413,
                f"{rows:,} rows of {steps:,} steps are too many: at most {most:,} steps a row, and "
                f"{_ROWS_OF_STEPS * most:,} in all, are read at once.",
            )
        check_numbers(self.numbers(rows, steps), limits)

    def numbers(self, rows: int, steps: int) -> int:
        """The numbers of the prediction of so many rows of so many steps."""
        return rows * (self._row + steps * self._step)


def output_shapes(model: PackedModel) -> dict[str, tuple[np.dtype, list[int]]]:
    """The dtype and the shape of each output by its name; -1 for the batch, and for sizes that depend on the steps."""
    few, many = (_computed(model, steps) for steps in _COMPARED_STEPS)
    return {
        name: (
            array.dtype,
            [-1]
            + [
                size if size == other else -1
                for size, other in zip(array.shape[1:], many[name].shape[1:], strict=True)
            ],
        )
        for name, array in few.items()
    }


def _computed(model: PackedModel, steps: int) -> dict[str, np.ndarray]:
    """The outputs for one row of zeros, by name."""
    shapes = {
        name: [1, *(steps if size < 0 else size for size in shape[1:])]
        for name, shape in model.inputs.items()
    }
    made = model.predict(zeros(model, shapes))
    return made if isinstance(made, dict) else {model.outputs[0]: made}


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
