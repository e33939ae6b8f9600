"""Models and layers of Keras 2, which need not be installed: a class is told by its module."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import cellerate
from cellerate.errors import ModelError

pytestmark = pytest.mark.keras


def old(module: str = "tf_keras.src.engine.sequential") -> Any:
    """A subclass of a model of Keras 2."""
    base = type("Sequential", (), {"__module__": module})
    return type("Mine", (base,), {"built": True, "name": "mine", "loss": "mse"})()


@pytest.mark.parametrize(
    "use",
    [
        cellerate.accelerate,
        cellerate.restore,
        cellerate.explain,
        cellerate.quantize,
        lambda model: cellerate.pack(model, "a.cell"),
        lambda model: cellerate.prune(model, (np.ones(1), np.ones(1))),
        lambda model: cellerate.distill(model, model, (np.ones(1), np.ones(1))),
        lambda model: cellerate.generate(model, "a"),
        lambda model: cellerate.optimize(model, "data.txt"),
    ],
    ids=["accelerate", "restore", "explain", "quantize", "pack", "prune", "distill", "generate", "optimize"],
)
def test_model_of_keras_2_is_refused_in_words(
    use: Callable[[Any], Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = r"Mine is of Keras 2 \(tf_keras\).*set_weights\(old\.get_weights\(\)\).*old\.save\('old\.keras'\)"
    with pytest.raises(ModelError, match=said):
        use(old())


@pytest.mark.parametrize("module", ["keras.src.engine.training", "tensorflow.python.keras.engine.functional"])
def test_model_of_any_keras_2_is_recognised(module: str) -> None:
    with pytest.raises(ModelError, match=r"is of Keras 2 \((keras|tensorflow)\)"):
        cellerate.accelerate(old(module))


def test_what_is_not_of_keras_2_is_refused_as_before() -> None:
    for other in (3, old("mine.keras.engine"), keras.ops):
        with pytest.raises(ModelError, match="expected a Keras model or layer"):
            cellerate.accelerate(other)
