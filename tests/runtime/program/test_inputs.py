"""The arrays that a packed model accepts, and its errors for other values."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cellerate.errors import DataError
from cellerate.program import Program
from cellerate.runtime.cell import Cell
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.program.inputs import as_array
from support.graphs import Graph, draw


class OnlyDlpack:
    """An array of a library that knows nothing of NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Unreadable:
    """A stand-in for a tensor on a GPU."""

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")


def small() -> Program:
    graph = Graph()
    return graph.program(y=graph.lstm(graph.input("x", 4, 3), "lstm", 3, 5, return_sequences=False))


def test_arrow_arrays_are_taken_without_a_copy() -> None:
    rows = draw(6, 4, 3)
    flat = pa.array(rows.reshape(-1))
    lists = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(flat, 3), 4)
    for given in (lists, pa.FixedShapeTensorArray.from_numpy_ndarray(rows)):
        found = as_array(given)
        assert found.shape == rows.shape
        np.testing.assert_array_equal(found, rows)
        assert np.shares_memory(found, flat.to_numpy() if given is lists else rows)
    np.testing.assert_array_equal(as_array(lists[2:5]), rows[2:5])
    np.testing.assert_array_equal(as_array(pa.chunked_array([lists[:1], lists[1:]])), rows)
    np.testing.assert_array_equal(as_array(pa.array([1, 2, 3], pa.int32())), [1, 2, 3])


def test_dlpack_is_taken_without_a_copy() -> None:
    rows = draw(2, 4, 3)
    found = as_array(OnlyDlpack(rows))
    assert np.shares_memory(found, rows)
    np.testing.assert_array_equal(found, rows)


def test_predict_accepts_every_array_protocol() -> None:
    model, rows = PackedModel(Cell(small(), "float32", {})), draw(6, 4, 3)
    right = model.predict(rows)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 3)
    nested: Any = pa.FixedSizeListArray.from_arrays(lists, 4)
    dlpack: Any = OnlyDlpack(rows)
    for given in (nested, dlpack, rows.tolist()):
        np.testing.assert_array_equal(model.predict(given), right)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Unreadable(), "got a Unreadable that NumPy cannot read (can't convert cuda:0"),
        (pa.array([1.0, None]), "cannot read (it holds nulls: fill them in)"),
        (pa.array([[1.0], [1.0, 2.0]]), "got rows of different lengths"),
        (pa.table({"a": [1.0]}), "cannot read (give one column, not a table)"),
        ([[1.0], [1.0, 2.0]], "got rows of different lengths"),
    ],
)
def test_object_that_is_not_an_array_is_refused_with_a_clear_error(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        PackedModel(Cell(small(), "float32", {})).predict(given)
