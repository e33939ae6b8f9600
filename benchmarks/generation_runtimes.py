"""The peers of text generation that are no Keras: ONNX Runtime, OpenVINO, LiteRT, and torch for oneDNN's LSTM.

A module of its own because each runs one graph that says what the model computes: the same step, the same whole
sequence and the same decoding loop, by the runtime's own means. Each tries one thread and two, and keeps the faster.
"""

import functools
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contest import RefusedError
from generation_peers import (
    CHUNK,
    EMBEDDING,
    TEMPERATURE,
    TEXT,
    Job,
    V,
    clocked,
    error_of,
    in_chunks,
    one_by_one,
    onnx_jobs,
)

THREADS = (1, 2)
Jobs = tuple[dict[str, Job], dict[str, Any]]


class Ways(NamedTuple):
    """What a runtime does with one precision and number of threads; each is one call.

    Attributes:
        step: ids (1,), h, c → logits (1, V), h, c.
        sequence: ids (T,), the ids that follow (T,) → the sum of their log-likelihoods, from a state of zeros.
        loop: h, c → `CHUNK` ids drawn by the graph itself, h, c.
    """

    step: Callable[..., Any] | None = None
    sequence: Callable[..., Any] | None = None
    loop: Callable[..., Any] | None = None


def jobs_of(ways: dict[str, dict[int, Ways]], truth: Any, about: dict[str, Any]) -> Jobs:
    """The jobs of each precision, each with the number of threads that is faster here, and their errors.

    Args:
        ways: By precision and number of threads.
        truth: What float64 says.
        about: Gets "errors" and "ways" added.
    """
    jobs: dict[str, Job] = {}
    about |= {"errors": {}, "ways": {}}
    zeros = [np.zeros((1, truth["h"].size), np.float32)] * 2
    for precision, by_threads in ways.items():
        found: dict[str, dict[int, Job]] = {}
        for threads, way in by_threads.items():
            for kind, job in _jobs(way, truth, zeros).items():
                found.setdefault(kind, {})[threads] = job
        for kind, choices in found.items():
            name = f"{kind} {precision}"
            quick = {threads: _seconds(job) for threads, job in choices.items()}
            threads = min(quick, key=quick.__getitem__)
            jobs[name] = choices[threads]
            about["ways"][name] = f"{threads} thread{'s' * (threads > 1)}"
            about["errors"][name] = _error(kind, by_threads[threads], truth, zeros)
    return jobs, about


def _jobs(ways: Ways, truth: Any, zeros: list[Any]) -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    if ways.step:
        jobs["logits"] = functools.partial(one_by_one, ways.step, zeros, False)
        jobs["draw"] = functools.partial(one_by_one, ways.step, zeros, True)
    if ways.sequence:
        jobs["sequence"] = functools.partial(
            sequences, functools.partial(ways.sequence, truth["text"][:-1], truth["text"][1:])
        )
    if ways.loop:
        jobs["loop"] = clocked(functools.partial(in_chunks, ways.loop, zeros))
    return jobs


