"""The peers of text generation that run ONNX: one graph each for a step, a sequence and a decoding loop."""

import contextlib
import functools
import itertools
import logging
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generation.peers import CHUNK, EMBEDDING, TEMPERATURE, Job, V, clocked, error_of
from benchmarks.generation.ways import THREADS, Jobs, Ways, jobs_of
from cellerate.machine.processor import describe

OPERATORS = ["LSTM", "MatMul"]
"""The operators of whole models that are quantised."""


def gates(array: np.ndarray) -> np.ndarray:
    """A kernel or a bias in ONNX's layout: the gates on the first axis, in ONNX's order."""
    i, f, c, o = np.split(array, 4, axis=-1)
    return np.ascontiguousarray(np.concatenate([i, o, f, c], axis=-1).T)[None]


def lstm_weights(kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
    """The inputs W, R and B of the node LSTM; its second bias is zero."""
    both = gates(bias)
    return {
        "W": gates(kernel),
        "R": gates(recurrent_kernel),
        "B": np.concatenate([both, np.zeros_like(both)], axis=1),
    }


def _weights_of(truth: Any) -> dict[str, np.ndarray]:
    return lstm_weights(truth["kernel"], truth["recurrent_kernel"], truth["bias"])


def as_model(graph: Any) -> Any:
    """Build the model in versions that all current runtimes read."""
    from onnx import helper

    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _value(name: str, shape: list[Any], kind: str = "FLOAT") -> Any:
    """An input or an output of a graph."""
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, getattr(TensorProto, kind), shape)


class _Graphs:
    """The model as graphs that share their nodes: ids (T,), h and c (1, H) → logits (T, V), h and c.

    Args:
        folder: The folder of the truth and of the files.
    """

    def __init__(self, folder: Path) -> None:
        from onnx import helper, numpy_helper

        truth = np.load(folder / "truth.npz")
        units = truth["h"].size
        weights = {
            "table": truth["table"],
            **_weights_of(truth),
            "head": truth["head"],
            "head_bias": truth["head_bias"],
            "middle": np.array([1], np.int64),
            "rows": np.array([-1, units], np.int64),
            "state": np.array([1, 1, units], np.int64),
            "flat": np.array([1, units], np.int64),
        }
        self._folder, self._units, self._node = folder, units, helper.make_node
        self._arrays = [numpy_helper.from_array(array, key) for key, array in weights.items()]
        self._state = [_value("h", [1, units]), _value("c", [1, units])]
        self._new = [_value("h_new", [1, units]), _value("c_new", [1, units])]
        node = helper.make_node
        self._core = [
            node("Gather", ["table", "ids"], ["embedded"]),
            node("Unsqueeze", ["embedded", "middle"], ["x"]),
            node("Reshape", ["h", "state"], ["h3"]),
            node("Reshape", ["c", "state"], ["c3"]),
            node("LSTM", ["x", "W", "R", "B", "", "h3", "c3"], ["y", "y_h", "y_c"], hidden_size=units),
            node("Reshape", ["y", "rows"], ["outputs"]),
            node("MatMul", ["outputs", "head"], ["product"]),
            node("Add", ["product", "head_bias"], ["logits"]),
            node("Reshape", ["y_h", "flat"], ["h_new"]),
            node("Reshape", ["y_c", "flat"], ["c_new"]),
        ]

    def step(self) -> Path:
        """The graph of a step: the logits, and the state after it."""
        inputs = [_value("ids", [1], "INT64"), *self._state]
        return self._saved("step", self._core, inputs, [_value("logits", [1, V]), *self._new], self._arrays)

    def sequence(self) -> Path:
        """The graph of a sequence: the log-likelihood of the next ids, and the state after it."""
        node = self._node
        judged = [
            *self._core,
            node("LogSoftmax", ["logits"], ["log_likelihoods"], axis=-1),
            node("Unsqueeze", ["next", "middle"], ["next_column"]),
            node("GatherElements", ["log_likelihoods", "next_column"], ["picked"], axis=1),
            node("ReduceSum", ["picked"], ["likelihood"], keepdims=0),
        ]
        inputs = [_value("ids", ["T"], "INT64"), _value("next", ["T"], "INT64"), *self._state]
        return self._saved("sequence", judged, inputs, [_value("likelihood", []), *self._new], self._arrays)

    def loop(self) -> Path:
        """The graph of a loop that draws `CHUNK` ids."""
        from onnx import numpy_helper

        node, units = self._node, self._units
        inputs = ["turns", "go_on", "first", "h0", "c0"]
        loop = node("Loop", inputs, ["last", "h_end", "c_end", "all"], body=self._body())
        # Draw all noise before the loop, because OpenVINO draws the same numbers in every iteration.
        drawing = [
            node("RandomUniform", [], ["uniform"], shape=[CHUNK, V], high=1.0, low=1e-7, seed=1.0),
            node("Log", ["uniform"], ["log_uniform"]),
            node("Neg", ["log_uniform"], ["exponential"]),
            node("Log", ["exponential"], ["noise"]),
        ]
        return self._saved(
            "loop",
            [*drawing, loop],
            [_value("h0", [1, units]), _value("c0", [1, units])],
            [_value("all", [CHUNK, 1], "INT64"), _value("h_end", [1, units]), _value("c_end", [1, units])],
            [
                numpy_helper.from_array(np.array(CHUNK, np.int64), "turns"),
                numpy_helper.from_array(np.array(True), "go_on"),
                numpy_helper.from_array(np.zeros(1, np.int64), "first"),
            ],
        )

    def _body(self) -> Any:
        """One iteration of the loop: the argmax of logits/temperature + Gumbel noise is a draw from the softmax."""
        from onnx import helper, numpy_helper

        node = self._node
        nodes = [
            *self._core,
            node("Gather", ["noise", "turn"], ["minus_gumbel"]),
            node("Mul", ["logits", "coldness"], ["scaled"]),
            node("Sub", ["scaled", "minus_gumbel"], ["noisy"]),
            node("ArgMax", ["noisy"], ["ids_new"], axis=1, keepdims=0),
            node("Identity", ["go"], ["go_new"]),
            node("Identity", ["ids_new"], ["drawn"]),
        ]
        inputs = [_value("turn", [], "INT64"), _value("go", [], "BOOL"), _value("ids", [1], "INT64")]
        outputs = [_value("go_new", [], "BOOL"), _value("ids_new", [1], "INT64")]
        coldness = numpy_helper.from_array(np.array(1 / TEMPERATURE, np.float32), "coldness")
        return helper.make_graph(
            nodes,
            "body",
            [*inputs, *self._state],
            [*outputs, *self._new, _value("drawn", [1], "INT64")],
            # The weights are inside the body, because ONNX Runtime's quantisation finds them only there.
            [*self._arrays, coldness],
        )

    def _saved(
        self, name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], held: list[Any]
    ) -> Path:
        import onnx

        model = as_model(onnx.helper.make_graph(nodes, name, inputs, outputs, held))
        onnx.checker.check_model(model)
        path = self._folder / f"whole-{name}.onnx"
        onnx.save(model, path)
        return path


