"""The size of an answer is known before it is computed, and loading reports a model that cannot run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import DataError, ModelError
from cellerate.runtime.cell import write_cell
from cellerate.runtime.packed import PackedModel, load
from cellerate.serving.answer_size import check_prediction, tried_outputs
from cellerate.serving.answers import RequestError
from cellerate.serving.limits import Limits
from cellerate.serving.models import Models
from support.graphs import Graph
from support.servers import plain_cell


def convolution_cell(path: Path, size: int) -> Path:
    """A model that needs as many steps as its kernel is long."""
    graph = Graph()
    sizes = {"size": size, "strides": 2, "dilation": 1, "padding": "valid", "axis": 1, "features": 3}
    windows = graph.add("windows", "windows", {"x": graph.input("x", -1, 3)}, **sizes)
    write_cell(path, graph.program(y=graph.dense(windows, "kernel", 3 * size, 4)))
    return path


def test_model_runs_once_when_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []
    real = PackedModel.predict
    monkeypatch.setattr(PackedModel, "predict", lambda *given: computed.append(given) or real(*given))
    served = Models({"plain": plain_cell(tmp_path / "plain.cell")}, Limits()).get("plain")
    assert len(computed) == 1
    assert served.outputs == {"each": ("float32", [-1, -1, 4]), "last": ("float32", [-1, 7])}


def test_model_that_cannot_run_is_reported_when_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def predict(*_: Any) -> None:
        raise DataError("the head broke off.")

    path = plain_cell(tmp_path / "plain.cell")
    monkeypatch.setattr(PackedModel, "predict", predict)
    with pytest.raises(ModelError, match=r"plain\.cell cannot compute a row of zeros: the head broke off\."):
        Models({"plain": path}, Limits())


@pytest.mark.parametrize("size", [3, 60, 500])
def test_outputs_of_a_model_that_needs_many_steps_are_described(tmp_path: Path, size: int) -> None:
    path = convolution_cell(tmp_path / "m.cell", size)
    assert tried_outputs(load(path), path) == {"y": ("float32", [-1, -1, 4])}


def test_answer_limit_counts_steps_and_requested_outputs(tmp_path: Path) -> None:
    model = load(plain_cell(tmp_path / "plain.cell"))
    tensors, limits = {"x": np.zeros((2, 10, 3), np.float32)}, Limits(answer_numbers=80)
    check_prediction(model, tensors, ["each"], limits)
    with pytest.raises(RequestError, match="the answer would have 94 numbers, and at most 80"):
        check_prediction(model, tensors, None, limits)
    with pytest.raises(RequestError, match="2 rows of 10 steps are too many"):
        check_prediction(model, tensors, ["last"], Limits(steps=9))
    with pytest.raises(DataError, match="expected shape"):
        check_prediction(model, {"x": np.zeros((2, 3), np.float32)}, None, limits)
