"""Models drawn at random give the results of Keras once they are packed, in every precision and step by step."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import cellerate
from cellerate.errors import ModelError
from support.keras_models.keras_programs import call, numpy
from support.keras_models.random_models import RandomModel

pytestmark = [
    pytest.mark.keras,
    # Pooling and cropping lose the masks of some models.
    pytest.mark.filterwarnings("ignore:.*was passed an input with a mask attached to it"),
]
# The other backends compile Keras's side for every model.
SEEDS = range(25) if keras.backend.backend() == "torch" else range(100, 103)
# The mean error against the mean output.
ROUNDED = {"bfloat16": 0.05, "int8": 0.1, "int4": 0.6}


def packed_as(model: keras.Model, path: Path, precision: str = "float32") -> cellerate.PackedModel:
    cellerate.pack(model, path, precision=precision)
    return cellerate.load(path)


def disturb(model: keras.Model) -> None:
    """Move every weight away from its first value, but so little that no recurrence amplifies rounding."""
    random = np.random.default_rng(0)
    for variable in model.weights:
        if "float" in keras.backend.standardize_dtype(variable.dtype):
            value = numpy(variable) + 0.1 * random.standard_normal(variable.shape)
            variable.assign(np.abs(value) + 0.1 if "variance" in variable.path else value)


def by_input(model: keras.Model, x: Any) -> dict[str, np.ndarray]:
    names = [tensor._keras_history.operation.name for tensor in model.inputs]
    return dict(zip(names, x if isinstance(x, list) else [x], strict=True))


def listed(found: Any) -> list[np.ndarray]:
    return list(found.values()) if isinstance(found, dict) else [found]


@pytest.mark.parametrize("seed", SEEDS)
def test_any_packed_model_computes_what_keras_does(seed: int, tmp_path: Path) -> None:
    drawn = RandomModel(seed)
    model, words = drawn.model, "\n".join(drawn.words)
    disturb(model)
    packed = packed_as(model, tmp_path / "model.cell")
    for rows, steps in [(5, None), (33, 11)] if keras.backend.backend() == "torch" else [(5, None)]:
        x, _ = drawn.batch(rows, steps)
        given = by_input(model, x)
        expected = [numpy(value) for value in keras.tree.flatten(call(model, x))]
        found = listed(packed.predict(given))
        last = listed(packed.predict({name: value[-1:] for name, value in given.items()}))
        for mine, alone, theirs in zip(found, last, expected, strict=True):
            most = 2e-5 * (1 + float(np.abs(theirs).max()))
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=most, err_msg=words)
            np.testing.assert_allclose(alone, mine[-1:], rtol=0, atol=most, err_msg=words)
    for precision, share in ROUNDED.items():
        rounded = listed(packed_as(model, tmp_path / f"{precision}.cell", precision).predict(given))
        for mine, theirs in zip(rounded, expected, strict=True):
            error = float(np.abs(mine - theirs).mean())
            assert error < share * (float(np.abs(theirs).mean()) + 1e-3), f"{precision} {words}"
    if len(given) == 1 and "RepeatVector" not in drawn.words:
        check_step_by_step(packed, next(iter(given.values())), words)


def check_step_by_step(packed: cellerate.PackedModel, x: np.ndarray, words: str) -> None:
    """Push the steps one by one, if the layers of the model only look back."""
    try:
        streams = packed.streams(len(x))
    except ModelError:
        return
    pushed = [listed(streams.push(x[:, [step]])) for step in range(x.shape[1])]
    for number, whole in enumerate(listed(packed.predict(x))):
        steps = [outputs[number] for outputs in pushed]
        found = np.concatenate(steps, axis=1) if whole.ndim == 3 else steps[-1]
        most = 1e-5 * (1 + float(np.abs(whole).max()))
        np.testing.assert_allclose(found, whole, rtol=0, atol=most, err_msg=words)