def onnx_files(folder: Path) -> dict[str, Path]:
    """Write the model as ONNX: a step, a sequence with its likelihood, and a loop that draws."""
    graphs = _Graphs(folder)
    return {"step": graphs.step(), "sequence": graphs.sequence(), "loop": graphs.loop()}


def session_of(path: Path, threads: int) -> Any:
    """A session of ONNX Runtime on a number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def quantized(path: Path, into: Path, **options: Any) -> Path:
    """A model in int8 by ONNX Runtime's own dynamic quantisation, a scale a channel.

    Processors of x86 without VNNI add two products in 16 bits, which 8 bits exceed: there weights have 7, as ONNX
    Runtime advises.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    narrow = platform.machine() == "x86_64" and "VNNI" not in describe()
    # The tool advises to optimise the graph first, but ONNX Runtime does so when it loads the graph.
    logging.getLogger().setLevel(logging.ERROR)
    quantize_dynamic(
        path, into, weight_type=QuantType.QInt8, per_channel=True, reduce_range=narrow, **options
    )
    return into


def request_of(core: Any, model: Any, precision: str, threads: int) -> Any:
    """A request to an OpenVINO model, compiled for a number of threads, with the hint to compute in a precision."""
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
    }
    return core.compile_model(model, "CPU", settings).create_infer_request()


