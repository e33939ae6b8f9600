"""The peers of text generation besides Keras: ONNX Runtime, OpenVINO, LiteRT, and torch for oneDNN's LSTM.

Each runs graphs of the model (the same step, the same whole sequence and the same decoding loop) by its own means,
tries one thread and two, and keeps the faster.
"""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.generation.onnx import onnxruntime_jobs, openvino_jobs
from benchmarks.generation.peers import CHUNK, EMBEDDING, TEMPERATURE, TEXT, V
from benchmarks.generation.ways import THREADS, Jobs, Ways, jobs_of
from benchmarks.processes import RefusedError
from benchmarks.training.onednn import onednn_calls


def _saved_functions(truth: Any, folder: Path) -> dict[str, tuple[list[str], str]]:
    """The names of the inputs, and the SavedModel, of a step, a sequence and a loop that draws."""
    import tensorflow as tf

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
    return saved


def interpreted(takes: list[str], path: str, small: bool, threads: int) -> Callable[..., Any]:
    """A saved function, converted and interpreted on a number of threads."""
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    converter = tf.lite.TFLiteConverter.from_saved_model(path)
    if small:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    interpreter = Interpreter(model_content=converter.convert(), num_threads=threads)
    interpreter.allocate_tensors()
    # Inputs go by position, because a signature's runner looks up names in every call.
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


def litert_jobs(folder: Path) -> Jobs:
    """LiteRT with XNNPACK, from TensorFlow's converter: float32, and int8 weights by its dynamic-range quantisation."""
    truth = np.load(folder / "truth.npz")
    saved = _saved_functions(truth, folder)

    def ways(small: bool, threads: int) -> Ways:
        one, whole, drawn = (
            interpreted(*saved[name], small, threads) for name in ("step", "sequence", "loop")
        )
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


def _torch_model(truth: Any) -> Any:
    """The model in float32, by the names of its parts."""
    import torch

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
    return torch.nn.ModuleDict({"embedding": embedding, "lstm": lstm, "dense": dense})


def _torch_ways(model: Any, dtype: Any, threads: int) -> Ways:
    """The calls of torch in a type, on a number of threads."""
    import copy

    import torch

    # The weights in bfloat16 too: autocast would round them again at every call.
    mine = copy.deepcopy(model).to(dtype)

    def outputs(ids: Any, h: Any, c: Any) -> Any:
        y, (h, c) = mine["lstm"](mine["embedding"](ids)[None], (h[None], c[None]))
        return mine["dense"](y[0]), h[0], c[0]

    def one(ids: np.ndarray, h: Any, c: Any) -> Any:
        torch.set_num_threads(threads)
        h, c = (
            torch.as_tensor(np.asarray(state) if not torch.is_tensor(state) else state) for state in (h, c)
        )
        logits, h, c = outputs(torch.from_numpy(ids), h.to(dtype), c.to(dtype))
        return logits.float().numpy(), h, c

    def whole(ids: np.ndarray, after: np.ndarray) -> Any:
        torch.set_num_threads(threads)
        zeros = torch.zeros((1, mine["lstm"].hidden_size), dtype=dtype)
        logits = outputs(torch.from_numpy(ids), zeros, zeros)[0].float()
        picked = logits.log_softmax(-1).gather(1, torch.from_numpy(after)[:, None])
        return picked.sum().item()

    return Ways(one, whole)


def torch_jobs(folder: Path) -> Jobs:
    """OneDNN's LSTM primitive, as torch.nn.LSTM calls it without gradients: float32 and bfloat16."""
    import torch

    truth = np.load(folder / "truth.npz")
    model = _torch_model(truth)
    types = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    found = {
        name: {threads: _torch_ways(model, dtype, threads) for threads in THREADS}
        for name, dtype in types.items()
    }
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


RUNTIMES: dict[str, Callable[[Path], Jobs]] = {
    "onnxruntime": onnxruntime_jobs,
    "openvino": openvino_jobs,
    "litert": litert_jobs,
    "onednn": torch_jobs,
}


def runtime_jobs(folder: Path, name: str) -> Jobs:
    """The jobs of a runtime. Raises `RefusedError` if it is not installed."""
    try:
        return RUNTIMES[name](folder)
    except ImportError as error:
        raise RefusedError(f"{error}: pip install --group bench") from None
