"""The peers of the inference contest: the ways in which each runs a model, by precision and number of threads."""

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inference.models import Layer, Model, batch_of, cell_file, keras_model, weights_of, widths
from benchmarks.precisions import PRECISIONS

# The likely faster first, because a race with slow calls does not try all.
THREADS = (2, 1)
Run = Callable[[np.ndarray], Any]
# The ways to run a model, by precision and in words.
Ways = dict[str, dict[str, Run]]


def cellerate_ways(name: str, model: Model, folder: Path) -> Ways:
    """Packed models."""
    import cellerate

    return {
        precision: {"predict": cellerate.load(cell_file(folder, name, precision)).predict}
        for precision in PRECISIONS
    }


def keras_ways(name: str, model: Model, folder: Path) -> Ways:
    """Keras, compiled by its backend: `jax.jit`, or `tf.function` with XLA."""
    import keras

    made = keras_model(model)
    if keras.backend.backend() == "jax":
        import jax

        variables = (
            [one.value for one in made.trainable_variables],
            [one.value for one in made.non_trainable_variables],
        )
        compiled = jax.jit(lambda given, x: made.stateless_call(*given, x, training=False)[0])
        return {"float32": {"jax.jit": lambda x: np.asarray(compiled(variables, x))}}
    import tensorflow as tf

    function = tf.function(lambda x: made(x, training=False), jit_compile=True)
    return {"float32": {"tf.function(jit_compile=True)": lambda x: function(tf.constant(x)).numpy()}}


def torch_ways(name: str, model: Model, folder: Path) -> Ways:
    """torch: float32 and bfloat16 through oneDNN's LSTM, eager and compiled; int8 by its dynamic quantisation."""
    import torch

    torch.set_grad_enabled(False)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ModuleList(_torch_layer(layer, width) for layer, width in widths(model))
            for part, weights in zip(self.parts, weights_of(model), strict=True):
                _fill(part, weights)

        def forward(self, x: Any) -> Any:
            for layer, part in zip(model.layers, self.parts, strict=True):
                if layer.kind in ("lstm", "bidirectional"):
                    x, (h, _) = part(x)
                    if not layer.sequences:
                        x = h.transpose(0, 1).flatten(1)
                else:
                    x = part(x)
                if layer.activation == "sigmoid":
                    x = torch.sigmoid(x)
            return x

    def ways(network: Any, dtype: Any, compiles: bool) -> dict[str, Run]:
        def run(call: Any, threads: int) -> Run:
            def once(x: np.ndarray) -> Any:
                torch.set_num_threads(threads)
                given = torch.from_numpy(x)
                return call(given if model.ids else given.to(dtype)).float().numpy()

            return once

        calls = {"as it is": network} | ({"torch.compile": torch.compile(network)} if compiles else {})
        return {f"{how}, {n} threads": run(call, n) for how, call in calls.items() for n in THREADS}

    network = Network().eval()
    small = torch.ao.quantization.quantize_dynamic(
        network, {torch.nn.LSTM, torch.nn.Linear}, dtype=torch.qint8
    )
    return {
        "float32": ways(network, torch.float32, True),
        "bfloat16": ways(Network().eval().to(torch.bfloat16), torch.bfloat16, True),
        "int8": ways(small, torch.float32, False),
    }


def _torch_layer(layer: Layer, width: int) -> Any:
    from torch import nn

    if layer.kind == "embedding":
        return nn.Embedding(width, layer.units)
    if layer.kind == "dense":
        return nn.Linear(width, layer.units)
    if layer.kind == "layer_norm":
        return nn.LayerNorm(width, eps=1e-3)
    return nn.LSTM(width, layer.units, batch_first=True, bidirectional=layer.kind == "bidirectional")


def _fill(part: Any, weights: list[np.ndarray]) -> None:
    """Copy Keras's weights; torch transposes kernels and has a second bias, which stays at zero."""
    import torch

    arrays = [array.T if array.ndim == 2 else array for array in weights]
    if isinstance(part, torch.nn.LSTM):
        arrays = [
            one
            for n in range(0, len(arrays), 3)
            for one in (*arrays[n : n + 3], np.zeros_like(arrays[n + 2]))
        ]
    elif isinstance(part, torch.nn.Embedding):
        arrays = weights
    for parameter, array in zip(part.parameters(), arrays, strict=True):
        parameter.copy_(torch.tensor(np.ascontiguousarray(array)))


