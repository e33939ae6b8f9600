"""Weights of 8 bits that every processor multiplies exactly, this one and an emulated one without VNNI among them."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from cellerate.errors import ModelError
from cellerate.exports.litert import LiteRt, litert_model
from cellerate.exports.onnx import OnnxRuntime, onnx_model
from cellerate.exports.onnx_int8 import MOST_IN_16_BITS, largest_pair, proved_pair, rounded
from cellerate.exports.trials import trials_of
from cellerate.program import Program
from support.graphs import Graph, draw
from support.rounding import allowed
from support.runtime.programs import F, H, classifier, forecaster


def int8_model(program: Program) -> onnx.ModelProto:
    return onnx_model(program, dict.fromkeys(program.outputs, (None,) * 3), {}, "int8")


@pytest.mark.parametrize("program", [classifier, forecaster], ids=["classifier", "forecaster"])
def test_every_constant_of_a_file_is_read(program: Callable[[], Program]) -> None:
    """ONNX Runtime warns of others each time that it opens the file."""
    graph = int8_model(program()).graph
    read = {name for node in graph.node for name in node.input}
    assert {constant.name for constant in graph.initializer} <= read | {
        output.name for output in graph.output
    }


def weights_of(model: onnx.ModelProto) -> list[np.ndarray]:
    """The matrices (K, N) of 8 bits."""
    arrays = [numpy_helper.to_array(constant) for constant in model.graph.initializer]
    weights = [array for array in arrays if array.dtype == np.int8 and array.any()]
    return [matrix for array in weights for matrix in array.reshape(-1, *array.shape[-2:])]


def pairwise(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The product of unsigned and signed bytes where two products are added in 16 bits, as `vpmaddubsw` does it."""
    odd = [(0, x.shape[-1] % 2)]
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + odd).astype(np.int64)
    weights = np.pad(weights, [*odd, (0, 0)]).astype(np.int64)
    products = x[..., :, None] * weights
    return np.clip(products[..., ::2, :] + products[..., 1::2, :], -(2**15), 2**15 - 1).sum(axis=-2)


