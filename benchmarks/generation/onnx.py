"""The peers of text generation that run ONNX: the model as one graph each of a step, a sequence and a decoding loop."""

import contextlib
import functools
import itertools
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generation.peers import CHUNK, EMBEDDING, TEMPERATURE, Job, V, clocked, error_of
from benchmarks.generation.ways import THREADS, Jobs, Ways, jobs_of


def gates(array: np.ndarray) -> np.ndarray:
    """A kernel, or a bias, as ONNX wants it: the gates first, in its own order."""
    i, f, c, o = np.split(array, 4, axis=-1)
    return np.ascontiguousarray(np.concatenate([i, o, f, c], axis=-1).T)[None]


def _lstm_weights(truth: Any) -> dict[str, np.ndarray]:
    """The inputs W, R and B of the node LSTM; its second bias is zero."""
    bias = gates(truth["bias"])
    return {
        "W": gates(truth["kernel"]),
        "R": gates(truth["recurrent_kernel"]),
        "B": np.concatenate([bias, np.zeros_like(bias)], axis=1),
    }


def as_model(graph: Any) -> Any:
    """In versions that every runtime of these years reads."""
    from onnx import helper

    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def onnx_files(folder: Path) -> dict[str, Path]:
    """The model as ONNX: a step or a sequence ("step"), one with its likelihood ("sequence"), the loop ("loop")."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    truth = np.load(folder / "truth.npz")
    units = truth["h"].size

    weights = {
        "table": truth["table"],
        **_lstm_weights(truth),
        "head": truth["head"],
        "head_bias": truth["head_bias"],
        "middle": np.array([1], np.int64),
        "rows": np.array([-1, units], np.int64),
        "state": np.array([1, 1, units], np.int64),
        "flat": np.array([1, units], np.int64),
    }
    node = helper.make_node
    # ids (T,), h and c (1, H) → logits (T, V), h and c.
    core = [
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

    def value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, shape)

    arrays = [numpy_helper.from_array(array, key) for key, array in weights.items()]

    def save(name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], held: list[Any]) -> Path:
        graph = helper.make_graph(nodes, name, inputs, outputs, held)
        model = as_model(graph)
        onnx.checker.check_model(model)
        path = folder / f"whole-{name}.onnx"
        onnx.save(model, path)
        return path

    state = [value("h", [1, units]), value("c", [1, units])]
    new = [value("h_new", [1, units]), value("c_new", [1, units])]
    files = {}
    for name, length in (("step", 1), ("sequence", None)):
        length = length or "T"
        ids = value("ids", [length], TensorProto.INT64)
        if name == "step":
            files[name] = save(name, core, [ids, *state], [value("logits", [1, V]), *new], arrays)
            continue
        judged = [
            *core,
            node("LogSoftmax", ["logits"], ["log_likelihoods"], axis=-1),
            node("Unsqueeze", ["next", "middle"], ["next_column"]),
            node("GatherElements", ["log_likelihoods", "next_column"], ["picked"], axis=1),
            node("ReduceSum", ["picked"], ["likelihood"], keepdims=0),
        ]
        after = value("next", [length], TensorProto.INT64)
        files[name] = save(name, judged, [ids, after, *state], [value("likelihood", []), *new], arrays)
    # The largest of logits/temperature + Gumbel noise is a draw from the softmax.
    body_nodes = [
        *core,
        node("Gather", ["noise", "turn"], ["minus_gumbel"]),
        node("Mul", ["logits", "coldness"], ["scaled"]),
        node("Sub", ["scaled", "minus_gumbel"], ["noisy"]),
        node("ArgMax", ["noisy"], ["ids_new"], axis=1, keepdims=0),
        node("Identity", ["go"], ["go_new"]),
        node("Identity", ["ids_new"], ["drawn"]),
    ]
    ids = value("ids", [1], TensorProto.INT64)
    body = helper.make_graph(
        body_nodes,
        "body",
        [value("turn", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), ids, *state],
        [
            value("go_new", [], TensorProto.BOOL),
            value("ids_new", [1], TensorProto.INT64),
            *new,
            value("drawn", [1], TensorProto.INT64),
        ],
        # Inside the body, for there alone ONNX Runtime's quantisation finds them.
        [*arrays, numpy_helper.from_array(np.array(1 / TEMPERATURE, np.float32), "coldness")],
    )
    loop = node("Loop", ["turns", "go_on", "first", "h0", "c0"], ["last", "h_end", "c_end", "all"], body=body)
    # All of the noise beforehand: OpenVINO draws the same numbers in every turn of a loop.
    drawing = [
        node("RandomUniform", [], ["uniform"], shape=[CHUNK, V], high=1.0, low=1e-7, seed=1.0),
        node("Log", ["uniform"], ["log_uniform"]),
        node("Neg", ["log_uniform"], ["exponential"]),
        node("Log", ["exponential"], ["noise"]),
    ]
    files["loop"] = save(
        "loop",
        [*drawing, loop],
        [value("h0", [1, units]), value("c0", [1, units])],
        [
            value("all", [CHUNK, 1], TensorProto.INT64),
            value("h_end", [1, units]),
            value("c_end", [1, units]),
        ],
        [
            numpy_helper.from_array(np.array(CHUNK, np.int64), "turns"),
            numpy_helper.from_array(np.array(True), "go_on"),
            numpy_helper.from_array(np.zeros(1, np.int64), "first"),
        ],
    )
    return files


def onnxruntime_jobs(folder: Path) -> Jobs:
    """ONNX Runtime with the whole model: float32, and int8 by its own dynamic quantisation."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    files = onnx_files(folder)
    # It advises to optimise the graph first, which it does itself when it loads it.
    logging.getLogger().setLevel(logging.ERROR)
    small = {}
    for name, path in files.items():
        small[name] = folder / f"whole-{name}-int8.onnx"
        quantize_dynamic(
            path,
            small[name],
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["LSTM", "MatMul"],
            extra_options={"EnableSubgraph": True},
        )

    def ways(paths: dict[str, Path], threads: int) -> Ways:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        step, sequence, loop = (
            onnxruntime.InferenceSession(paths[name], options, providers=["CPUExecutionProvider"])
            for name in ("step", "sequence", "loop")
        )

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
    # Its best case, too: the LSTM node alone, "float32" and "int8".
    alone, about_alone = _node_jobs(folder)
    for key in ("errors", "ways"):
        about[key] |= about_alone[key]
    return jobs | alone, about