def onnx_file(name: str, model: Model, folder: Path) -> Path:
    """The model as ONNX, for any batch."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from benchmarks.generation.onnx import as_model, gates

    nodes: list[Any] = []
    held: list[Any] = []

    def keep(array: np.ndarray) -> str:
        held.append(numpy_helper.from_array(array, f"w{len(held)}"))
        return str(held[-1].name)

    def node(kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        made = [f"v{len(nodes)}_{n}" for n in range(outputs)]
        nodes.append(helper.make_node(kind, inputs, made, **attributes))
        return made[0] if outputs == 1 else made

    x, by_time = "x", False
    for (layer, _), weights in zip(widths(model), weights_of(model), strict=True):
        if layer.kind == "embedding":
            x = node("Gather", keep(weights[0]), x)
        elif layer.kind == "dense":
            x = node("Add", node("MatMul", x, keep(weights[0])), keep(weights[1]))
            x = node("Sigmoid", x) if layer.activation == "sigmoid" else x
        elif layer.kind == "layer_norm":
            x = node("LayerNormalization", x, keep(weights[0]), keep(weights[1]), axis=-1, epsilon=1e-3)
        else:
            x = x if by_time else node("Transpose", x, perm=[1, 0, 2])
            by_time = True
            ways = [weights[n : n + 3] for n in range(0, len(weights), 3)]
            stacked = [np.concatenate([gates(way[n]) for way in ways]) for n in range(3)]
            stacked[2] = np.concatenate([stacked[2], np.zeros_like(stacked[2])], axis=1)
            direction = "bidirectional" if layer.kind == "bidirectional" else "forward"
            arrays = [keep(array) for array in stacked]
            y, h, _ = node("LSTM", x, *arrays, outputs=3, hidden_size=layer.units, direction=direction)
            width = len(ways) * layer.units
            if layer.sequences:
                y = node("Transpose", y, perm=[0, 2, 1, 3])
                x = node("Reshape", y, keep(np.array([0, 0, width], np.int64)))
            else:
                x = node(
                    "Reshape", node("Transpose", h, perm=[1, 0, 2]), keep(np.array([0, width], np.int64))
                )
                by_time = False
    if by_time:
        x = node("Transpose", x, perm=[1, 0, 2])
    shape = ["B", model.steps] if model.ids else ["B", model.steps, model.width]
    kind = TensorProto.INT32 if model.ids else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, None)],
        held,
    )
    path = folder / f"{name.replace(' ', '-')}.onnx"
    onnx.save(as_model(graph), path)
    return path


def onnxruntime_ways(name: str, model: Model, folder: Path) -> Ways:
    """ONNX Runtime: float32, and int8 by its own dynamic quantisation."""
    from benchmarks.generation.onnx import OPERATORS, quantized, session_of

    path = onnx_file(name, model, folder)
    small = quantized(path, path.with_suffix(".int8.onnx"), op_types_to_quantize=OPERATORS)

    def run(file: Path, threads: int) -> Run:
        session = session_of(file, threads)
        return lambda x: session.run(None, {"x": x})[0]

    return {
        precision: {f"{threads} threads": run(file, threads) for threads in THREADS}
        for precision, file in (("float32", path), ("int8", small))
    }


def openvino_ways(name: str, model: Model, folder: Path) -> Ways:
    """OpenVINO: float32, bfloat16 by its hint, and int8 by nncf, calibrated on the rows of the contest."""
    import openvino

    from benchmarks.generation.onnx import nncf_quantized, request_of

    core = openvino.Core()
    path = onnx_file(name, model, folder)
    rows = [{"x": row[None]} for row in batch_of(model, 64)]
    models = {"float32": core.read_model(path), "int8": nncf_quantized(core.read_model(path), rows)}
    if "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        models["bfloat16"] = models["float32"]

    def run(precision: str, threads: int) -> Run:
        request = request_of(core, models[precision], precision, threads)

        def once(x: np.ndarray) -> Any:
            return np.array(request.infer({"x": x}, share_inputs=True, share_outputs=True)[0])

        return once

    return {
        precision: {f"{threads} threads": run(precision, threads) for threads in THREADS}
        for precision in models
    }


PEERS: dict[str, Callable[[str, Model, Path], Ways]] = {
    "cellerate": cellerate_ways,
    "onnxruntime": onnxruntime_ways,
    "openvino": openvino_ways,
    "torch": torch_ways,
    "jax": keras_ways,
    "tensorflow": keras_ways,
}
# The packages whose versions a record names.
PACKAGES = {"jax": ("keras", "jax"), "tensorflow": ("keras", "tensorflow"), "torch": ("torch",)}


def versions(contestant: str) -> dict[str, str]:
    """The versions of a contestant's packages; ends the process if one of them is not installed."""
    try:
        return {name: metadata.version(name) for name in PACKAGES.get(contestant, (contestant,))}
    except metadata.PackageNotFoundError as error:
        raise SystemExit(f"{error.name} is not installed; `make bench` installs all contestants") from None
