"""bfloat16 and int8 in batches of any size, which some targets multiply in tiles of rows and others in vectors.

The sums of bytes are exact, so int8 gives the same bits on every target whose multiply-add rounds once. The sums of
bfloat16 differ from target to target, but not with the neighbouring rows, the threads or the length of a call.
"""

import numpy as np
import pytest

from cellerate.kernels import native
from cellerate.program import Program
from cellerate.runtime.cell import Cell, narrowed
from cellerate.runtime.packed import PackedModel
from cellerate.runtime.program import Engine
from support.graphs import Graph, draw
from support.rounding import allowed

TARGETS = native.available_targets()
FUSED = [target for target in TARGETS if target != "scalar"]
F, T = 9, 4
# A row, parts of a tile of 16, a tile, a tile and a part, blocks of two tiles and a part.
ROWS = (1, 3, 5, 8, 15, 16, 17, 32, 33, 70)

pytestmark = pytest.mark.usefixtures("native_settings")


def stack(units: int, inputs: int = F) -> Program:
    """A bounded LSTM, one that reads a sequence backwards, and one whose h has a scale for each row."""
    graph = Graph()
    first = graph.lstm(graph.input("x", -1, inputs), "first", inputs, units)
    second = graph.lstm(first, "second", units, units, go_backwards=True)
    third = graph.lstm(second, "third", units, units, activation="relu")
    return graph.program(y=graph.dense(third, "head", units, 21))


def run(program: Program, precision: str, x: np.ndarray) -> np.ndarray:
    return Engine(program, precision).run(x)["y"]


# Words that fill no tile, gates side by side in the last panel, two vectors of it, and several tiles of words.
@pytest.mark.parametrize("units", [3, 50, 64, 72, 130])
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_batch_of_any_size_gives_the_bits_of_its_rows(precision, units):
    program = narrowed(stack(units), precision)
    x = draw(max(ROWS), T, F)
    right = run(program, "float32", x)
    found = {}
    for target in TARGETS:
        native.set_target(target)
        native.set_num_threads(1)
        found[target] = alone = np.concatenate([run(program, precision, x[n : n + 1]) for n in range(len(x))])
        for threads in (1, 2):
            native.set_num_threads(threads)
            for rows in ROWS:
                np.testing.assert_array_equal(
                    run(program, precision, x[:rows]), alone[:rows], str((target, rows))
                )
        error = np.sqrt(np.mean((alone - right) ** 2) / np.mean(right**2))
        assert error < allowed(precision, 7, units), target
    for target in FUSED if precision == "int8" else ():
        np.testing.assert_array_equal(found[target], found[FUSED[0]], target)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("target", TARGETS)
# One word, a few, and more than a tile.
@pytest.mark.parametrize("inputs", [1, 5, 70])
def test_steps_of_many_streams_give_the_bits_of_sequences(target, precision, inputs):
    native.set_target(target)
    graph = Graph()
    lstm = graph.lstm(graph.input("x", -1, inputs), "lstm", inputs, 50)
    program = graph.program(y=graph.dense(lstm, "head", 50, 5))
    model = PackedModel(Cell(narrowed(program, precision), precision, {}))
    x = draw(35, T, inputs)
    expected = model.predict(x)
    for rows in (1, 6, 35):
        streams = model.streams(rows)
        for step in range(T):
            pushed = streams.push(x[:rows, step : step + 1])
            np.testing.assert_array_equal(pushed, expected[:rows, step : step + 1])


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
@pytest.mark.parametrize("target", TARGETS)
def test_nan_in_one_row_stays_there(target, precision):
    native.set_target(target)
    program = narrowed(stack(40), precision)
    x = draw(20, T, F)
    right = run(program, precision, x)
    x[7, 1, 2] = np.nan
    found = run(program, precision, x)
    assert np.isnan(found[7]).any()
    others = np.arange(20) != 7
    np.testing.assert_array_equal(found[others], right[others])