def _node_jobs(folder: Path) -> Jobs:
    """ONNX Runtime's best case: its LSTM node alone, the same input at each step, nothing drawn."""
    import onnxruntime

    files = _node_files(folder)
    truth = np.load(folder / "truth.npz")
    jobs: dict[str, Job] = {}
    about: dict[str, Any] = {"version": onnxruntime.__version__, "errors": {}, "ways": {}}
    for precision, path in files.items():
        found: dict[str, tuple[float, Job]] = {}
        for threads, way in itertools.product(THREADS, (_feed, _bind)):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
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
    """With the state in two places that are read and written in turn."""
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
    from onnx import TensorProto, helper
    from onnxruntime.quantization import QuantType, quantize_dynamic

    truth = np.load(folder / "truth.npz")

    units = truth["h"].size

    def value(name: str, width: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 1, width))

    inputs = ["x", "W", "R", "B", "", "h", "c"]
    node = helper.make_node("LSTM", inputs, ["", "h_new", "c_new"], hidden_size=units)
    graph = helper.make_graph(
        [node],
        "lstm",
        [value("x", EMBEDDING), value("h", units), value("c", units)],
        [value("h_new", units), value("c_new", units)],
        [onnx.numpy_helper.from_array(array, name) for name, array in _lstm_weights(truth).items()],
    )
    files = {precision: folder / f"{precision}.onnx" for precision in ("float32", "int8")}
    onnx.save(as_model(graph), files["float32"])
    # It advises to optimise the graph first; of one node there is nothing to optimise.
    logging.getLogger().setLevel(logging.ERROR)
    quantize_dynamic(files["float32"], files["int8"], weight_type=QuantType.QInt8, per_channel=True)
    return files


