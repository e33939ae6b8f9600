"""int4 on the core: the numbers of the file, in sums that no target, thread or neighbouring row changes.

The target without vector instructions rounds a product before it adds it, and so differs from the others in float32,
too.
"""

import dataclasses

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
F, T = 3, 5
ROWS = (1, 2, 7, 14, 40)

pytestmark = pytest.mark.usefixtures("native_settings")


def stack(units: int) -> Program:
    graph = Graph()
    first = graph.lstm(graph.input("x", -1, F), "first", F, units)
    second = graph.lstm(first, "second", units, units, activation="relu")
    return graph.program(y=graph.dense(second, "head", units, 5))


def wide(program: Program, rows: int) -> np.ndarray:
    return Engine(program).run(draw(rows, T, F))["y"]


# One group and a part, pairs without a second word, gates side by side in the last panel, and whole panels.
@pytest.mark.parametrize("units", [7, 33, 50, 68, 130])
def test_every_target_gives_the_same_bits_near_the_restored_weights(units):
    program = narrowed(stack(units), "int4")
    for rows in ROWS:
        x, restored = draw(rows, T, F), wide(program, rows)
        found = {}
        for target in TARGETS:
            native.set_target(target)
            for threads in (1, 2):
                native.set_num_threads(threads)
                found[target, threads] = Engine(program, "int4").run(x)["y"]
            np.testing.assert_array_equal(found[target, 2], found[target, 1])
            error = np.sqrt(np.mean((found[target, 1] - restored) ** 2) / np.mean(restored**2))
            # The weights are exact: in each of the five products one factor is rounded.
            assert 0 < error < allowed("int8", 5, units)
        for target in FUSED:
            np.testing.assert_array_equal(found[target, 1], found[FUSED[0], 1])


@pytest.mark.parametrize("target", TARGETS)
def test_rows_alone_and_step_by_step_give_the_bits_of_many(target):
    native.set_target(target)
    model = PackedModel(Cell(narrowed(stack(50), "int4"), "int4", {}))
    x = draw(14, T, F)
    expected = model.predict(x)
    for row in (0, 5, 13):
        np.testing.assert_array_equal(model.predict(x[row : row + 1]), expected[row : row + 1])
    for rows in (1, 2, 14):
        streams = model.streams(rows)
        for step in range(T):
            pushed = streams.push(x[:rows, step : step + 1])
            np.testing.assert_array_equal(pushed, expected[:rows, step : step + 1])


# One group, a group and a part, and a last pair of words without a second one.
@pytest.mark.parametrize("inputs", [32, 64, 98, 36])
def test_largest_numbers_of_a_group_overflow_no_sum(inputs):
    graph = Graph()
    program = graph.program(y=graph.dense(graph.input("x", inputs), "wide", inputs, 5))
    (node,) = (one for one in program.nodes if "kernel" in one.arrays)
    kernel = np.full((inputs, 5), -8.0, np.float32)
    kernel[:, 1] = 7
    kernel[::32, 1] = -8
    kernel[::2, 2] = 7
    node.arrays["kernel"][:] = kernel
    node.arrays["bias"][:] = 0
    x = np.ones((4, inputs), np.float32)
    x[1] = -1
    x[2, ::2] = -1
    for target in TARGETS:
        native.set_target(target)
        for rows in (1, 2, 3, 4):
            found = Engine(program, "int4").run(x[:rows])["y"]
            np.testing.assert_allclose(found, x[:rows] @ kernel, rtol=1e-6, atol=1e-3)


def test_core_rounds_weights_to_the_numbers_of_the_file():
    program = stack(68)
    x = draw(3, T, F)
    # Of one group every number is a tie, and the largest has two signs.
    kernel = program.nodes[-1].arrays["kernel"].copy()
    kernel[:32] = (np.arange(32 * 5).reshape(32, 5) % 16 - 8) * 0.5
    kernel[32:64] = 0
    head = dataclasses.replace(program.nodes[-1], arrays={**program.nodes[-1].arrays, "kernel": kernel})
    program = dataclasses.replace(program, nodes=(*program.nodes[:-1], head))
    found, expected = (Engine(each, "int4").run(x)["y"] for each in (program, narrowed(program, "int4")))
    np.testing.assert_array_equal(found, expected)


def test_packed_weights_take_about_five_bits_each():
    graph = Graph()
    graph.dense(graph.input("x", 512), "wide", 512, 512)
    program = graph.program(y=1)
    sizes = {}
    for precision in ("int8", "int4"):
        engine = Engine(program, precision)
        compiled = engine.anatomy({"x": draw(1, 512)}).compiled
        assert compiled is not None
        sizes[precision] = compiled.packed_bytes
    assert sizes["int8"] > 512 * 512
    assert sizes["int4"] < 5.2 / 8 * 512 * 512