def onnxruntime_jobs(folder: Path) -> Jobs:
    """ONNX Runtime with the whole model: float32, and int8 by its own dynamic quantisation."""
    import onnxruntime

    files, inside = onnx_files(folder), {"EnableSubgraph": True}
    small = {
        name: quantized(
            path, folder / f"whole-{name}-int8.onnx", op_types_to_quantize=OPERATORS, extra_options=inside
        )
        for name, path in files.items()
    }

    def ways(paths: dict[str, Path], threads: int) -> Ways:
        step, sequence, loop = (session_of(paths[name], threads) for name in ("step", "sequence", "loop"))

        def one(ids: np.ndarray, h: Any, c: Any) -> Any:
            return step.run(None, {"ids": ids.astype(np.int64), "h": h, "c": c})

        def whole(ids: np.ndarray, after: np.ndarray) -> Any:
            zeros = np.zeros((1, sequence.get_inputs()[2].shape[-1]), np.float32)
            return sequence.run(["likelihood"], {"ids": ids, "next": after, "h": zeros, "c": zeros})[0]

        return Ways(one, whole, lambda h, c: loop.run(None, {"h0": h, "c0": c}))

    found = {
        precision: {threads: ways(paths, threads) for threads in THREADS}
        for precision, paths in (("float32", files), ("int8", small))
    }
    settings = (
        "all graph optimizations; int8 by quantize_dynamic, per channel; the loop is a Loop node that draws by "
        "Gumbel noise and ArgMax; no bfloat16 LSTM on CPUs"
    )
    about = {"version": onnxruntime.__version__, "settings": settings}
    jobs, about = jobs_of(found, np.load(folder / "truth.npz"), about)
    # ONNX Runtime's best case as well: the LSTM node alone, as "float32" and "int8".
    alone, about_alone = _node_jobs(folder)
    for key in ("errors", "ways"):
        about[key] |= about_alone[key]
    return jobs | alone, about


def _node_jobs(folder: Path) -> Jobs:
    """ONNX Runtime's best case: only its LSTM node, the same input at each step, without drawing."""
    import onnxruntime

    files = _node_files(folder)
    truth = np.load(folder / "truth.npz")
    jobs: dict[str, Job] = {}
    about: dict[str, Any] = {"version": onnxruntime.__version__, "errors": {}, "ways": {}}
    for precision, path in files.items():
        found: dict[str, tuple[float, Job]] = {}
        for threads, way in itertools.product(THREADS, (_feed, _bind)):
            session = session_of(path, threads)
            job = clocked(functools.partial(way, session, truth["x"][:1]))
            job(200)
            name = f"{threads} threads, {'IOBinding' if way is _bind else 'run'}"
            found[name] = (min(job(500)[0][0] for _ in range(3)), job)
        h = c = np.zeros((1, 1, truth["h"].size), np.float32)
        for x in truth["x"]:
            h, c = session.run(None, {"x": x[None, None], "h": h, "c": c})
        about["errors"][precision] = error_of(h[0, 0], truth["h"])
        about["ways"][precision] = min(found, key=lambda name: found[name][0])
        jobs[precision] = found[about["ways"][precision]][1]
    return jobs, about


def _feed(session: Any, x: np.ndarray, count: int) -> int:
    size = session.get_inputs()[1].shape[-1]
    x, h = x[None], np.zeros((1, 1, size), np.float32)
    c = h
    for _ in range(count):
        h, c = session.run(None, {"x": x, "h": h, "c": c})
    return count


def _bind(session: Any, x: np.ndarray, count: int) -> int:
    """Run with two state buffers that alternate as input and output."""
    from onnxruntime import OrtValue

    zeros = np.zeros((1, 1, session.get_inputs()[1].shape[-1]), np.float32)
    places = [{name: OrtValue.ortvalue_from_numpy(zeros) for name in "hc"} for _ in range(2)]
    bindings = []
    for before, after in (places, places[::-1]):
        binding = session.io_binding()
        binding.bind_cpu_input("x", x[None])
        for name in "hc":
            binding.bind_ortvalue_input(name, before[name])
            binding.bind_ortvalue_output(f"{name}_new", after[name])
        bindings.append(binding)
    for place in range(count):
        session.run_with_iobinding(bindings[place % 2])
    return count


def _node_files(folder: Path) -> dict[str, Path]:
    """The node as a model, in float32 and by ONNX Runtime's own quantisation."""
    import onnx
    from onnx import helper

    truth = np.load(folder / "truth.npz")
    units = truth["h"].size
    inputs = ["x", "W", "R", "B", "", "h", "c"]
    node = helper.make_node("LSTM", inputs, ["", "h_new", "c_new"], hidden_size=units)
    graph = helper.make_graph(
        [node],
        "lstm",
        [_value(name, [1, 1, width]) for name, width in (("x", EMBEDDING), ("h", units), ("c", units))],
        [_value(name, [1, 1, units]) for name in ("h_new", "c_new")],
        [onnx.numpy_helper.from_array(array, name) for name, array in _weights_of(truth).items()],
    )
    path = folder / "float32.onnx"
    onnx.save(as_model(graph), path)
    return {"float32": path, "int8": quantized(path, folder / "int8.onnx")}