def sequences(judge: Callable[[], Any], count: int) -> tuple[list[float], int]:
    """Judges the text as often as makes `count` characters; the seconds of each call, and its characters."""
    seconds = []
    for _ in range(max(1, count // TEXT)):
        start = time.perf_counter()
        judge()
        seconds.append(time.perf_counter() - start)
    return seconds, TEXT


def _seconds(job: Job) -> float:
    """A character's, of the fastest of a few short turns."""
    seconds, made = job(16)
    # A slow one is known after fewer characters.
    count = max(16, min(400, round(0.1 * made / min(seconds))))
    return min(min(job(count)[0]) / made for _ in range(3))


def _error(kind: str, ways: Ways, truth: Any, zeros: list[Any]) -> float:
    if kind == "sequence":
        assert ways.sequence
        found = ways.sequence(truth["text"][:-1], truth["text"][1:])
        return error_of(np.asarray(found, np.float64).reshape(()), truth["likelihood"])
    assert ways.step
    if kind == "loop":
        assert ways.loop
        return error_of_loop(ways.loop, ways.step, zeros)
    return error_of(np.asarray(read(ways.step, truth["ids"], zeros)[0])[0], truth["logits"])


def read(step: Callable[..., Any], ids: Any, state: list[Any]) -> list[Any]:
    """The logits and the state after the last of `ids`."""
    logits: Any = None
    for number in ids:
        logits, *state = step(np.array([number], np.int32), *state)
    return [logits, *state]


def error_of_loop(loop: Callable[..., Any], step: Callable[..., Any], state: list[Any]) -> float:
    """What a loop drew, read again step by step, must lead to the same state; and draws must not be all one id.

    Returns:
        The error of h; infinity if what was drawn are no draws.
    """
    drawn, h, _ = loop(*state)
    ids = np.asarray(drawn).reshape(-1)
    if len(ids) != CHUNK or len(set(ids.tolist())) < V // 4 or not (0 <= ids.min() <= ids.max() < V):
        return float("inf")
    return error_of(np.asarray(h), np.asarray(read(step, [0, *ids[:-1]], state)[1]))


def onnx_files(folder: Path) -> dict[str, Path]:
    """The model as ONNX: a step or a sequence ("step"), one with its likelihood ("sequence"), the loop ("loop")."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    truth = np.load(folder / "truth.npz")
    units = truth["h"].size

    def gates(array: np.ndarray) -> np.ndarray:
        i, f, c, o = np.split(array, 4, axis=-1)
        return np.ascontiguousarray(np.concatenate([i, o, f, c], axis=-1).T)[None]

    weights = {
        "table": truth["table"],
        "W": gates(truth["kernel"]),
        "R": gates(truth["recurrent_kernel"]),
        "B": np.concatenate([gates(truth["bias"]), np.zeros((1, 4 * units), np.float32)], axis=1),
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
        # Versions that every runtime of these years reads.
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
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
    alone, about_alone = onnx_jobs(folder)
    for key in ("errors", "ways"):
        about[key] |= about_alone[key]
    return jobs | alone, about


def openvino_jobs(folder: Path) -> Jobs:
    """OpenVINO with the same graphs, in float32 and with the hint to compute in bfloat16."""
    import openvino

    core, files = openvino.Core(), onnx_files(folder)
    left_out: dict[str, str] = {}

    def ways(precision: str, threads: int) -> Ways:
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        }

        def compiled(name: str) -> Any:
            return core.compile_model(core.read_model(files[name]), "CPU", settings).create_infer_request()

        def run(request: Any, given: dict[str, Any]) -> list[Any]:
            found = request.infer(given, share_inputs=True, share_outputs=True)
            return [np.array(found[place]) for place in range(len(found))]

        step, sequence = compiled("step"), compiled("sequence")

        def one(ids: np.ndarray, h: Any, c: Any) -> Any:
            return run(step, {"ids": ids.astype(np.int64), "h": h, "c": c})

        units = np.load(folder / "truth.npz")["h"].size

        def whole(ids: np.ndarray, after: np.ndarray) -> Any:
            zeros = np.zeros((1, units), np.float32)
            return run(sequence, {"ids": ids, "next": after, "h": zeros, "c": zeros})[0]

        loop: Callable[..., Any] | None = None
        try:
            request = compiled("loop")
            zeros = np.zeros((1, units), np.float32)
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
    found = {
        precision: {threads: ways(precision, threads) for threads in THREADS} for precision in precisions
    }
    left_out["int8"] = "not tried: OpenVINO quantises by nncf, which the group `bench` does not hold"
    settings = "hint LATENCY; bfloat16 by the hint of inference precision; the loop is ONNX's Loop node"
    about = {"version": openvino.__version__, "left_out": left_out, "settings": settings}
    return jobs_of(found, np.load(folder / "truth.npz"), about)


def litert_jobs(folder: Path) -> Jobs:
    """LiteRT with XNNPACK, from TensorFlow's converter: float32, and int8 weights by its dynamic-range quantisation."""
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    truth = np.load(folder / "truth.npz")
    units = truth["h"].size
    kept = {
        name: tf.constant(truth[name], tf.float32)
        for name in ("table", "kernel", "recurrent_kernel", "bias", "head", "head_bias")
    }

    def gates(z: Any, c: Any) -> Any:
        i, f, g, o = tf.split(z, 4, axis=-1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(c), c

    def step(ids: Any, h: Any, c: Any) -> Any:
        x = tf.gather(kept["table"], ids)
        z = tf.matmul(x, kept["kernel"]) + tf.matmul(h, kept["recurrent_kernel"]) + kept["bias"]
        h, c = gates(z, c)
        return tf.matmul(h, kept["head"]) + kept["head_bias"], h, c

    def sequence(ids: Any, after: Any) -> Any:
        inputs = tf.matmul(tf.gather(kept["table"], ids), kept["kernel"]) + kept["bias"]

        def body(turn: Any, h: Any, c: Any, likelihood: Any) -> Any:
            h, c = gates(tf.gather(inputs, [turn]) + tf.matmul(h, kept["recurrent_kernel"]), c)
            judged = tf.nn.log_softmax(tf.matmul(h, kept["head"]) + kept["head_bias"])
            return turn + 1, h, c, likelihood + tf.gather(judged[0], tf.gather(after, turn))

        zeros = tf.zeros((1, units))
        *_, likelihood = tf.while_loop(lambda turn, *_: turn < TEXT, body, (0, zeros, zeros, tf.zeros(())))
        return (likelihood,)

    def loop(h: Any, c: Any) -> Any:
        noise = -tf.math.log(-tf.math.log(tf.random.uniform((CHUNK, V), 1e-7, 1.0)))

        def body(turn: Any, ids: Any, h: Any, c: Any, drawn: Any) -> Any:
            logits, h, c = step(ids, h, c)
            ids = tf.cast(tf.argmax(logits / TEMPERATURE + tf.gather(noise, [turn]), -1), tf.int32)
            return turn + 1, ids, h, c, tf.tensor_scatter_nd_update(drawn, [[turn]], ids)

        given = (0, tf.zeros(1, tf.int32), h, c, tf.zeros(CHUNK, tf.int32))
        _, _, h, c, drawn = tf.while_loop(lambda turn, *_: turn < CHUNK, body, given)
        return drawn, h, c

    state = [tf.TensorSpec((1, units), tf.float32, name=name) for name in "hc"]
    text = [tf.TensorSpec((TEXT,), tf.int32, name=name) for name in ("ids", "after")]
    ids = tf.TensorSpec((1,), tf.int32, name="ids")
    saved = {}

    def named(work: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
        return lambda *given: {f"out{place}": one for place, one in enumerate(work(*given))}

    for work, takes in ((step, [ids, *state]), (sequence, text), (loop, state)):
        module = tf.Module()
        module.run = tf.function(named(work), input_signature=takes)
        saved[work.__name__] = [one.name for one in takes], str(folder / f"{work.__name__}.savedmodel")
        tf.saved_model.save(module, saved[work.__name__][1], signatures=module.run)

    def interpreted(name: str, small: bool, threads: int) -> Callable[..., Any]:
        takes, path = saved[name]
        converter = tf.lite.TFLiteConverter.from_saved_model(path)
        if small:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        interpreter = Interpreter(model_content=converter.convert(), num_threads=threads)
        interpreter.allocate_tensors()
        # By their places: a signature's runner looks its names up at every call.
        runner = interpreter.get_signature_runner()
        places = {one: about["index"] for one, about in runner.get_input_details().items()}
        given = [places[one] for one in takes]
        made = [about["index"] for _, about in sorted(runner.get_output_details().items())]

        def run(*arrays: Any) -> Any:
            for place, array in zip(given, arrays, strict=True):
                interpreter.set_tensor(place, array)
            interpreter.invoke()
            return [interpreter.get_tensor(place) for place in made]

        return run

    def ways(small: bool, threads: int) -> Ways:
        one, whole, drawn = (interpreted(name, small, threads) for name in ("step", "sequence", "loop"))
        return Ways(one, lambda ids, after: whole(ids.astype(np.int32), after.astype(np.int32))[0], drawn)

    found = {
        precision: {threads: ways(precision == "int8", threads) for threads in THREADS}
        for precision in ("float32", "int8")
    }
    settings = (
        "XNNPACK; int8 weights by the converter's dynamic-range quantisation; sequence and loop are a WHILE"
    )
    about = {"version": metadata.version("ai-edge-litert"), "settings": settings}
    return jobs_of(found, truth, about)


def torch_jobs(folder: Path) -> Jobs:
    """OneDNN's LSTM primitive, as torch.nn.LSTM calls it when it need not differentiate: float32 and bfloat16."""
    import torch

    truth = np.load(folder / "truth.npz")
    units = truth["h"].size
    embedding = torch.nn.Embedding(V, EMBEDDING)
    lstm = torch.nn.LSTM(EMBEDDING, units, batch_first=True)
    dense = torch.nn.Linear(units, V)
    given = (
        (embedding.weight, truth["table"]),
        (lstm.weight_ih_l0, truth["kernel"].T),
        (lstm.weight_hh_l0, truth["recurrent_kernel"].T),
        (lstm.bias_ih_l0, truth["bias"]),
        (lstm.bias_hh_l0, np.zeros(4 * units, np.float32)),
        (dense.weight, truth["head"].T),
        (dense.bias, truth["head_bias"]),
    )
    torch.set_grad_enabled(False)
    for parameter, array in given:
        parameter.copy_(torch.tensor(np.ascontiguousarray(array)))
    model = torch.nn.ModuleDict({"embedding": embedding, "lstm": lstm, "dense": dense})

    def ways(dtype: Any, threads: int) -> Ways:
        import copy

        # The weights in bfloat16 too: autocast would round them again at every call.
        mine = copy.deepcopy(model).to(dtype)

        def outputs(ids: Any, h: Any, c: Any) -> Any:
            y, (h, c) = mine["lstm"](mine["embedding"](ids)[None], (h[None], c[None]))
            return mine["dense"](y[0]), h[0], c[0]

        def one(ids: np.ndarray, h: Any, c: Any) -> Any:
            torch.set_num_threads(threads)
            h, c = (
                torch.as_tensor(np.asarray(state) if not torch.is_tensor(state) else state)
                for state in (h, c)
            )
            logits, h, c = outputs(torch.from_numpy(ids), h.to(dtype), c.to(dtype))
            return logits.float().numpy(), h, c

        def whole(ids: np.ndarray, after: np.ndarray) -> Any:
            torch.set_num_threads(threads)
            zeros = torch.zeros((1, units), dtype=dtype)
            logits = outputs(torch.from_numpy(ids), zeros, zeros)[0].float()
            picked = logits.log_softmax(-1).gather(1, torch.from_numpy(after)[:, None])
            return picked.sum().item()

        return Ways(one, whole)

    types = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    found = {name: {threads: ways(dtype, threads) for threads in THREADS} for name, dtype in types.items()}
    about = {
        "version": torch.__version__,
        "left_out": {
            "int8": "torch hands oneDNN no int8 LSTM: its quantised LSTM is other code",
            "loop": "torch has no loop around oneDNN's LSTM but Python's",
        },
        "settings": "torch.nn.LSTM without gradients, weights in the precision of the row, which oneDNN computes",
        "primitive": onednn_calls(),
    }
    return jobs_of(found, truth, about)


_SAY_PRIMITIVES = """
import torch
x, lstm = torch.randn(4, 8, 64), torch.nn.LSTM(64, 128, batch_first=True)
with torch.inference_mode():
    lstm(x)
    lstm.bfloat16()(x.bfloat16())
"""


def onednn_calls(source: str = _SAY_PRIMITIVES) -> list[str]:
    """What oneDNN says that torch had it compute of an LSTM: its code and the pass, for example "brgemm:avx512_core".

    Raises:
        RuntimeError: oneDNN computed none: then the contestant is not what its name says.
    """
    done = subprocess.run(
        [sys.executable, "-c", source],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"ONEDNN_VERBOSE": "1"},
    )
    lines = (line.split(",") for line in done.stdout.splitlines() if ",exec,cpu,rnn," in line)
    found = dict.fromkeys(f"{fields[6]}, {fields[7]}" for fields in lines)
    if not found:
        raise RuntimeError("torch.nn.LSTM did not reach oneDNN's LSTM primitive on this machine.")
    return list(found)


RUNTIMES: dict[str, Callable[[Path], Jobs]] = {
    "onnxruntime": onnxruntime_jobs,
    "openvino": openvino_jobs,
    "litert": litert_jobs,
    "onednn": torch_jobs,
}


def runtime_jobs(folder: Path, name: str) -> Jobs:
    """The jobs of a runtime. Raises `RefusedError` where it is not installed."""
    try:
        return RUNTIMES[name](folder)
    except ImportError as error:
        raise RefusedError(f"{error}: pip install --group bench") from None