def quantised(x: np.ndarray, weights: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """A product as ONNX defines it for inputs that are rounded as they come."""
    low, high = min(0.0, float(x.min())), max(0.0, float(x.max()))
    scale = (high - low) / 255 or 1.0
    zero = np.clip(np.rint(-low / scale), 0, 255)
    values, scales = weights
    bytes_of_x = np.clip(np.rint(x / scale) + zero, 0, 255)
    sums = pairwise(bytes_of_x, values) - int(zero) * values.astype(np.int64).sum(axis=0)
    return sums * scale * scales


MATRICES = st.builds(
    lambda kind, seed, rows, columns: {
        "normal": np.random.default_rng(seed).standard_normal((rows, columns)),
        "uniform": np.random.default_rng(seed).uniform(-1, 1, (rows, columns)),
        "outliers": np.random.default_rng(seed).standard_normal((rows, columns)) ** 5,
        "equal": np.full((rows, columns), -0.3),
        "zero": np.zeros((rows, columns)),
    }[kind].astype(np.float32),
    st.sampled_from(["normal", "uniform", "outliers", "equal", "zero"]),
    st.integers(0, 2**16),
    st.integers(1, 9),
    st.integers(1, 5),
)


@given(matrix=MATRICES)
def test_no_inputs_make_a_pair_of_rounded_weights_overflow(matrix: np.ndarray) -> None:
    values, scales = rounded(matrix)
    assert (values.dtype, scales.dtype) == (np.int8, np.float32)
    worst = np.repeat(values[:, :, None] > 0, 2, axis=2) ^ np.array([False, True])
    for column in range(values.shape[1]):
        x = 255 * worst[:, column].T.astype(np.uint8)
        exact = x.astype(np.int64) @ values[:, column].astype(np.int64)
        np.testing.assert_array_equal(pairwise(x, values)[:, column], exact)
    # Rounded to the nearest, with scales between those of 8 bits and of 7.
    assert np.all(np.abs(values * scales.astype(np.float64) - matrix) <= 0.5001 * scales)
    largest = np.abs(matrix).max(axis=0)
    live = largest > 0
    assert np.all(largest[live] / 127.001 <= scales[live])
    assert np.all(scales[live] <= largest[live] / 63.5)


def test_neighbours_that_leave_room_keep_all_8_bits() -> None:
    matrix = np.array([[1.0, 0.5], [-1.0, 0.5], [0.004, -1.0]], np.float32)
    values, scales = rounded(matrix)
    np.testing.assert_allclose(scales, 1 / 127, rtol=1e-6)
    np.testing.assert_array_equal(values[:2, 0], [127, -127])


def test_emulated_instruction_saturates_what_is_not_rounded_for_it() -> None:
    x, weights = np.full((1, 4), 255), np.full((4, 1), 127, np.int8)
    assert pairwise(x, weights)[0, 0] == 2 * MOST_IN_16_BITS < 4 * 255 * 127


def test_largest_pair_of_a_file_is_what_the_worst_inputs_give() -> None:
    model = int8_model(forecaster())
    found = 0
    weights = weights_of(model)
    assert [matrix.shape for matrix in weights] == [(F, 4 * H), (H, 4 * H), (H, 4 * H), (H, 4 * H), (H, 3)]
    for matrix in weights:
        for row in range(0, len(matrix), 2):
            pair = matrix[row : row + 2].astype(int)
            for on in ([0, 0], [0, 255], [255, 0], [255, 255]):
                found = max(found, np.abs(np.array(on[: len(pair)]) @ pair).max())
    assert largest_pair(model) == found <= MOST_IN_16_BITS


@pytest.mark.parametrize("matrix", ["recurrent_kernel", "kernel", "head"])
def test_file_whose_weights_could_overflow_is_refused(matrix: str, tmp_path: Path) -> None:
    graph = Graph()
    state = graph.lstm(graph.input("x", -1, F), "lstm", F, H)
    graph.dense(state, "head", H, 3)
    node = graph.nodes[2 if matrix == "head" else 1]
    name = "kernel" if matrix == "head" else matrix
    node.arrays[name][:2, 0] = np.abs(node.arrays[name]).max()
    program, path = graph.program(y=2), tmp_path / "m.onnx"
    path.write_bytes(onnx_model(program, {"y": (None,) * 3}, {}).SerializeToString())
    quantize_dynamic(
        path, path, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=["LSTM", "MatMul"]
    )
    with pytest.raises(
        ModelError, match=r"add up to 64\d{3}, and processors without VNNI hold 32767 at most"
    ):
        proved_pair(path)
    path.write_bytes(int8_model(program).SerializeToString())
    assert proved_pair(path) <= MOST_IN_16_BITS


def test_products_and_lstms_give_what_16_bits_give(tmp_path: Path) -> None:
    graph = Graph()
    lstm = graph.lstm(graph.input("x", -1, F), "lstm", F, H)
    program = graph.program(y=graph.dense(lstm, "head", H, 3), h=lstm)
    # One row: of several, ONNX Runtime rounds those together that one thread computes.
    model, x = int8_model(program), draw(1, 9, F)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    found = OnnxRuntime(tmp_path / "m.onnx").run({"x": x})
    arrays, h, c = graph.nodes[lstm].arrays, np.zeros((1, H)), np.zeros((1, H))
    kernel, recurrent, head = (
        rounded(array)
        for array in (arrays["kernel"], arrays["recurrent_kernel"], graph.nodes[2].arrays["kernel"])
    )
    inputs, states = quantised(x, kernel), []
    for t in range(x.shape[1]):
        z = inputs[:, t] + arrays["bias"] + (quantised(h, recurrent) if t else 0)
        i, f, g, o = np.split(z, 4, axis=-1)
        i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        states.append(h)
    outputs = np.stack(states, axis=1)
    np.testing.assert_allclose(found["h"], outputs, atol=2e-6, rtol=0)
    right = quantised(found["h"], head) + graph.nodes[2].arrays["bias"]
    np.testing.assert_allclose(found["y"], right, atol=2e-6, rtol=0)


def test_masks_and_both_directions_are_near_in_int8(tmp_path: Path) -> None:
    program = classifier()
    # Not the mean of a row without a live step, which is NaN: no range holds that.
    program = Program(program.nodes, {name: program.outputs[name] for name in ("logs", "both", "h", "c")})
    (tmp_path / "m.onnx").write_bytes(int8_model(program).SerializeToString())
    run = OnnxRuntime(tmp_path / "m.onnx").run
    # Both factors of five products are rounded, weights to 7 bits in the worst case.
    limit = 2 * allowed("int8", roundings=2 * 5, terms=2 * H)
    for trial in trials_of(program):
        found = run(trial.inputs)
        for name, right in trial.expected.items():
            assert 0 < np.sqrt(np.mean((found[name] - right) ** 2)) <= limit * np.sqrt(np.mean(right**2)), (
                name
            )


_EMULATED = """
import sys
sys.path[:0] = PATHS
import numpy as np
import onnxruntime
from ai_edge_litert import interpreter
x = np.load("x.npy")
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
for name in ("ours", "eight bits"):
    session = onnxruntime.InferenceSession(name + ".onnx", options, providers=["CPUExecutionProvider"])
    np.save(name, session.run(["y"], {"x": x})[0])
litert = interpreter.Interpreter("m.tflite")
given = litert.get_input_details()[0]["index"]
litert.resize_tensor_input(given, x.shape)
litert.allocate_tensors()
litert.reset_all_variables()
litert.set_tensor(given, x)
litert.invoke()
np.save("litert", litert.get_tensor(litert.get_output_details()[0]["index"]))
"""


@pytest.mark.skipif(shutil.which("qemu-x86_64") is None, reason="needs qemu-user")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="emulates a processor for this Python")
def test_processor_without_vnni_gives_what_this_one_gives(tmp_path: Path) -> None:
    graph = Graph()
    x = graph.input("x", -1, F)
    # Evenly spread, so that many pairs of 8 bits overflow.
    random = np.random.default_rng(0)
    for name, inputs in (("first", F), ("second", 32)):
        x = graph.lstm(x, name, inputs, 32)
        for array in graph.nodes[x].arrays.values():
            array[:] = random.uniform(-0.5, 0.5, array.shape)
    program, given = graph.program(y=graph.dense(x, "head", 32, 7)), draw(4, 12, F)
    (tmp_path / "ours.onnx").write_bytes(int8_model(program).SerializeToString())
    eight = tmp_path / "eight bits.onnx"
    eight.write_bytes(onnx_model(program, {"y": (None,) * 3}, {}).SerializeToString())
    whole = OnnxRuntime(eight).run({"x": given})["y"]
    quantize_dynamic(eight, eight, weight_type=QuantType.QInt8, op_types_to_quantize=["LSTM", "MatMul"])
    (tmp_path / "m.tflite").write_bytes(litert_model(program, 4, {}, "int8"))
    np.save(tmp_path / "x.npy", given)
    script = _EMULATED.replace("PATHS", repr([path for path in sys.path if path]))
    # As Python's own file: a virtual environment's is a link, and qemu looks for what it links to.
    command = ["qemu-x86_64", "-cpu", "Haswell", str(Path(sys.executable).resolve()), "-c", script]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    ours, without, narrow = (np.load(tmp_path / f"{name}.npy") for name in ("ours", "eight bits", "litert"))
    np.testing.assert_allclose(ours, OnnxRuntime(tmp_path / "ours.onnx").run({"x": given})["y"], atol=1e-5)
    right = LiteRt(tmp_path / "m.tflite", program.outputs).run({"x": given})["y"]
    np.testing.assert_allclose(narrow, right, atol=1e-5)
    # The emulated processor does saturate: this test can fail.
    assert np.abs(without - whole).max() > 3 * np.abs(ours - whole).max()
