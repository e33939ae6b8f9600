"""bfloat16 on targets that multiply it as floats: only the weights are rounded, and never slower than float32.

So the results are those of float32 with these weights, bit for bit: of one row, which reads each pair of weights once,
and of tiles of rows, which read it once for each of its numbers.
"""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

from cellerate.kernels import native
from cellerate.program import Program
from cellerate.runtime.cell import Cell
from cellerate.runtime.packed import PackedModel
from support.graphs import Graph, draw

TARGETS = [name for name in native.available_targets() if name not in ("amx", "avx512bf16")]
F, T = 3, 6


def rounded(program: Program) -> Program:
    """The program with all its matrices as bfloat16 keeps them."""

    def narrow(array: np.ndarray) -> np.ndarray:
        return array.astype(ml_dtypes.bfloat16).astype(np.float32) if array.ndim == 2 else array

    nodes = [
        dataclasses.replace(node, arrays={name: narrow(array) for name, array in node.arrays.items()})
        for node in program.nodes
    ]
    return dataclasses.replace(program, nodes=tuple(nodes))


def stack(units: int) -> Program:
    graph = Graph()
    first = graph.lstm(graph.input("x", -1, F), "first", F, units)
    second = graph.lstm(first, "second", units, units)
    return rounded(graph.program(y=graph.dense(second, "head", units, 5)))


@pytest.mark.usefixtures("native_settings")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("threads", [1, 2])
# Of weights that stay floats, of an odd number of inputs in pairs, and of panels that are filled in part.
@pytest.mark.parametrize("units", [7, 97, 130])
def test_bfloat16_where_it_is_widened_gives_the_bits_of_float32(target, threads, units):
    native.set_target(target)
    native.set_num_threads(threads)
    program = stack(units)
    narrow, wide = (PackedModel(Cell(program, precision, {})) for precision in ("bfloat16", "float32"))
    for rows in (1, 2, 14, 40):
        x = draw(rows, T, F)
        np.testing.assert_array_equal(narrow.predict(x), wide.predict(x))
    x = draw(1, T, F)
    streams = [model.streams(1) for model in (narrow, wide)]
    for step in range(T):
        found, expected = (each.push(x[:, step : step + 1]) for each in streams)
        np.testing.assert_array_equal(found, expected)
