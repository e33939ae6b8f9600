"""The contestants of the case `latency`: each keeps the states of a stack, and takes one step from Python.

A way is a function without arguments that returns a step: (1, units) float32 to (OUTPUTS,), starting at zero states.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inference.models import cell_file
from benchmarks.inference.peers import THREADS
from benchmarks.inference.stacks import OUTPUTS, Stack, head_of, inputs_of, lstms_of

Step = Callable[[np.ndarray], Any]
# The ways of a contestant, by precision and in words.
Ways = dict[str, dict[str, Callable[[], Step]]]


def cellerate_ways(stack: Stack, folder: Path) -> Ways:
    """Streams of packed models."""
    import cellerate

    def ways(precision: str) -> dict[str, Callable[[], Step]]:
        model = cellerate.load(cell_file(folder, stack.name, precision))

        def push() -> Step:
            streams = model.streams(1)
            return lambda x: streams.push(x[None])[0]

        def push_into() -> Step:
            streams, out = model.streams(1), np.empty((1, OUTPUTS), np.float32)

            def step(x: np.ndarray) -> Any:
                streams.push_into(x[None], out)
                return out[0]

            return step

        return {"push_into": push_into, "push": push}

    return {precision: ways(precision) for precision in ("float32", "bfloat16", "int8")}


def onnx_file(stack: Stack, folder: Path) -> Path:
    """The step as ONNX: x (1, 1, units) and the states h0, c0, … → y (1, OUTPUTS) and the new states."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from benchmarks.generation.onnx import as_model, lstm_weights

    def value(name: str, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    held: dict[str, np.ndarray] = {"middle": np.array([1], np.int64)}
    nodes, x = [], "x"
    for n, arrays in enumerate(lstms_of(stack)):
        held |= {f"{name}{n}": array for name, array in lstm_weights(*arrays).items()}
        inputs = [x, f"W{n}", f"R{n}", f"B{n}", "", f"h{n}", f"c{n}"]
        made = [f"y{n}", f"h{n}_new", f"c{n}_new"]
        nodes.append(helper.make_node("LSTM", inputs, made, hidden_size=stack.units))
        x = f"x{n + 1}"
        nodes.append(helper.make_node("Squeeze", [f"y{n}", "middle"], [x]))
    held["head"], held["head_bias"] = head_of(stack)
    held["rows"] = np.array([1, stack.units], np.int64)
    nodes += [
        helper.make_node("Reshape", [x, "rows"], ["flat"]),
        helper.make_node("Gemm", ["flat", "head", "head_bias"], ["y"]),
    ]
    states = [f"{kind}{n}" for n in range(stack.layers) for kind in "hc"]
    graph = helper.make_graph(
        nodes,
        "step",
        [value("x", 1, 1, stack.units), *[value(name, 1, 1, stack.units) for name in states]],
        [value("y", 1, OUTPUTS), *[value(f"{name}_new", 1, 1, stack.units) for name in states]],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    path = folder / f"{stack.name}.onnx"
    onnx.save(as_model(graph), path)
    return path


def _zeros(stack: Stack) -> list[np.ndarray]:
    return [np.zeros((1, 1, stack.units), np.float32) for _ in range(2 * stack.layers)]


def onnxruntime_ways(stack: Stack, folder: Path) -> Ways:
    """ONNX Runtime: float32, and int8 by its own dynamic quantisation; states returned, or bound to two buffers."""
    from onnxruntime import OrtValue

    from benchmarks.generation.onnx import OPERATORS, quantized, session_of

    path = onnx_file(stack, folder)
    small = quantized(path, path.with_suffix(".int8.onnx"), op_types_to_quantize=OPERATORS)

    def run(session: Any) -> Step:
        names, states = [each.name for each in session.get_inputs()], _zeros(stack)

        def step(x: np.ndarray) -> Any:
            y, *states[:] = session.run(None, dict(zip(names, [x[None], *states], strict=True)))
            return y[0]

        return step

    def bound(session: Any) -> Step:
        x, y = (OrtValue.ortvalue_from_numpy(each) for each in (inputs_of(stack)[:1, None], _output()))
        names = [each.name for each in session.get_inputs()][1:]
        places = [
            {
                name: OrtValue.ortvalue_from_numpy(array)
                for name, array in zip(names, _zeros(stack), strict=True)
            }
            for _ in range(2)
        ]
        bindings = []
        for before, after in (places, places[::-1]):
            binding = session.io_binding()
            binding.bind_ortvalue_input("x", x)
            binding.bind_ortvalue_output("y", y)
            for name in names:
                binding.bind_ortvalue_input(name, before[name])
                binding.bind_ortvalue_output(f"{name}_new", after[name])
            bindings.append(binding)

        def step(now: np.ndarray) -> Any:
            x.update_inplace(now[None])
            session.run_with_iobinding(bindings[0])
            bindings.reverse()
            return y.numpy()[0]

        return step

    return {
        precision: {
            f"{words}, {threads} threads": lambda way=way, file=file, threads=threads: way(
                session_of(file, threads)
            )
            for threads in THREADS
            for words, way in (("run", run), ("IOBinding", bound))
        }
        for precision, file in (("float32", path), ("int8", small))
    }


def _output() -> np.ndarray:
    return np.zeros((1, OUTPUTS), np.float32)


def openvino_ways(stack: Stack, folder: Path) -> Ways:
    """OpenVINO: states returned, or kept as its own variables; float32, bfloat16 by its hint, int8 by nncf."""
    import openvino
    from openvino.passes import MakeStateful, Manager

    from benchmarks.generation.onnx import nncf_quantized, request_of

    core = openvino.Core()
    path = onnx_file(stack, folder)
    states = [f"{kind}{n}" for n in range(stack.layers) for kind in "hc"]
    # Realistic inputs and states, because nncf calibrates its ranges on them.
    rows, kept = [], dict(zip(states, _zeros(stack), strict=True))
    plain = core.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for x in np.random.default_rng(2).standard_normal((300, 1, 1, stack.units), np.float32):
        rows.append({"x": x, **kept})
        found = plain(rows[-1])
        kept = {name: np.array(found[1 + place]) for place, name in enumerate(states)}
    small = nncf_quantized(core.read_model(path), rows)
    made = {"float32": lambda: core.read_model(path), "int8": small.clone}
    if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        made["bfloat16"] = made["float32"]

    def handed(precision: str, threads: int) -> Step:
        request = request_of(core, made[precision](), precision, threads)
        kept = dict(zip(states, _zeros(stack), strict=True))

        def step(x: np.ndarray) -> Any:
            found = request.infer({"x": x[None], **kept}, share_inputs=True, share_outputs=True)
            for place, name in enumerate(states):
                kept[name] = np.array(found[1 + place])
            return np.array(found[0])[0]

        return step

    def stateful(precision: str, threads: int) -> Step:
        model = made[precision]()
        manager = Manager()
        manager.register_pass(MakeStateful({name: f"{name}_new" for name in states}))
        manager.run_passes(model)
        request = request_of(core, model, precision, threads)
        for state in request.query_state():
            state.state = openvino.Tensor(np.zeros((1, 1, stack.units), np.float32))

        def step(x: np.ndarray) -> Any:
            found = request.infer({"x": x[None]}, share_inputs=True, share_outputs=True)
            return np.array(found[0])[0]

        return step

    return {
        precision: {
            f"{words}, {threads} threads": lambda way=way, precision=precision, threads=threads: way(
                precision, threads
            )
            for threads in THREADS
            for words, way in (("states handed back", handed), ("its variables", stateful))
        }
        for precision in made
    }


def litert_ways(stack: Stack, folder: Path) -> Ways:
    """LiteRT with XNNPACK, from TensorFlow's converter: float32, and int8 weights by dynamic-range quantisation."""
    import tensorflow as tf

    from benchmarks.generation.runtimes import interpreted

    lstms = [[tf.constant(array) for array in arrays] for arrays in lstms_of(stack)]
    head, head_bias = (tf.constant(array) for array in head_of(stack))

    def step(x: Any, *states: Any) -> dict[str, Any]:
        after = []
        for (kernel, recurrent_kernel, bias), h, c in zip(lstms, states[::2], states[1::2], strict=True):
            z = tf.matmul(x, kernel) + tf.matmul(h, recurrent_kernel) + bias
            i, f, g, o = tf.split(z, 4, axis=-1)
            c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
            x = tf.sigmoid(o) * tf.tanh(c)
            after += [x, c]
        return {f"out{n}": one for n, one in enumerate([tf.matmul(x, head) + head_bias, *after])}

    names = ["x", *[f"{kind}{n}" for n in range(stack.layers) for kind in "hc"]]
    module = tf.Module()
    signature = [tf.TensorSpec((1, stack.units), tf.float32, name=name) for name in names]
    module.run = tf.function(step, input_signature=signature)
    path = str(folder / f"{stack.name}.savedmodel")
    tf.saved_model.save(module, path, signatures=module.run)

    def start(small: bool, threads: int) -> Step:
        run, states = interpreted(names, path, small, threads), [each[0] for each in _zeros(stack)]

        def one(x: np.ndarray) -> Any:
            y, *states[:] = run(x, *states)
            return y[0]

        return one

    return {
        precision: {
            f"{threads} threads": lambda small=precision == "int8", threads=threads: start(small, threads)
            for threads in THREADS
        }
        for precision in ("float32", "int8")
    }


def torch_ways(stack: Stack, folder: Path) -> Ways:
    """torch.nn.LSTM with its states, eager and compiled: float32, bfloat16, int8 by its dynamic quantisation."""
    import torch

    torch.set_grad_enabled(False)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(stack.units, stack.units, num_layers=stack.layers)
            self.head = torch.nn.Linear(stack.units, OUTPUTS)
            arrays: list[np.ndarray] = []
            for kernel, recurrent_kernel, bias in lstms_of(stack):
                arrays += [kernel.T, recurrent_kernel.T, bias, np.zeros_like(bias)]
            head, head_bias = head_of(stack)
            for parameter, array in zip(self.parameters(), [*arrays, head.T, head_bias], strict=True):
                parameter.copy_(torch.tensor(np.ascontiguousarray(array)))

        def forward(self, x: Any, h: Any, c: Any) -> Any:
            outputs, (h, c) = self.lstm(x, (h, c))
            return self.head(outputs[0]), h, c

    def start(network: Any, dtype: Any, compiles: bool, threads: int) -> Step:
        call = torch.compile(network) if compiles else network
        states = [torch.zeros((stack.layers, 1, stack.units), dtype=dtype) for _ in range(2)]

        def one(x: np.ndarray) -> Any:
            torch.set_num_threads(threads)
            y, *states[:] = call(torch.from_numpy(x)[None].to(dtype), *states)
            return y[0].float().numpy()

        return one

    small = torch.ao.quantization.quantize_dynamic(
        Network().eval(), {torch.nn.LSTM, torch.nn.Linear}, dtype=torch.qint8
    )
    networks = {
        "float32": (Network().eval(), torch.float32, (False, True)),
        "bfloat16": (Network().eval().to(torch.bfloat16), torch.bfloat16, (False, True)),
        "int8": (small, torch.float32, (False,)),
    }
    return {
        precision: {
            f"{'torch.compile' if compiles else 'as it is'}, {threads} threads": (
                lambda network=network, dtype=dtype, compiles=compiles, threads=threads: start(
                    network, dtype, compiles, threads
                )
            )
            for compiles in ways
            for threads in THREADS
        }
        for precision, (network, dtype, ways) in networks.items()
    }


CONTESTANTS: dict[str, Callable[[Stack, Path], Ways]] = {
    "cellerate": cellerate_ways,
    "litert": litert_ways,
    "onnxruntime": onnxruntime_ways,
    "openvino": openvino_ways,
    "torch": torch_ways,
}