def _quantized(core: Any, files: dict[str, Path], truth: Any) -> dict[str, Any]:
    """The graphs of a step and a sequence in int8, by nncf, calibrated on the text that is judged later.

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
    """A model of OpenVINO's in int8, by nncf, calibrated on some inputs.

    Raises:
        ImportError: nncf is not installed.
    """
    with contextlib.redirect_stdout(sys.stderr):
        import nncf
        from openvino.passes import ConstantFolding, Manager

        # Else nncf takes the weights, which OpenVINO puts into its own order, for what is computed, and the LSTM stays
        # in float32; it does, too, without the preset's asymmetric activations.
        passes = Manager()
        passes.register_pass(ConstantFolding())
        passes.run_passes(model)
        preset = nncf.QuantizationPreset.MIXED
        return nncf.quantize(model, nncf.Dataset(given), preset=preset, subset_size=len(given))


def openvino_jobs(folder: Path) -> Jobs:
    """OpenVINO with the same graphs, in float32, with the hint to compute in bfloat16, and quantised by nncf."""
    import openvino

    core, files = openvino.Core(), onnx_files(folder)
    truth = np.load(folder / "truth.npz")
    left_out: dict[str, str] = {}
    models = {name: core.read_model(path) for name, path in files.items()}
    quantized: dict[str, Any] = {}

    def ways(precision: str, threads: int) -> Ways:
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bfloat16" else "f32",
        }
        mine = quantized if precision == "int8" else models

        def compiled(name: str) -> Any:
            return core.compile_model(mine[name], "CPU", settings).create_infer_request()

        def run(request: Any, given: dict[str, Any]) -> list[Any]:
            found = request.infer(given, share_inputs=True, share_outputs=True)
            return [np.array(found[place]) for place in range(len(found))]

        step, sequence = compiled("step"), compiled("sequence")

        def one(ids: np.ndarray, h: Any, c: Any) -> Any:
            return run(step, {"ids": ids.astype(np.int64), "h": h, "c": c})

        zeros = np.zeros((1, truth["h"].size), np.float32)

        def whole(ids: np.ndarray, after: np.ndarray) -> Any:
            return run(sequence, {"ids": ids, "next": after, "h": zeros, "c": zeros})[0]

        loop: Callable[..., Any] | None = None
        if "loop" not in mine:
            left_out[f"loop {precision}"] = "nncf does not reach into the body of a loop"
            return Ways(one, whole)
        try:
            request = compiled("loop")
            run(request, {"h0": zeros, "c0": zeros})

            def loop(h: Any, c: Any) -> Any:
                return run(request, {"h0": h, "c0": c})

        except RuntimeError as error:
            left_out[f"loop {precision}"] = str(error).strip().splitlines()[-1][:200]
        return Ways(one, whole, loop)

    precisions = ["float32"]
    if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        precisions.append("bfloat16")
    else:
        left_out["bfloat16"] = "OpenVINO finds no bfloat16 instructions on this CPU"
    try:
        quantized |= _quantized(core, files, truth)
        precisions.append("int8")
    except ImportError as error:
        left_out["int8"] = f"OpenVINO quantises by nncf: {error}"
    found = {
        precision: {threads: ways(precision, threads) for threads in THREADS} for precision in precisions
    }
    settings = (
        "hint LATENCY; bfloat16 by the hint of inference precision; int8 by nncf.quantize, preset MIXED, calibrated on "
        "the text; the loop is ONNX's Loop node"
    )
    about = {"version": openvino.__version__, "left_out": left_out, "settings": settings}
    return jobs_of(found, truth, about)