def _quantized(core: Any, files: dict[str, Path], truth: Any) -> dict[str, Any]:
    """The graphs of a step and a sequence in int8, by nncf, calibrated on the text of the check.

    Raises:
        ImportError: nncf is not installed.
    """
    ids, after = truth["text"][:-1], truth["text"][1:]
    zeros = np.zeros((1, truth["h"].size), np.float32)
    step = core.compile_model(files["step"], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    steps, h, c = [], zeros, zeros
    for one in ids[:300]:
        steps.append({"ids": one[None].astype(np.int64), "h": h, "c": c})
        found = step(steps[-1])
        h, c = np.array(found[1]), np.array(found[2])
    whole = [{"ids": ids.astype(np.int64), "next": after.astype(np.int64), "h": zeros, "c": zeros}]
    return {
        name: nncf_quantized(core.read_model(files[name]), given)
        for name, given in (("step", steps), ("sequence", whole))
    }


def nncf_quantized(model: Any, given: list[dict[str, np.ndarray]]) -> Any:
    """An OpenVINO model in int8, by nncf, calibrated on some inputs.

    Raises:
        ImportError: nncf is not installed.
    """
    with contextlib.redirect_stdout(sys.stderr):
        import nncf
        from openvino.passes import ConstantFolding, Manager

        # Otherwise nncf takes the weights, which OpenVINO reorders, for activations, and the LSTM stays
        # in float32. It also stays in float32 without the preset's asymmetric activations.
        passes = Manager()
        passes.register_pass(ConstantFolding())
        passes.run_passes(model)
        preset = nncf.QuantizationPreset.MIXED
        return nncf.quantize(model, nncf.Dataset(given), preset=preset, subset_size=len(given))


def _openvino_ways(
    core: Any, models: dict[str, Any], precision: str, threads: int, left_out: dict[str, str]
) -> Ways:
    """The calls of OpenVINO in a precision; a loop that it cannot run goes into `left_out` with the reason."""

    def run(request: Any, given: dict[str, Any]) -> list[Any]:
        found = request.infer(given, share_inputs=True, share_outputs=True)
        return [np.array(found[place]) for place in range(len(found))]

    step, sequence = (request_of(core, models[name], precision, threads) for name in ("step", "sequence"))
    zeros = np.zeros((1, models["step"].input("h").shape[1]), np.float32)

    def one(ids: np.ndarray, h: Any, c: Any) -> Any:
        return run(step, {"ids": ids.astype(np.int64), "h": h, "c": c})

    def whole(ids: np.ndarray, after: np.ndarray) -> Any:
        return run(sequence, {"ids": ids, "next": after, "h": zeros, "c": zeros})[0]

    if "loop" not in models:
        left_out[f"loop {precision}"] = "nncf does not reach into the body of a loop"
        return Ways(one, whole)
    try:
        request = request_of(core, models["loop"], precision, threads)
        run(request, {"h0": zeros, "c0": zeros})
    except RuntimeError as error:
        left_out[f"loop {precision}"] = str(error).strip().splitlines()[-1][:200]
        return Ways(one, whole)
    return Ways(one, whole, lambda h, c: run(request, {"h0": h, "c0": c}))


def openvino_jobs(folder: Path) -> Jobs:
    """OpenVINO with the same graphs, in float32, with the hint to compute in bfloat16, and quantised by nncf."""
    import openvino

    core, files = openvino.Core(), onnx_files(folder)
    truth = np.load(folder / "truth.npz")
    left_out: dict[str, str] = {}
    plain = {name: core.read_model(path) for name, path in files.items()}
    models = {"float32": plain}
    if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        models["bfloat16"] = plain
    else:
        left_out["bfloat16"] = "OpenVINO finds no bfloat16 instructions on this CPU"
    try:
        models["int8"] = _quantized(core, files, truth)
    except ImportError as error:
        left_out["int8"] = f"OpenVINO quantises by nncf: {error}"
    found = {
        precision: {threads: _openvino_ways(core, mine, precision, threads, left_out) for threads in THREADS}
        for precision, mine in models.items()
    }
    settings = (
        "hint LATENCY; bfloat16 by the hint of inference precision; int8 by nncf.quantize, preset MIXED, calibrated on "
        "the text; the loop is ONNX's Loop node"
    )
    about = {"version": openvino.__version__, "left_out": left_out, "settings": settings}
    return jobs_of(found, truth, about)
